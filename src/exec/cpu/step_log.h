#pragma once

// The host's side of tracing: which records of the workers' rings belong to which step.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/tick_clock.h"
#include "exec/cpu/trace_ring.h"
#include "exec/device_memory.h"
#include "exec/executor.h"
#include "program/trace.h"

namespace megalith::exec::cpu {

/// Records a worker writes in one step.
std::size_t InstructionsInStep(const program::Program& program, std::size_t worker);

/// The latest steps. Used by the host alone, between steps.
class StepLog {
 public:
  /// Keeps the latest kSteps steps of `num_workers` workers; with 0 workers nothing.
  explicit StepLog(std::size_t num_workers);

  /// Before a step is published: it will run program `program`; `rings` has one entry per worker.
  void Begin(std::int32_t program, const StepInput& input,
             const std::vector<const TraceRing*>& rings);
  /// All workers have finished it. A step without End is not kept.
  void End();

  /// The steps whose records are all still in the rings, oldest first, times in nanoseconds of
  /// NowNs.
  program::Trace Read(const std::vector<const TraceRing*>& rings, const DeviceMemory& memory) const;

  static constexpr std::size_t kSteps = 1024;

 private:
  TickClock clock_;
  TickScale scale_{clock_};
  std::size_t num_workers_;
  std::vector<program::TraceStepInfo> steps_;  // ring; begin and end in ticks
  std::vector<std::uint64_t> first_records_;   // [kSteps][num_workers]
  std::uint64_t num_steps_ = 0;                // finished ones
  std::int64_t num_begun_ = 0;
};

}  // namespace megalith::exec::cpu
