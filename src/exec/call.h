#pragma once

// A call that changes an executor, as data: what rank 0 of a job tells the other ranks before it
// makes the call itself.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "exec/executor.h"

namespace megalith::exec {

enum class CallKind : std::uint8_t {
  kStep,
  kTruncate,
  kReleaseSlot,
  kSave,
  kRestore,
  kNewSnapshot,
  kEnd,  ///< the executor is destroyed
};
/// "step", "truncate", ..., as an error says it.
std::string_view CallKindName(CallKind kind);

struct Call {
  CallKind kind = CallKind::kEnd;
  std::int32_t slot = 0;    ///< kTruncate, kReleaseSlot, kSave, kRestore
  std::int32_t length = 0;  ///< kTruncate, kNewSnapshot
  /// Names a snapshot for the life of the executor: what kSave and kNewSnapshot make, should they
  /// succeed, and what kRestore goes on from.
  std::uint64_t snapshot = 0;
  StepInput step;  ///< kStep
  /// Snapshots destroyed since the last call, to be destroyed before this one.
  std::span<const std::uint64_t> destroyed;
  /// How the last call of this executor ended: an ErrorCode plus one; 0: fine, or there was none.
  std::uint8_t last_outcome = 0;
};

/// Appends the call to `bytes`. Numbers are as the machine has them: ranks run the same build.
void AppendCall(const Call& call, std::vector<std::byte>* bytes);

/// Reads calls. Its memory is used again, so that in the long run nothing is allocated.
class CallDecoder {
 public:
  /// What the call refers to lives in the decoder until the next Decode. kBadFile: bytes that
  /// AppendCall never writes. What the numbers mean is the executor's to check.
  Result<Call> Decode(std::span<const std::byte> bytes);

 private:
  class Reader;
  struct AdjustmentSizes {
    std::uint32_t num_changes = 0;
    std::uint32_t num_words = 0;
  };
  bool ReadStep(Reader& reader, StepInput* step);
  bool ReadRun(Reader& reader);

  std::vector<std::uint64_t> destroyed_;
  std::vector<Run> runs_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::uint32_t> num_adjustments_;  // [runs]
  std::vector<AdjustmentSizes> sizes_;          // [adjustments]
  std::vector<kernels::LogitAdjustment> adjustments_;
  std::vector<kernels::LogitChange> changes_;
  std::vector<std::uint64_t> words_;
};

}  // namespace megalith::exec
