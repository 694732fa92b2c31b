#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "program/program.h"

namespace megalith::program {

/// V1 and V7 for one instruction: ids valid, operands inside their buffers, shapes and dtypes as
/// the opcode needs them, trip count bounded by the rows of every buffer it walks over. Relies on
/// buffers, tensors, tiles and vectors having been checked.
Status CheckInstruction(const Program& program, std::uint32_t segment, std::size_t worker,
                        std::size_t index);

}  // namespace megalith::program
