#pragma once

#include "exec/instruction_view.h"
#include "kernels/kernel_table.h"
#include "program/program.h"

namespace megalith::exec {

/// What all kernel calls of an `mla_attention` or `mla_partial` instruction have in common. Left to
/// the caller: heads, rows and where they begin, output, scratch.
template <typename Act>
kernels::MlaAttentionArgs<Act> MlaArguments(const InstructionView& view) {
  const std::int64_t heads = view.instruction.imm[1] - view.instruction.imm[0];
  kernels::MlaAttentionArgs<Act> args{};
  args.rank = view.OperandColumns(1) / heads;
  args.extra = view.OperandColumns(2) - args.rank;
  args.cache = view.memory.CachePool<Act>(view.operand(2), view.visit.state_index);
  args.page_tokens = view.program.state.page_tokens;
  args.split = program::kAttentionSplit;
  args.chunk = program::kAttentionChunk;
  args.scale = view.instruction.scalar[0];
  args.latent_query_stride = args.rank;
  args.extra_query_stride = view.OperandColumns(0) / heads;
  args.extra_query_row_stride = view.Rows<Act>(0).stride;
  args.latent_query_row_stride = view.Rows<float>(1).stride;
  args.out_row_stride = view.Rows<float>(3).stride;
  return args;
}

}  // namespace megalith::exec
