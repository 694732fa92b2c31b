#pragma once

// One worker's part of a step: its stream in every visit.

#include <atomic>
#include <cstdint>
#include <functional>

#include "exec/counter_targets.h"
#include "exec/cpu/counters.h"
#include "exec/cpu/prefetch_queue.h"
#include "exec/cpu/scratch.h"
#include "exec/cpu/trace_ring.h"
#include "exec/device_memory.h"
#include "exec/exchange.h"
#include "exec/instruction_view.h"
#include "exec/packed_weights.h"
#include "kernels/kernel_table.h"

namespace megalith::exec::cpu {

/// One Program and its counters, shared by the workers; constant while a step runs but for the
/// counters.
struct ProgramState {
  explicit ProgramState(const ProgramMemory& program_memory)
      : program(program_memory.program()),
        memory(program_memory),
        targets(program),
        counters(program.counters.size()) {}

  const program::Program& program;
  const ProgramMemory& memory;
  CounterTargets targets;
  Counters counters;
  std::int64_t epoch = 0;  ///< written by the host between steps
  bool traced = false;     ///< whether this step is; written by the host between steps
};

/// What stops a step before its end. The first worker to fail fills it; all others go on signalling
/// without doing any work, so that nobody hangs.
class StepFailure {
 public:
  bool IsSet() const { return set_.load(std::memory_order_relaxed); }
  /// `reason` is a string literal.
  void Set(const char* reason, std::int32_t worker, std::int64_t visit, std::int64_t instruction) {
    bool expected = false;
    if (!claimed_.compare_exchange_strong(expected, true, std::memory_order_relaxed)) return;
    reason_ = reason;
    worker_ = worker;
    visit_ = visit;
    instruction_ = instruction;
    // The fields are read by the host after the step's end, which orders them.
    set_.store(true, std::memory_order_relaxed);
  }
  /// Between steps. Returns the failure and clears it.
  Status Take(const program::Program& program);

 private:
  std::atomic<bool> claimed_{false};
  std::atomic<bool> set_{false};
  const char* reason_ = nullptr;
  std::int32_t worker_ = 0;
  std::int64_t visit_ = 0;
  std::int64_t instruction_ = 0;
};

/// Where a worker is, for the watchdog. Relaxed: a report may mix two moments.
struct alignas(64) WorkerPosition {
  std::atomic<std::int64_t> visit{-1};
  std::atomic<std::int64_t> instruction{-1};
  std::atomic<std::uint32_t> wait_counter{program::kNone};  ///< kNone: not waiting
  std::atomic<std::int64_t> want{0};
  std::atomic<std::int32_t> wait_rank{-1};  ///< whose message it waits for; -1: none's
};

/// Shared by all workers of an engine.
template <typename Act>
struct WorkerShared {
  DeviceMemory* device;
  const PackedWeights* weights;
  const kernels::KernelTable<Act>* kernels;
  ExchangePort* exchanges;
  StepFailure* failure;
  const std::atomic<bool>* abandon;  ///< set by the watchdog: leave the step without finishing it
  std::uint32_t max_spins;           ///< pauses before a waiting worker starts to yield
  bool prefetch;
  const std::function<void(std::int32_t, std::int64_t, std::int64_t)>* before_instruction;
};

template <typename Act>
class Worker {
 public:
  Worker(std::int32_t index, const WorkerShared<Act>& shared, Scratch scratch)
      : index_(index), shared_(shared), scratch_(std::move(scratch)) {}

  /// Runs the worker's streams of one step. Returns false if the step was abandoned.
  bool RunStep(ProgramState& state);

  /// Asks for a few lines of the weights that come next. Returns false if there are none.
  bool Prefetch() { return expert_queue_.Drain() || queue_.Drain(); }

  const WorkerPosition& position() const { return position_; }

  /// Keeps at least the latest `min_records` records; 0: none. Between steps.
  void KeepTrace(std::size_t min_records) { trace_ = TraceRing(min_records); }
  const TraceRing& trace() const { return trace_; }

 private:
  bool RunVisit(ProgramState& state, std::int64_t visit_index);
  bool Wait(ProgramState& state, std::int64_t visit_index, const program::Instruction& instruction);
  const char* Exchange(const InstructionView& view);
  void Request(const ProgramState& state, std::int64_t visit_index,
               const program::Instruction& instruction);
  void RequestExpertDown(const InstructionView& gate_up);
  std::uint64_t LinesAsked() const { return expert_queue_.lines_asked() + queue_.lines_asked(); }

  std::int32_t index_;
  const WorkerShared<Act>& shared_;
  Scratch scratch_;
  PrefetchQueue queue_;         // tiles of the static order
  PrefetchQueue expert_queue_;  // second tiles of the chosen experts; needed before those above
  WorkerPosition position_;
  TraceRing trace_;
};

}  // namespace megalith::exec::cpu
