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

/// The latest traced steps. Used by the host alone, between steps.
///
/// A time stamp costs 5 to 15 ns. Beside a large model's step of a hundred milliseconds that is
/// nothing; but where an instruction takes half a microsecond, a step with its stamps and records
/// takes 5 % longer (k3-nano: 8 us of 150). So a step is traced only when so much time has passed
/// since the last one traced that the stamps are at most kShare of it; all in all that costs about
/// twice that share.
class StepLog {
 public:
  /// Keeps the latest kSteps steps of `num_workers` workers; with 0 workers nothing.
  explicit StepLog(std::size_t num_workers);

  /// From now on every step is traced, whatever it costs.
  void TraceEveryStep() { every_step_ = true; }

  /// Before a step of `num_records` records a worker is published. True if it is to be traced; then
  /// End follows when all workers have finished it, unless it has failed. `rings`: one per worker.
  bool Begin(std::int32_t program, std::size_t num_records, const StepInput& input,
             const std::vector<const TraceRing*>& rings);
  void End();

  /// The steps whose records are all still in the rings, oldest first, times in nanoseconds of
  /// NowNs.
  program::Trace Read(const std::vector<const TraceRing*>& rings, const DeviceMemory& memory) const;

  static constexpr std::size_t kSteps = 1024;
  static constexpr double kShare = 0.0025;

 private:
  TickClock clock_;
  TickScale scale_{clock_};
  double ticks_per_stamp_;
  bool every_step_ = false;
  std::int64_t last_begin_ = 0;  // of a traced step, in ticks; 0: none yet
  std::size_t num_workers_;
  std::vector<program::TraceStepInfo> steps_;  // ring; begin and end in ticks
  std::vector<std::uint64_t> first_records_;   // [kSteps][num_workers]
  std::uint64_t num_steps_ = 0;                // finished and traced
  std::int64_t num_begun_ = 0;                 // all
};

}  // namespace megalith::exec::cpu
