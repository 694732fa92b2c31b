#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace megalith::engine {

struct DraftProposal {
  std::vector<std::int32_t> drafts;
  std::vector<float> confidence;  ///< exec::RunOutput::confidence; empty if not known
};

/// Proposes up to `max_drafts` tokens to follow `tokens`: everything so far, the newest token last.
/// The proposal comes empty. Any tokens are allowed, none too.
using DraftProposer = std::function<void(std::span<const std::int32_t> tokens,
                                         std::int32_t max_drafts, DraftProposal* proposal)>;

/// Proposes what followed when the text last read like now (NgramDrafter). Holds the text: for one
/// sequence at a time.
DraftProposer MakeNgramProposer();

/// Drafting never changes what is generated.
struct DraftOptions {
  std::int32_t max_drafts = 0;         ///< verified at once, at most the engine's; 0: no drafting
  std::optional<std::int32_t> always;  ///< verify so many whenever they are there; empty: so many
                                       ///< as pay, see DraftController
  bool drafter = true;                 ///< the engine's drafter proposes, if it has one
  DraftProposer proposer;              ///< proposes as well; may be empty
};

}  // namespace megalith::engine
