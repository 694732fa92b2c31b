#pragma once

// Where the time of traced steps went, as sums that add up: for every worker
//   step = start + reading + other work + waiting + finish,
// and the critical path's stretches add up to the step as well.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/timeline.h"

namespace megalith::trace {

/// One op, all workers and steps together.
struct OpTotal {
  std::string name;
  OpGroup group = OpGroup::kOther;
  std::int64_t calls = 0;
  std::int64_t work_ns = 0;
  std::int64_t wait_ns = 0;       ///< spent waiting before it could begin
  std::int64_t most_work_ns = 0;  ///< the longest single call
  ReadBytes bytes;
  std::int64_t prefetched_bytes = 0;   ///< of later weights, while waiting for it or in it
  std::int64_t path_ns = 0;            ///< its work that lies on the critical path
  std::int64_t path_hand_over_ns = 0;  ///< on the path: from the signal to this op's begin
};

enum class BubbleKind : std::uint8_t {
  kWait,        ///< for a counter
  kNoMemory,    ///< work that reads no weights and no state
  kStepStart,   ///< the host has begun, the worker has not
  kStepFinish,  ///< the worker has finished, the host has not seen all
};
std::string_view BubbleKindName(BubbleKind kind);

/// Time in which a worker does not work on memory, by cause.
struct Bubble {
  BubbleKind kind = BubbleKind::kWait;
  std::string op;         ///< that is held up, or that reads nothing
  std::string counter;    ///< waited for
  std::string signaller;  ///< op that made the last signal late; empty: the host or the step before
  std::int32_t worker = -1;  ///< that signalled last most often; -1: none
  std::int64_t calls = 0;
  std::int64_t ns = 0;
  std::int64_t prefetched_bytes = 0;  ///< asked for meanwhile: so much of it is not lost
};

struct WorkerTotal {
  std::int64_t start_ns = 0;    ///< until its first instruction
  std::int64_t reading_ns = 0;  ///< work that reads weights or state
  std::int64_t other_ns = 0;    ///< work that does not
  std::int64_t wait_ns = 0;
  std::int64_t finish_ns = 0;  ///< after its last instruction
  ReadBytes bytes;
  std::int64_t Sum() const { return start_ns + reading_ns + other_ns + wait_ns + finish_ns; }
};

struct Summary {
  std::int64_t steps = 0;
  std::int64_t step_ns = 0;      ///< all steps together
  std::int64_t shortest_ns = 0;  ///< of one step
  std::int64_t median_ns = 0;
  std::int64_t longest_ns = 0;
  std::vector<WorkerTotal> workers;
  std::vector<OpTotal> ops;     ///< most work first; those that did nothing are left out
  std::vector<Bubble> bubbles;  ///< longest first
  std::int64_t path_start_ns = 0;
  std::int64_t path_finish_ns = 0;

  std::int64_t ReadTotal() const;
};

/// Sums over steps of one Program. `timelines` from `reader`, at least one.
Summary Summarize(const TraceReader& reader, std::span<const Timeline> timelines);

/// Index of a step of median duration (the lower one of two).
std::size_t MedianStep(std::span<const Timeline> timelines);

}  // namespace megalith::trace
