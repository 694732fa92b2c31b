#pragma once

// What rank 0 tells the others about engines, and how options become text and back. Calls of
// executors are exec/call.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "fabric/agreement.h"
#include "fabric/fabric.h"

namespace megalith::engine {

/// The target of the messages below (exec::RankMessage); executors have others.
inline constexpr std::uint32_t kRankControl = 0;

struct RankControl {
  enum class Kind : std::uint8_t {
    kEnd,      ///< the job is over
    kLoad,     ///< load an engine; options follow
    kVariant,  ///< make a variant of an engine; options follow
  };
  Kind kind = Kind::kEnd;
  std::uint32_t target = 0;  ///< of the executor that is made
  std::uint32_t engine = 0;  ///< kVariant: the target of the engine's own executor
};

void AppendControl(const RankControl& control, fabric::Bytes* bytes);
/// kInternal for anything that AppendControl has not written.
Result<RankControl> ParseControl(std::span<const std::byte> bytes);

/// All that makes a difference on another rank.
fabric::Items LoadItems(const std::string& directory, const EngineOptions& options);
/// kInternal for anything that LoadItems has not written.
Status ParseLoadItems(const fabric::Items& items, std::string* directory, EngineOptions* options);

fabric::Items VariantItems(const VariantOptions& options);
Status ParseVariantItems(const fabric::Items& items, VariantOptions* options);

}  // namespace megalith::engine
