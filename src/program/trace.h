#pragma once

// When every instruction of a step ran: the one format that engines (and whatever else runs a
// Program against a clock) hand out. Plain data; which instruction did what is in the Program.

#include <cstdint>
#include <vector>

namespace megalith::program {

/// One instruction of one worker in one visit of one step. Times are in nanoseconds from an
/// arbitrary moment that all workers and the host share (rings of an engine hold its clock's ticks
/// instead). No default values: rings of records are not touched before use.
struct TraceRecord {
  /// The worker's previous instruction is over: waiting begins.
  std::int64_t begin;
  /// Waiting is over; equal to begin if the counter was there already.
  std::int64_t ready;
  /// Done and signalled; the next record begins here. What takes less than a time stamp (fetch,
  /// fetch_next, wait) is not timed: its few nanoseconds are the next one's.
  std::int64_t end;
  std::uint32_t visit;             ///< index into Program::visits
  std::uint32_t instruction;       ///< index into the worker's stream
  std::uint32_t trip;              ///< value of the instruction's trip register
  std::uint32_t prefetched_lines;  ///< cache lines of weights asked for from begin to end
};
inline constexpr std::int64_t kTraceLineBytes = 64;

/// What the host knows of a step.
struct TraceStepInfo {
  std::int64_t step = 0;     ///< counts the executor's steps from 0
  std::int32_t program = 0;  ///< index of the row bucket (DeviceMemory::program)
  std::int64_t begin = 0;    ///< before the host published the step
  std::int64_t end = 0;      ///< the host has seen that all workers have finished
  std::int32_t rows = 0;
  std::int32_t logit_rows = 0;
  std::int32_t runs = 0;          ///< sequences in the step
  std::int64_t context_rows = 0;  ///< positions up to and with the last one, summed over the runs
};

/// A finished step: per worker one record for every instruction of every visit, in order.
struct TraceStep {
  TraceStepInfo info;
  std::vector<std::vector<TraceRecord>> workers;
};

/// The latest steps, oldest first.
struct Trace {
  std::vector<TraceStep> steps;
};

}  // namespace megalith::program
