#pragma once

// A traced step joined with its Program: what ran when, and why it did not run earlier.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "program/program.h"
#include "program/trace.h"
#include "trace/ops.h"

namespace megalith::trace {

/// One instruction of one worker. Nanoseconds since the host began the step.
struct Event {
  std::int64_t begin = 0;  ///< waits from here
  std::int64_t ready = 0;  ///< works from here
  std::int64_t end = 0;
  std::size_t op = 0;       ///< index into OpTable::ops
  std::uint32_t visit = 0;  ///< index into Program::visits
  std::uint32_t instruction = 0;
  std::int32_t layer = -1;                      ///< -1: embedding, head
  std::uint32_t wait_counter = program::kNone;  ///< kNone: needs no counter
  std::int32_t wait_rank = -1;                  ///< whose message it needs; -1: none's
  bool is_timed = true;   ///< false: ends when it is ready (fetch, fetch_next, wait)
  std::int64_t rows = 0;  ///< CountRows
  ReadBytes bytes;
  std::int64_t prefetched_bytes = 0;  ///< of later weights, asked for from begin to end

  std::int64_t wait() const { return ready - begin; }
  std::int64_t work() const { return end - ready; }
};

struct Timeline {
  std::int64_t step = 0;      ///< number of the step in its executor
  std::int64_t start = 0;     ///< on the clock of the records
  std::int64_t duration = 0;  ///< until the host has seen the end
  std::int32_t rows = 0;
  std::int64_t context_rows = 0;
  std::vector<std::vector<Event>> workers;  ///< in order; each begins where the one before ended
};

/// A signal that somebody waited for: the event of the worker that gave it last.
struct Signaller {
  std::size_t worker;
  std::size_t event;
};

/// Where the time of a stretch of the critical path went.
enum class PathPart : std::uint8_t {
  kWork,       ///< an event's own work
  kHandOver,   ///< from a signal to the waiting worker that sees it
  kStepBegin,  ///< from the host to the first event
  kStepEnd,    ///< from the last event to the host
};

/// One stretch; together they cover the step without gap or overlap.
struct PathStretch {
  PathPart part = PathPart::kWork;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t worker = 0;
  std::size_t event = 0;  ///< the working or the waiting event
};

/// Knows a Program's ops and who signals what. The Program must outlive it.
class TraceReader {
 public:
  explicit TraceReader(const program::Program& program);

  const program::Program& program() const { return program_; }
  const OpTable& ops() const { return ops_; }

  /// kBadFile if the records are not those of one step of this Program: every instruction of every
  /// visit once, in order, times not decreasing.
  Result<Timeline> Read(const program::TraceStep& step) const;

  /// What an event waits for: a counter's name, or "rank 2", whose message came last if it needs
  /// both; empty if it needs nothing.
  std::string WaitsFor(const Event& event) const;

  /// Who signalled last what `event` waited for, among those that began before it was ready. Empty
  /// if that is the host, an earlier step or another rank, or if the event needs no counter.
  std::optional<Signaller> LastSignaller(const Timeline& timeline, const Event& event) const;

  /// The event that made the signal late: the signalling one or, if that only signals, the last one
  /// before it that did some work. Instructions that only wait or signal carry no cause.
  Signaller WorkBehind(const Timeline& timeline, Signaller signaller) const;
  /// The event that was held up when `event` of `worker` waited: that one or, if it only waits, the
  /// next that works.
  std::size_t WorkHeldUp(const Timeline& timeline, std::size_t worker, std::size_t event) const;

  /// The chain that bounds the step, from its begin to its end: back from the worker that finished
  /// last; where an event had to wait, on to the one that signalled last.
  std::vector<PathStretch> CriticalPath(const Timeline& timeline) const;

 private:
  struct Source {
    std::size_t worker;
    std::size_t instruction;
  };

  const program::Program& program_;
  OpTable ops_;
  std::vector<std::vector<std::vector<Source>>> sources_;  // [segment][counter]
  std::vector<std::vector<std::size_t>> first_event_;      // [worker][visit, and one more]
};

}  // namespace megalith::trace
