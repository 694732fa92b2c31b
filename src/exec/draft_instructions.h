#pragma once

// What the instructions of choosing and drafting tokens do. They look up rows, and leave arithmetic
// to the kernels of the path, so that the interpreter and the CPU engine share them. Where a run
// has a few hundred numbers only (Markov heads, confidences) they compute with the scalar functions
// of kernels/numerics.h, which are the definition.

#include <cstdint>

#include "exec/device_memory.h"
#include "exec/instruction_view.h"
#include "kernels/kernel_table.h"
#include "kernels/sampling.h"

namespace megalith::exec {

/// The kernels of one instruction-set path, or the scalar ones.
template <typename Act>
struct DraftKernels {
  void (*head_norm_rotary)(const kernels::HeadNormRotaryArgs<Act>&);
  void (*draft_attention)(const kernels::DraftAttentionArgs<Act>&);
};

/// Private memory of the worker that runs the instruction.
struct DraftScratch {
  float* floats = nullptr;                       ///< DraftScratchFloats of the instruction
  kernels::SamplingScratch* sampling = nullptr;  ///< for sample and draft_choose
};

/// Floats that the instruction needs; 0 for other opcodes.
std::int64_t DraftScratchFloats(const program::Program& program,
                                const program::Instruction& instruction);

/// Whether the instruction chooses tokens and so needs DraftScratch::sampling.
bool ChoosesTokens(program::Opcode opcode);

/// Runs capture_residual, sample, or one of draft_* and markov_*; nothing for other opcodes.
template <typename Act>
void ExecuteDraft(const InstructionView& view, const DeviceMemory& device,
                  const DraftKernels<Act>& kernels, const DraftScratch& scratch);

/// out = row `token` of the table.
template <typename Act>
void LookUp(const InstructionView& view, std::int64_t table, std::int64_t token, Act* out);

/// Epilogue kAddDraftBase: the logits of a drafting run are its block row's and the Markov bias.
void AddDraftBase(const InstructionView& view, std::int64_t draft_run, const float* acc,
                  std::int64_t first_output, std::int64_t outputs);

}  // namespace megalith::exec
