#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "program/program.h"

namespace megalith::program {

// V1 and V7 for the instructions of drafting: capture_residual, sample, draft_*, markov_*, and the
// epilogue kAddDraftBase. Part of CheckInstruction (instruction_shapes.h).

/// What is wrong with the instruction's buffers, vectors or immediates; nothing if they fit.
std::optional<std::string> FindDraftFault(const Program& program, const Segment& segment,
                                          const Instruction& instruction);

/// Whether the operand holds rows that are looked up: the run's chosen tokens among the logit rows,
/// the block rows of a run.
bool GathersForDraft(const Instruction& instruction, std::size_t operand, BufferKind kind);

/// A drafter without Markov head has no embedding, one without confidence head neither hidden rows
/// nor confidences.
bool IsOptionalOfDraftChoose(std::size_t operand);

}  // namespace megalith::program
