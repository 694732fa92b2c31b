#pragma once

#include "program/compile/builder.h"

namespace megalith::program {

/// Cuts phases that hold several operations (an operation: one opcode on one matrix, or one opcode
/// without a matrix) into one phase for each, in the order in which the workers do them.
void SplitPhasesByOperation(SegmentBuilder& builder);

}  // namespace megalith::program
