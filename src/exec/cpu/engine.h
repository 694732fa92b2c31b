#pragma once

// The CPU engine: one persistent thread per worker runs that worker's stream; counters are atomics
// in shared memory. A step makes no allocation, takes no lock and throws nothing; threads wait with
// pause, then yield, and while they wait they ask for their next weights.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/topology.h"
#include "exec/exchange.h"
#include "exec/executor.h"
#include "exec/packed_weights.h"
#include "kernels/kernel_table.h"
#include "program/verifier.h"

namespace megalith::exec {

inline constexpr std::size_t kDefaultTraceRecords = 8192;

struct CpuEngineOptions {
  kernels::Isa isa = kernels::Isa::kPortable;
  /// As from PlaceWorkers for the Program's number of workers; with empty `cpus` nothing is pinned.
  WorkerPlacement placement;
  /// Pages of activations and state.
  HugePages huge_pages = HugePages::kOff;
  /// Prefetch the next weight tiles while waiting.
  bool prefetch = true;
  /// Each worker keeps the times of at least the latest so many instructions that were traced, and
  /// of the latest two steps traced; 0: no tracing. 40 bytes each. See cpu/step_log.h.
  std::size_t trace_records = kDefaultTraceRecords;
  /// A step that takes longer is given up with kInternal, naming what every worker waits for; the
  /// engine cannot run further steps. 0: no limit.
  std::int64_t step_timeout_ms = 0;
  /// Of the job, for Programs of several ranks; must outlive the engine. See MailboxLayoutFor.
  fabric::Mailboxes* mailboxes = nullptr;
  /// For tests: called by every worker before each instruction, e.g. to delay it.
  std::function<void(std::int32_t worker, std::int64_t visit, std::int64_t instruction)>
      before_instruction;
};

/// Starts the workers. `programs` are row buckets of one model; `weights` must outlive the engine.
/// Errors: those of DeviceMemory::Create and PackedWeights::CheckFits; kUnsupported for an
/// instruction set this CPU lacks, or for f32 activations on any path but portable; kUsage if the
/// placement is for another number of workers, and those of CheckMailboxes; kOutOfMemory.
Result<std::unique_ptr<Executor>> MakeCpuEngine(std::vector<program::VerifiedProgram> programs,
                                                const PackedWeights& weights,
                                                CpuEngineOptions options);

}  // namespace megalith::exec
