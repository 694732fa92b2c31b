#pragma once

// One instruction of one worker in one visit, with what it refers to resolved: what the handlers of
// every executor start from.

#include <cstdint>

#include "exec/device_memory.h"
#include "exec/packed_weights.h"
#include "kernels/kernel_table.h"
#include "program/program.h"

namespace megalith::exec {

struct InstructionView {
  const program::Program& program;
  const program::Visit& visit;
  const program::Stream& stream;
  const program::Instruction& instruction;
  std::int32_t worker;
  const ProgramMemory& memory;
  const PackedWeights& weights;

  const program::Operand& operand(std::size_t index) const { return instruction.operands[index]; }
  std::int64_t OperandColumns(std::size_t index) const {
    return operand(index).end - operand(index).begin;
  }
  DType OperandDType(std::size_t index) const {
    return program.buffers[operand(index).buffer].dtype;
  }
  template <typename T>
  RowView<T> Rows(std::size_t index) const {
    return memory.Rows<T>(operand(index));
  }

  const program::Tile& tile() const { return stream.tiles[instruction.tile]; }
  /// First panel of the tile; `expert` counts for expert tiles only.
  const std::byte* Panels(std::int64_t expert = 0) const { return TileAddress(tile(), expert); }
  const std::byte* TileAddress(const program::Tile& of, std::int64_t expert) const {
    const auto w = static_cast<std::size_t>(worker);
    const std::int64_t base =
        program.tensors[of.tensor].num_experts > 0
            ? visit.expert_base[w] +
                  (expert - program.tensors[of.tensor].first_expert) * stream.expert_stride_bytes
            : visit.weight_base[w];
    return weights.WorkerArena(worker) + base + of.offset;
  }
  /// Whether the weights of an expert are this rank's: of expert and exchange instructions.
  bool IsOwnExpert(std::int64_t expert) const {
    return expert >= instruction.imm[3] && expert < instruction.imm[4];
  }
  kernels::PanelFormat Format() const {
    return PanelFormatOf(program.tensors[tile().tensor].format);
  }

  const program::Vector& VectorInfo(std::size_t index) const {
    return program.segments[visit.segment].vectors[instruction.vectors[index]];
  }
  /// Null if the instruction names no such vector.
  template <typename T>
  const T* Vector(std::size_t index) const {
    if (instruction.vectors[index] == program::kNone) return nullptr;
    return reinterpret_cast<const T*>(weights.VectorArena() + visit.vector_base +
                                      VectorInfo(index).offset);
  }

  /// The run of a block row, and which slot of its block the row is.
  struct BlockRow {
    std::int64_t draft_run;
    std::int64_t slot;
  };
  BlockRow BlockRowOf(std::int64_t row) const {
    return {row / program.draft.block_rows, row % program.draft.block_rows};
  }
  /// The block row whose logits choose the visit's token for a drafting run.
  std::int64_t ChoosingRow(std::int64_t draft_run) const {
    return draft_run * program.draft.block_rows + program.draft.first_slot + visit.draft_slot;
  }

  /// Blocks that exist when this instruction runs: the visit's own push happens at the end of the
  /// instruction with imm[0] = 1.
  std::int64_t NumBlocks() const {
    const bool after_push = visit.pushes_block && instruction.imm[0] != 1;
    return visit.num_blocks + (after_push ? 1 : 0);
  }
  bool PushesBlock() const { return visit.pushes_block && instruction.imm[0] == 1; }

  kernels::GatedParameters Activation() const {
    return {instruction.activation == program::Activation::kSitu ? kernels::GatedActivation::kSitu
                                                                 : kernels::GatedActivation::kSilu,
            program.situ_beta, program.situ_linear_beta};
  }
};

}  // namespace megalith::exec
