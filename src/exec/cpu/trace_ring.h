#pragma once

// Tracing inside a step: one time stamp for most instructions, one more for a wait that really
// waits. StepLog chooses the steps.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/tick_clock.h"
#include "program/trace.h"

namespace megalith::exec::cpu {

/// The latest records of one worker; the oldest are overwritten. Written by the worker while a step
/// runs, read by the host between steps: the hand-over of the step orders the two. Records hold
/// ticks of TickClock.
class TraceRing {
 public:
  /// Holds at least `min_records`; 0 turns tracing off. The memory is first touched by the worker.
  explicit TraceRing(std::size_t min_records = 0)
      : mask_(min_records == 0 ? 0 : std::bit_ceil(min_records) - 1),
        records_(min_records == 0 ? nullptr : new program::TraceRecord[mask_ + 1]) {}

  // The worker, in this order: BeginStep, then for each instruction WaitOver (only if it had to
  // wait) and Finish or FinishUntimed. `lines` counts all cache lines asked for so far.

  /// The step is recorded if `traced`; else the calls below do nothing.
  void BeginStep(bool traced, std::uint64_t lines) {
    on_ = traced && records_ != nullptr;
    if (!on_) return;
    begin_ = ready_ = clock_.Now();
    lines_ = lines;
  }
  void WaitOver() {
    if (on_) ready_ = clock_.Now();
  }
  void Finish(std::int64_t visit, std::int64_t instruction, std::int64_t trip,
              std::uint64_t lines) {
    if (on_) Append(clock_.Now(), visit, instruction, trip, lines);
  }
  /// For an instruction that takes less than a time stamp.
  void FinishUntimed(std::int64_t visit, std::int64_t instruction, std::uint64_t lines) {
    if (on_) Append(ready_, visit, instruction, 0, lines);
  }

  /// The host, between steps. Records are numbered from 0 over the life of the ring; those from
  /// first() to below written() are there.
  std::uint64_t written() const { return written_; }
  std::uint64_t first() const { return written_ - std::min<std::uint64_t>(written_, capacity()); }
  std::size_t capacity() const { return records_ == nullptr ? 0 : mask_ + 1; }
  const program::TraceRecord& Record(std::uint64_t number) const {
    return records_[number & mask_];
  }

 private:
  void Append(std::int64_t end, std::int64_t visit, std::int64_t instruction, std::int64_t trip,
              std::uint64_t lines) {
    records_[written_++ & mask_] = {begin_,
                                    ready_,
                                    end,
                                    static_cast<std::uint32_t>(visit),
                                    static_cast<std::uint32_t>(instruction),
                                    static_cast<std::uint32_t>(trip),
                                    static_cast<std::uint32_t>(lines - lines_)};
    begin_ = ready_ = end;
    lines_ = lines;
  }

  TickClock clock_;
  bool on_ = false;
  std::int64_t begin_ = 0;
  std::int64_t ready_ = 0;
  std::uint64_t lines_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t mask_;
  std::unique_ptr<program::TraceRecord[]> records_;
};

}  // namespace megalith::exec::cpu
