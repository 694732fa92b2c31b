#pragma once

// What an instruction is called in reports, and what it reads from memory.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"
#include "program/trace.h"

namespace megalith::trace {

/// Coarse kinds of work: colours of the timeline.
enum class OpGroup : std::uint8_t {
  kProjections,  ///< weights of the mixers
  kFeedForward,  ///< dense and shared-expert weights, latent projections, router weights
  kExperts,      ///< routed experts
  kMixers,       ///< KDA recurrence, MLA attention and cache
  kNorms,
  kRouting,  ///< top-k and the plan
  kEnds,     ///< embedding and head
  kOther,    ///< only waits, requests and step ends
};
inline constexpr int kNumOpGroups = 8;
std::string_view OpGroupName(OpGroup group);

/// All instructions that do the same for different layers and workers.
struct Op {
  std::string name;  ///< e.g. "matmul q_proj", "rms_norm routed_norm"
  OpGroup group = OpGroup::kOther;
};

/// The distinct ops of a Program; their order is that of first use.
class OpTable {
 public:
  explicit OpTable(const program::Program& program);

  const std::vector<Op>& ops() const { return ops_; }
  std::size_t OpOf(std::uint32_t segment, std::size_t worker, std::size_t instruction) const {
    return index_[segment][worker][instruction];
  }

 private:
  std::vector<Op> ops_;
  std::vector<std::vector<std::vector<std::size_t>>> index_;  // [segment][worker][instruction]
};

/// Bytes an instruction reads from memory. Vectors (norm weights, taps) and activations are left
/// out: they are small and stay in cache. So are bytes written.
struct ReadBytes {
  std::int64_t weights = 0;  ///< as packed; embedding rows as stored
  std::int64_t state = 0;    ///< KDA state, convolution history, MLA cache
  std::int64_t Total() const { return weights + state; }
};
/// `record` is of `instruction`, which belongs to `stream`; `step` of the same step. THE TRIP OF
/// THE RECORD is used: experts count as often as they were active.
ReadBytes CountReadBytes(const program::Program& program, const program::Stream& stream,
                         const program::Instruction& instruction,
                         const program::TraceRecord& record, const program::TraceStepInfo& step);

/// Rows that the instruction worked on; active experts for expert instructions, 0 for instructions
/// without rows.
std::int64_t CountRows(const program::Instruction& instruction, const program::TraceRecord& record);

}  // namespace megalith::trace
