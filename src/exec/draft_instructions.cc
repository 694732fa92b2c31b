#include "exec/draft_instructions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include "kernels/activation.h"
#include "kernels/numerics.h"
#include "kernels/rotary.h"

namespace megalith::exec {
namespace {

using program::Opcode;

std::int64_t Columns(const program::Operand& operand) { return operand.end - operand.begin; }

/// One instruction being run; the functions below are named after opcodes.
template <typename Act>
class DraftStep {
 public:
  DraftStep(const InstructionView& view, const DeviceMemory& device,
            const DraftKernels<Act>& kernels, const DraftScratch& scratch)
      : view_(view),
        instruction_(view.instruction),
        device_(device),
        rows_(device.rows()),
        kernels_(kernels),
        scratch_(scratch),
        trip_(device.reg(view.instruction.trip)) {}

  void CaptureResidual() const {
    if (view_.visit.capture_index < 0) return;
    const std::int64_t hidden = view_.OperandColumns(0);
    ForOwnRows([&](std::int64_t row) {
      std::copy_n(view_.Rows<Act>(0).Row(row), hidden,
                  view_.Rows<Act>(1).Row(row) + view_.visit.capture_index * hidden);
    });
  }

  void Sample() const {
    ForOwnRows([&](std::int64_t row) {
      const std::int32_t run = rows_.logit_run[static_cast<std::size_t>(row)];
      if (run < 0) return;
      const std::int32_t source = rows_.logit_rows[static_cast<std::size_t>(row)];
      const std::int64_t position = rows_.position[static_cast<std::size_t>(source)] + 1;
      *view_.Rows<std::int32_t>(1).Row(row) =
          Choose(view_.Rows<float>(0).Row(row), run, position, AdjustmentOf(run, row));
    });
  }

  /// Of a run that is longer than the ring, the positions that stay.
  void Append() const {
    const std::int64_t heads = instruction_.imm[0];
    const std::int64_t width = view_.OperandColumns(0);
    const std::int64_t dim = width / heads;
    const std::int64_t positions = view_.program.state.draft_positions;
    std::size_t run = 0;
    ForOwnRows([&](std::int64_t row) {
      const std::int64_t position = rows_.position[static_cast<std::size_t>(row)];
      while (row >= rows_.first_row[run] + rows_.runs[run].count) ++run;
      const std::int64_t end = rows_.runs[run].first_position + rows_.runs[run].count;
      if (position < end - positions) return;
      Act* entry = view_.memory.DraftCache<Act>(view_.operand(2), rows_.runs[run].slot) +
                   position % positions * 2 * width;
      WriteAngles(position, dim, scratch_.floats);
      NormAndRotate(view_.Rows<Act>(0).Row(row), heads, dim, 0, scratch_.floats, entry);
      std::copy_n(view_.Rows<Act>(1).Row(row), width, entry + width);
    });
  }

  void Embed() const {
    ForOwnRows([&](std::int64_t row) {
      const auto [draft_run, slot] = view_.BlockRowOf(row);
      const std::int32_t token =
          slot == 0 ? Anchor(draft_run, 0).token : view_.program.draft.mask_token;
      LookUp(view_, instruction_.imm[0], token, view_.Rows<Act>(1).Row(row));
    });
  }

  void Attention() const {
    const std::int64_t group = instruction_.imm[2];
    const std::int64_t heads = instruction_.imm[1] - instruction_.imm[0];
    const std::int64_t dim = view_.OperandColumns(1) / heads;
    const std::int64_t cache_width = view_.OperandColumns(3) / 2;
    const std::int64_t first_cached = instruction_.imm[0] - view_.program.sharding.first_draft_head;
    const std::int64_t block = view_.program.draft.block_rows;
    kernels::DraftAttentionArgs<Act> args{};
    args.rows = block;
    args.heads = group;
    args.head_dim = dim;
    args.q_row_stride = group * dim;
    args.q_head_stride = dim;
    args.context_stride = 2 * cache_width;
    args.capacity = view_.program.state.draft_positions;
    args.block_stride = dim;
    args.causal = instruction_.imm[4] == 1;
    args.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    args.out_head_stride = dim;
    args.out_row_stride = view_.Rows<Act>(5).stride;
    // Scratch: angles of the block's slots, rotated queries and keys of one key head's block, the
    // kernel's own.
    float* angles = scratch_.floats;
    float* position = angles + block * dim;
    Act* q = reinterpret_cast<Act*>(position);
    position += block * group * dim;
    Act* k = reinterpret_cast<Act*>(position);
    position += block * dim;
    Act* v = reinterpret_cast<Act*>(position);
    args.scratch = position + block * dim;
    args.q = q;
    args.block_k = k;
    args.block_v = v;
    for (std::int64_t draft_run = 0; draft_run < rows_.num_draft_runs; ++draft_run) {
      const Acceptance anchor = Anchor(draft_run, 4);
      const Run& run = RunOf(draft_run);
      args.end_position = anchor.position;
      args.first_position = instruction_.imm[3] == 0
                                ? 0
                                : std::max<std::int64_t>(anchor.position - instruction_.imm[3], 0);
      const Act* cache = view_.memory.DraftCache<Act>(view_.operand(3), run.slot);
      for (std::int64_t slot = 0; slot < block; ++slot) {
        WriteAngles(anchor.position + slot, dim, angles + slot * dim);
      }
      for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t slot = 0; slot < block; ++slot) {
          const std::int64_t row = draft_run * block + slot;
          const float* of_slot = angles + slot * dim;
          NormAndRotate(view_.Rows<Act>(0).Row(row) + head * group * dim, group, dim, 0, of_slot,
                        q + slot * group * dim);
          NormAndRotate(view_.Rows<Act>(1).Row(row) + head * dim, 1, dim, 1, of_slot,
                        k + slot * dim);
          std::copy_n(view_.Rows<Act>(2).Row(row) + head * dim, dim, v + slot * dim);
        }
        args.context_k = cache + (first_cached + head) * dim;
        args.context_v = args.context_k + cache_width;
        args.out = view_.Rows<Act>(5).Row(draft_run * block) + head * group * dim;
        kernels_.draft_attention(args);
      }
    }
  }

  void MarkovEmbed() const {
    const std::int32_t slot = view_.visit.draft_slot;
    const bool has_state = view_.memory.IsPresent(view_.operand(4));
    ForOwnRows([&](std::int64_t draft_run) {
      const std::int32_t previous = slot == 0
                                        ? Anchor(draft_run, 0).token
                                        : view_.Rows<std::int32_t>(1).Row(draft_run)[slot - 1];
      Act* out = view_.Rows<Act>(2).Row(draft_run);
      if (has_state) {
        const std::int64_t width = view_.OperandColumns(4);
        if (slot == 0) {
          std::fill_n(out, width, kernels::RoundTo<Act>(0.0f));
        } else {
          std::copy_n(view_.Rows<Act>(4).Row(draft_run), width, out);
        }
        out += width;
      }
      LookUp(view_, instruction_.imm[0], previous, out);
    });
  }

  void MarkovGate() const {
    ForOwnRows([&](std::int64_t draft_run) {
      const Act* embedding = view_.Rows<Act>(1).Row(draft_run);
      Act* out = view_.Rows<Act>(2).Row(draft_run);
      for (std::int64_t i = 0; i < view_.OperandColumns(2); ++i) {
        out[i] = kernels::RoundTo<Act>(kernels::Sigmoid(WithBias(draft_run, i)) *
                                       kernels::Widen(embedding[i]));
      }
    });
  }

  void MarkovRnn() const {
    const std::int64_t rank = view_.OperandColumns(2);
    ForOwnRows([&](std::int64_t draft_run) {
      const Act* state = view_.Rows<Act>(1).Row(draft_run);
      Act* out = view_.Rows<Act>(2).Row(draft_run);
      Act* next_state = view_.Rows<Act>(3).Row(draft_run);
      for (std::int64_t i = 0; i < rank; ++i) {
        const float keep = kernels::Sigmoid(WithBias(draft_run, i));
        const float candidate = kernels::Tanh(WithBias(draft_run, rank + i));
        next_state[i] =
            kernels::RoundTo<Act>(keep * kernels::Widen(state[i]) + (1.0f - keep) * candidate);
        out[i] = kernels::RoundTo<Act>(kernels::Tanh(WithBias(draft_run, 2 * rank + i)));
      }
    });
  }

  void DraftChoose() const {
    const std::int32_t slot = view_.visit.draft_slot;
    const bool has_markov = view_.memory.IsPresent(view_.operand(2));
    ForOwnRows([&](std::int64_t draft_run) {
      const std::int64_t choosing = view_.ChoosingRow(draft_run);
      const std::int32_t run = rows_.draft_run[static_cast<std::size_t>(draft_run)];
      const std::int64_t position = Anchor(draft_run, 5).position + 1 + slot;
      view_.Rows<std::int32_t>(3).Row(draft_run)[slot] = std::max(
          Choose(view_.Rows<float>(0).Row(has_markov ? draft_run : choosing), run, position, {}),
          0);
      if (view_.memory.IsPresent(view_.operand(4))) {
        view_.Rows<float>(4).Row(draft_run)[slot] = Confidence(draft_run, choosing);
      }
    });
  }

 private:
  template <typename Function>
  void ForOwnRows(Function function) const {
    for (std::int64_t row = instruction_.rows.first; row < trip_; row += instruction_.rows.step) {
      function(row);
    }
  }

  const Run& RunOf(std::int64_t draft_run) const {
    return rows_
        .runs[static_cast<std::size_t>(rows_.draft_run[static_cast<std::size_t>(draft_run)])];
  }

  /// Output `i` of a Markov head's projection (operand 0), as a linear layer rounds it.
  float WithBias(std::int64_t draft_run, std::int64_t i) const {
    return kernels::Rounded<Act>(view_.Rows<float>(0).Row(draft_run)[i] +
                                 ToFloat(view_.Vector<Bf16>(0)[i]));
  }

  /// The token a drafting run goes on from. One that could not be chosen ends the run; its drafts
  /// do not matter, but have to come from somewhere.
  Acceptance Anchor(std::int64_t draft_run, std::size_t tokens_operand) const {
    Acceptance anchor = device_.Accept(
        static_cast<std::size_t>(rows_.draft_run[static_cast<std::size_t>(draft_run)]),
        view_.Rows<const std::int32_t>(tokens_operand));
    anchor.token = std::max(anchor.token, 0);
    return anchor;
  }

  /// `row`: of logits.
  kernels::LogitAdjustment AdjustmentOf(std::int32_t run, std::int64_t row) const {
    const auto index = static_cast<std::size_t>(run);
    const auto adjustments = rows_.runs[index].adjustments;
    if (adjustments.empty()) return {};
    return adjustments[static_cast<std::size_t>(row - rows_.first_logit_row[index])];
  }

  std::int32_t Choose(const float* logits, std::int32_t run, std::int64_t position,
                      const kernels::LogitAdjustment& adjustment) const {
    const auto vocab_size = static_cast<std::size_t>(view_.program.vocab_size);
    return kernels::Sample({logits, vocab_size}, rows_.runs[static_cast<std::size_t>(run)].sampling,
                           position, *scratch_.sampling, adjustment)
        .token;
  }

  /// [dim / 2] cosines, then as many sines.
  void WriteAngles(std::int64_t position, std::int64_t dim, float* angles) const {
    kernels::RotaryAngles(position, instruction_.scalar[1], dim, angles, angles + dim / 2);
  }

  /// Vector `weight` norms the heads; the result is rotated by the angles of its position.
  void NormAndRotate(const Act* in, std::int64_t heads, std::int64_t dim, std::size_t weight,
                     const float* angles, Act* out) const {
    kernels::HeadNormRotaryArgs<Act> args{};
    args.heads = heads;
    args.head_dim = dim;
    args.in = in;
    args.in_stride = dim;
    args.weight = view_.Vector<Bf16>(weight);
    args.eps = instruction_.scalar[0];
    args.cos = angles;
    args.sin = angles + dim / 2;
    args.out = out;
    args.out_stride = dim;
    kernels_.head_norm_rotary(args);
  }

  float Confidence(std::int64_t draft_run, std::int64_t block_row) const {
    const Bf16* weight = view_.Vector<Bf16>(0);
    const std::int64_t hidden = view_.OperandColumns(1);
    double sum = ToFloat(*view_.Vector<Bf16>(1));
    const auto add = [&](const Act* x, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) {
        sum += double{kernels::Widen(x[i])} * double{ToFloat(weight[i])};
      }
      weight += count;
    };
    add(view_.Rows<Act>(1).Row(block_row), hidden);
    if (instruction_.imm[0] == 1) {
      add(view_.Rows<Act>(2).Row(draft_run), view_.OperandColumns(2));
    }
    return static_cast<float>(sum);
  }

  const InstructionView& view_;
  const program::Instruction& instruction_;
  const DeviceMemory& device_;
  const StepRows& rows_;
  const DraftKernels<Act>& kernels_;
  const DraftScratch& scratch_;
  std::int64_t trip_;
};

}  // namespace

std::int64_t DraftScratchFloats(const program::Program& program,
                                const program::Instruction& instruction) {
  const auto& operands = instruction.operands;
  switch (instruction.opcode) {
    case Opcode::kDraftAppend:
      return Columns(operands[0]) / instruction.imm[0];
    case Opcode::kDraftAttention: {
      const std::int64_t group = instruction.imm[2];
      const std::int64_t dim = Columns(operands[1]) / (instruction.imm[1] - instruction.imm[0]);
      const std::int64_t block = program.draft.block_rows;
      return block * (group + 3) * dim + kernels::DraftAttentionScratchFloats(block, group, dim);
    }
    default:
      return 0;
  }
}

bool ChoosesTokens(Opcode opcode) {
  return opcode == Opcode::kSample || opcode == Opcode::kDraftChoose;
}

template <typename Act>
void LookUp(const InstructionView& view, std::int64_t table, std::int64_t token, Act* out) {
  const Bf16* row = view.weights.TableRow(table, token);
  const std::int64_t columns = view.program.tables[static_cast<std::size_t>(table)].columns;
  if constexpr (std::is_same_v<Act, Bf16>) {
    std::memcpy(out, row, static_cast<std::size_t>(columns) * sizeof(Bf16));
  } else {
    for (std::int64_t i = 0; i < columns; ++i) out[i] = ToFloat(row[i]);
  }
}

void AddDraftBase(const InstructionView& view, std::int64_t draft_run, const float* acc,
                  std::int64_t first_output, std::int64_t outputs) {
  const float* base = view.Rows<float>(2).Row(view.ChoosingRow(draft_run)) + first_output;
  float* out = view.Rows<float>(1).Row(draft_run) + first_output;
  for (std::int64_t i = 0; i < outputs; ++i) out[i] = acc[i] + base[i];
}

template <typename Act>
void ExecuteDraft(const InstructionView& view, const DeviceMemory& device,
                  const DraftKernels<Act>& kernels, const DraftScratch& scratch) {
  const DraftStep<Act> step(view, device, kernels, scratch);
  switch (view.instruction.opcode) {
    case Opcode::kCaptureResidual:
      step.CaptureResidual();
      return;
    case Opcode::kSample:
      step.Sample();
      return;
    case Opcode::kDraftAppend:
      step.Append();
      return;
    case Opcode::kDraftEmbed:
      step.Embed();
      return;
    case Opcode::kDraftAttention:
      step.Attention();
      return;
    case Opcode::kMarkovEmbed:
      step.MarkovEmbed();
      return;
    case Opcode::kDraftChoose:
      step.DraftChoose();
      return;
    case Opcode::kMarkovGate:
      step.MarkovGate();
      return;
    case Opcode::kMarkovRnn:
      step.MarkovRnn();
      return;
    default:
      return;
  }
}

template void ExecuteDraft<Bf16>(const InstructionView&, const DeviceMemory&,
                                 const DraftKernels<Bf16>&, const DraftScratch&);
template void ExecuteDraft<float>(const InstructionView&, const DeviceMemory&,
                                  const DraftKernels<float>&, const DraftScratch&);
template void LookUp<Bf16>(const InstructionView&, std::int64_t, std::int64_t, Bf16*);
template void LookUp<float>(const InstructionView&, std::int64_t, std::int64_t, float*);

}  // namespace megalith::exec
