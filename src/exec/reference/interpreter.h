#pragma once

// The oracle: runs a Program one instruction at a time in one thread, with the scalar kernels of
// kernels/reference. Workers take turns, each running until it has to wait, so counters are
// honoured exactly as the threads of the CPU engine honour them. Slow and simple.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "exec/exchange.h"
#include "exec/executor.h"
#include "exec/packed_weights.h"
#include "kernels/numerics.h"
#include "program/verifier.h"

namespace megalith::exec {

class ProgramMemory;

/// What the interpreter has just done.
struct InstructionEvent {
  std::int64_t visit_index;
  std::int32_t worker;
  std::int64_t instruction_index;  ///< in the worker's stream
  const ProgramMemory& memory;
};
/// Called after an instruction's effect and before its signal. Returning false ends the step with
/// kCancelled: what the buffers hold then can be looked at.
using InstructionObserver = std::function<bool(const InstructionEvent&)>;

struct ReferenceOptions {
  /// Of dot products with bf16 activations; those of the instruction-set path to compare with.
  kernels::DotNumerics numerics;
  /// 0: workers take turns in order. Else the seed of a random order, another one in every step.
  std::uint64_t interleaving_seed = 0;
  InstructionObserver observer;
  /// Of the job, for Programs of several ranks; must outlive the executor. A step then waits for
  /// the other ranks' steps.
  fabric::Mailboxes* mailboxes = nullptr;
};

/// `weights` must outlive the executor. Errors: those of DeviceMemory::Create and
/// PackedWeights::CheckFits, and of CheckMailboxes. Step returns kInternal, naming worker,
/// instruction, counter, have and want, if no worker can go on.
Result<std::unique_ptr<Executor>> MakeReferenceExecutor(
    std::vector<program::VerifiedProgram> programs, const PackedWeights& weights,
    ReferenceOptions options);

}  // namespace megalith::exec
