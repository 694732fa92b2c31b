#pragma once

// Attention that workers share out over the context: the kernel calls that an instruction consists
// of.

#include <algorithm>
#include <cstdint>

#include "base/align.h"
#include "exec/device_memory.h"
#include "exec/instruction_view.h"
#include "exec/mla_arguments.h"
#include "kernels/kernel_table.h"
#include "program/attention_division.h"
#include "program/program.h"

namespace megalith::exec {

/// Calls function(kernel arguments, chunk) for everything in the share of an `mla_partial`
/// instruction, of every run: all but the scratch is filled in.
template <typename Act, typename Function>
void ForPartials(const InstructionView& view, const DeviceMemory& device, Function function) {
  const std::int64_t heads = view.instruction.imm[1] - view.instruction.imm[0];
  const std::int64_t share = view.instruction.imm[3];
  const RowView<Act> query = view.Rows<Act>(0);
  const RowView<float> latent_query = view.Rows<float>(1), partials = view.Rows<float>(3);
  kernels::MlaAttentionArgs<Act> args = MlaArguments<Act>(view);
  args.out_stride = program::PartialStride(args.rank);
  const StepRows& rows = device.rows();
  for (std::size_t i = 0; i < rows.runs.size(); ++i) {
    const Run& run = rows.runs[i];
    args.page_table = device.sequences().PageTable(run.slot);
    const program::AttentionDivision division(heads, run.first_position + run.count,
                                              view.instruction.imm[4]);
    const std::int64_t first_item = division.FirstItem(share);
    const std::int64_t end_item = division.FirstItem(share + 1);
    for (std::int64_t item = first_item; item < end_item; item += args.heads) {
      const std::int64_t head = item % heads;
      args.heads = std::min(heads - head, end_item - item);
      for (std::int64_t done = 0; done < run.count; done += args.rows) {
        const std::int64_t row = rows.first_row[i] + done;
        args.rows = std::min(run.count - done, kernels::kMaxMlaRows);
        args.num_positions = run.first_position + done + 1;
        args.latent_query = latent_query.Row(row) + head * args.rank;
        args.extra_query = query.Row(row) + (head + 1) * args.extra_query_stride - args.extra;
        args.out = partials.Row(row) + (item - first_item) * args.out_stride;
        function(args, item / heads);
      }
    }
  }
}

/// Calls function(kernel arguments) for every row and head of an `mla_merge` instruction.
/// `partials`: room for as many pointers as the longest sequence has chunks.
template <typename Function>
void ForMerges(const InstructionView& view, const DeviceMemory& device, const float** partials,
               Function function) {
  const auto& imm = view.instruction.imm;
  const RowView<float> of_shares = view.Rows<float>(0), out = view.Rows<float>(1);
  const std::int64_t shares = imm[4];
  const std::int64_t share_columns = view.OperandColumns(0) / shares;
  kernels::MlaMergeArgs args{};
  args.rank = view.OperandColumns(1) / (imm[1] - imm[0]);
  args.partials = partials;
  const StepRows& rows = device.rows();
  for (std::size_t i = 0; i < rows.runs.size(); ++i) {
    const Run& run = rows.runs[i];
    const program::AttentionDivision division(imm[3] - imm[2], run.first_position + run.count,
                                              shares);
    for (std::int32_t j = 0; j < run.count; ++j) {
      const std::int64_t row = rows.first_row[i] + j;
      args.num_chunks = CeilDiv<std::int64_t>(run.first_position + j + 1, program::kAttentionChunk);
      for (std::int32_t head = imm[0]; head < imm[1]; ++head) {
        for (std::int64_t chunk = 0; chunk < args.num_chunks; ++chunk) {
          const std::int64_t item = division.Item(chunk, head - imm[2]);
          const std::int64_t share = division.ShareOf(item);
          partials[chunk] = of_shares.Row(row) + share * share_columns +
                            (item - division.FirstItem(share)) * program::PartialStride(args.rank);
        }
        args.out = out.Row(row) + (head - imm[0]) * args.rank;
        function(args);
      }
    }
  }
}

}  // namespace megalith::exec
