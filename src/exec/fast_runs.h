#pragma once

// Which rows of a step take the fast form of an instruction that offers it.

#include <cstdint>

#include "exec/device_memory.h"
#include "exec/instruction_view.h"
#include "kernels/kernel_table.h"
#include "program/program.h"

namespace megalith::exec {

/// A property of the run alone: its bits do not depend on what else is in the step.
inline bool IsFast(const Run& run) {
  return run.count >= program::kFastRunRows && run.num_drafts == 0;
}

inline bool HasFastRun(const StepRows& rows) {
  for (const Run& run : rows.runs) {
    if (IsFast(run)) return true;
  }
  return false;
}

/// Calls function(first row, rows) for the longest stretches of rows without a fast run.
template <typename Function>
void ForOtherRows(const StepRows& rows, Function function) {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < rows.runs.size(); ++i) {
    if (!IsFast(rows.runs[i])) continue;
    const std::int64_t begin = rows.first_row[i];
    if (begin > first) function(first, begin - first);
    first = begin + rows.runs[i].count;
  }
  if (first < rows.num_rows) function(first, rows.num_rows - first);
}

/// Calls function(kernel arguments) for every head and fast run of an `mla_expanded` instruction:
/// all but the matmul and the scratch are filled in.
template <typename Function>
void ForHeadsOfFastRuns(const InstructionView& view, const DeviceMemory& device,
                        Function function) {
  const std::int64_t heads = view.instruction.imm[1] - view.instruction.imm[0];
  const std::int64_t query_width = view.OperandColumns(0) / heads;
  const std::int64_t key_panels = view.OperandColumns(1) / heads;
  const std::int64_t value_panels = view.OperandColumns(2) / heads;
  const auto query = view.Rows<Bf16>(0), out = view.Rows<Bf16>(5);
  const bool is_gated = view.memory.IsPresent(view.operand(4));
  const RowView<Bf16> gate = is_gated ? view.Rows<Bf16>(4) : RowView<Bf16>{};
  kernels::MlaExpandedArgs args{};
  args.query_stride = query.stride;
  args.rank = view.instruction.imm[2];
  args.extra = view.OperandColumns(3) - args.rank;
  args.nope = query_width - args.extra;
  args.value_dim = view.OperandColumns(5) / heads;
  args.cache = view.memory.CachePool<Bf16>(view.operand(3), view.visit.state_index);
  args.page_tokens = view.program.state.page_tokens;
  args.split = program::kAttentionSplit;
  args.scale = view.instruction.scalar[0];
  args.gate_stride = gate.stride;
  args.out_stride = out.stride;
  const StepRows& rows = device.rows();
  for (std::size_t i = 0; i < rows.runs.size(); ++i) {
    const Run& run = rows.runs[i];
    if (!IsFast(run)) continue;
    const std::int64_t first = rows.first_row[i];
    args.rows = run.count;
    args.first_position = run.first_position;
    args.page_table = device.sequences().PageTable(run.slot);
    for (std::int64_t head = 0; head < heads; ++head) {
      args.query = query.Row(first) + head * query_width;
      args.key_weights = view.Rows<Bf16>(1).data + head * key_panels;
      args.value_weights = view.Rows<Bf16>(2).data + head * value_panels;
      args.gate = is_gated ? gate.Row(first) + head * args.value_dim : nullptr;
      args.out = out.Row(first) + head * args.value_dim;
      function(args);
    }
  }
}

}  // namespace megalith::exec
