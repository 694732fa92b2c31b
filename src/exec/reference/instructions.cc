#include "exec/reference/instructions.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/align.h"
#include "exec/divided_attention.h"
#include "exec/draft_instructions.h"
#include "exec/fast_runs.h"
#include "exec/mla_arguments.h"
#include "exec/recurrent_states.h"
#include "exec/route_plan.h"
#include "kernels/activation.h"
#include "kernels/reference/reference.h"

namespace megalith::exec::reference {
namespace {

namespace scalar = kernels::reference;
using program::Epilogue;
using program::Opcode;
using program::Register;

/// One instruction being run; the functions below are named after opcodes.
template <typename Act>
struct Step {
  const InstructionView& view;
  DeviceMemory& device;
  kernels::DotNumerics numerics;

  const program::Instruction& instruction() const { return view.instruction; }
  const StepRows& rows() const { return device.rows(); }
  std::int64_t trip() const { return device.reg(instruction().trip); }
  std::int64_t head_begin() const { return instruction().imm[0]; }
  std::int64_t num_heads() const { return instruction().imm[1] - instruction().imm[0]; }

  /// Calls function(row) for the instruction's share of the rows.
  template <typename Function>
  void ForOwnRows(Function function) const {
    for (std::int64_t row = instruction().rows.first; row < trip();
         row += instruction().rows.step) {
      function(row);
    }
  }
};

/// Calls function(row) for all rows of the step, or for those of no fast run.
template <typename Act, typename Function>
void ForRows(const Step<Act>& step, bool skips_fast_runs, Function function) {
  const auto all = [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t row = first; row < first + count; ++row) function(row);
  };
  if (skips_fast_runs) {
    ForOtherRows(step.rows(), all);
  } else {
    all(0, step.trip());
  }
}

template <typename Act>
void Embed(const Step<Act>& step) {
  const auto prefix = step.view.template Rows<Act>(1);
  step.ForOwnRows([&](std::int64_t row) {
    const std::int32_t token = step.rows().token[static_cast<std::size_t>(row)];
    LookUp(step.view, step.instruction().imm[0], token, prefix.Row(row));
  });
}

template <typename Act>
void AttnResNorm(const Step<Act>& step) {
  const InstructionView& view = step.view;
  const std::int64_t hidden = view.OperandColumns(0);
  const auto prefix = view.Rows<Act>(0);
  const auto out = view.Rows<Act>(2);
  const std::int64_t num_blocks = view.NumBlocks();
  const bool gathers = step.instruction().imm[1] == 1;
  std::vector<float> scratch(
      static_cast<std::size_t>(kernels::AttnResScratchFloats(num_blocks + 1)));
  std::vector<const Act*> sources(static_cast<std::size_t>(num_blocks) + 1);
  step.ForOwnRows([&](std::int64_t row) {
    const std::int64_t source =
        gathers ? step.rows().logit_rows[static_cast<std::size_t>(row)] : row;
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      sources[static_cast<std::size_t>(block)] = view.Rows<Act>(1).Row(source) + block * hidden;
    }
    sources[static_cast<std::size_t>(num_blocks)] = prefix.Row(source);
    kernels::AttnResNormArgs<Act> args{};
    args.sources = sources.data();
    args.num_sources = num_blocks + 1;
    args.hidden = hidden;
    args.fold = view.Vector<float>(0);
    args.norm_weight = view.Vector<Bf16>(1);
    args.eps = step.instruction().scalar[0];
    args.out = out.Row(row);
    args.scratch = scratch.data();
    scalar::AttnResNorm<Act>(args);
  });
}

template <typename Act>
void PushBlock(const Step<Act>& step) {
  const InstructionView& view = step.view;
  if (!view.visit.pushes_block) return;
  const std::int64_t hidden = view.OperandColumns(0);
  step.ForOwnRows([&](std::int64_t row) {
    std::copy_n(view.Rows<Act>(0).Row(row), hidden,
                view.Rows<Act>(1).Row(row) + view.visit.num_blocks * hidden);
  });
}

template <typename Act>
void RmsNorm(const Step<Act>& step) {
  const auto in = step.view.template Rows<Act>(0);
  const auto out = step.view.template Rows<Act>(1);
  step.ForOwnRows([&](std::int64_t row) {
    kernels::RmsNormArgs<Act> args{};
    args.in = in.Row(row);
    args.count = step.view.OperandColumns(0);
    args.weight = step.view.template Vector<Bf16>(0);
    args.eps = step.instruction().scalar[0];
    args.out = out.Row(row);
    scalar::RmsNorm<Act>(args);
  });
}

/// acc = all panels of the tile times one row.
template <typename Act, typename X>
void MultiplyRow(const Step<Act>& step, std::int64_t expert, const X* x, std::vector<float>* acc) {
  const program::Tile& tile = step.view.tile();
  acc->assign(static_cast<std::size_t>(tile.num_panels * kernels::kPanelOutputs), 0.0f);
  kernels::MatmulArgs<X> args{};
  args.panels = step.view.Panels(expert);
  args.num_panels = tile.num_panels;
  args.inputs = tile.num_inputs;
  args.x = x;
  args.x_stride = tile.num_inputs;
  args.rows = 1;
  args.acc = acc->data();
  args.acc_stride = tile.num_panels * kernels::kPanelOutputs;
  scalar::Matmul<X>(args, step.view.Format(), step.numerics);
}

template <typename Act>
void ApplyEpilogue(const Step<Act>& step, std::int64_t row, const float* acc) {
  const InstructionView& view = step.view;
  const std::int64_t count = view.tile().num_outputs;
  if (step.instruction().epilogue == Epilogue::kAddDraftBase) {
    AddDraftBase(view, row, acc, 0, count);
    return;
  }
  if (view.OperandDType(1) == DType::kF32 && step.instruction().epilogue == Epilogue::kStore) {
    std::copy_n(acc, count, view.Rows<float>(1).Row(row));
    return;
  }
  Act* out = view.Rows<Act>(1).Row(row);
  switch (step.instruction().epilogue) {
    case Epilogue::kStore:
      scalar::Store<Act>(acc, count, out);
      break;
    case Epilogue::kGatedPair:
      scalar::GatedPair<Act>({acc, count, view.Activation(), out});
      break;
    case Epilogue::kAddResidual:
      if (view.PushesBlock()) {
        scalar::Store<Act>(acc, count, out);
      } else {
        scalar::AddResidual<Act>(acc, view.Rows<Act>(3).Row(row), count, out);
      }
      break;
    case Epilogue::kAddSharedResidual:
      scalar::AddSharedResidual<Act>(acc, view.Rows<float>(2).Row(row), view.Rows<Act>(3).Row(row),
                                     count, out);
      break;
    case Epilogue::kSigmoidGate:
      scalar::SigmoidGate<Act>(acc, view.Rows<Act>(2).Row(row), count, out);
      break;
    case Epilogue::kAddDraftBase:
      break;
  }
}

template <typename Act>
void Matmul(const Step<Act>& step) {
  std::vector<float> acc;
  const bool skips_fast_runs = step.instruction().imm[1] == 1;
  if (skips_fast_runs) {
    std::memcpy(static_cast<void*>(step.view.template Rows<Bf16>(4).data), step.view.Panels(),
                static_cast<std::size_t>(step.view.tile().bytes));
  }
  ForRows(step, skips_fast_runs, [&](std::int64_t row) {
    if (step.view.OperandDType(0) == DType::kF32) {
      MultiplyRow(step, 0, step.view.template Rows<float>(0).Row(row), &acc);
    } else {
      MultiplyRow(step, 0, step.view.template Rows<Bf16>(0).Row(row), &acc);
    }
    ApplyEpilogue(step, row, acc.data());
  });
}

template <typename Act>
void KdaHead(const Step<Act>& step, std::int64_t local_head, const Run& run,
             std::int64_t first_row) {
  const InstructionView& view = step.view;
  const std::int64_t dim = view.OperandColumns(0) / step.num_heads();
  const std::int64_t head = step.head_begin() + local_head;
  const std::int64_t value_stride = RoundUp<std::int64_t>(dim, kernels::kLanes);
  const std::int64_t kernel = view.VectorInfo(0).taps;
  const auto column = [&](std::size_t index, std::int64_t per_head) {
    const auto rows = view.Rows<Act>(index);
    return rows.Row(first_row) + local_head * per_head;
  };
  kernels::KdaHeadArgs<Act> args{};
  args.rows = run.count;
  args.head_dim = dim;
  args.conv_kernel = kernel;
  args.q = column(0, dim);
  args.k = column(1, dim);
  args.v = column(2, dim);
  args.gate = column(3, dim);
  args.decay = column(4, dim);
  args.beta = column(5, 1);
  args.q_stride = view.Rows<Act>(0).stride;
  args.k_stride = view.Rows<Act>(1).stride;
  args.v_stride = view.Rows<Act>(2).stride;
  args.gate_stride = view.Rows<Act>(3).stride;
  args.decay_stride = view.Rows<Act>(4).stride;
  args.beta_stride = view.Rows<Act>(5).stride;
  args.q_taps = view.Vector<float>(0) + head * dim;
  args.k_taps = view.Vector<float>(1) + head * dim;
  args.v_taps = view.Vector<float>(2) + head * dim;
  args.taps_stride = view.VectorInfo(0).count / kernel;
  args.a_log = view.Vector<float>(3)[head];
  args.dt_bias = view.Vector<float>(4) + head * dim;
  args.o_norm = view.Vector<float>(5);
  args.eps = step.instruction().scalar[0];
  args.gate_lower_bound = step.instruction().scalar[1];
  args.zero_state = run.first_position == 0;
  const RecurrentStates<Act> states(view, step.device, run);
  const std::int64_t first_state = local_head * dim * value_stride;
  const std::int64_t first_history = local_head * (kernel - 1) * 3 * dim;
  std::vector<float*> draft_states;
  std::vector<Act*> draft_histories;
  for (std::int32_t i = 1; i <= run.num_drafts; ++i) {
    draft_states.push_back(states.state(i) + first_state);
    draft_histories.push_back(states.history(i) + first_history);
  }
  args.num_drafts = run.num_drafts;
  args.draft_states = draft_states.data();
  args.draft_histories = draft_histories.data();
  args.state = states.state(0) + first_state;
  args.state_stride = value_stride;
  args.q_history = states.history(0) + first_history;
  args.k_history = args.q_history + dim;
  args.v_history = args.k_history + dim;
  args.history_stride = 3 * dim;
  args.out = column(6, dim);
  args.out_stride = view.Rows<Act>(6).stride;
  if (step.instruction().imm[2] == 1 && IsFast(run)) {
    args.first_chunk_rows = kernels::kKdaChunkRows - run.first_position % kernels::kKdaChunkRows;
    scalar::KdaChunks<Act>(args);
    return;
  }
  std::vector<float> scratch(static_cast<std::size_t>(kernels::KdaScratchFloats(dim)));
  args.scratch = scratch.data();
  scalar::KdaHead<Act>(args);
}

template <typename Act>
void Kda(const Step<Act>& step) {
  for (std::size_t run = 0; run < step.rows().runs.size(); ++run) {
    for (std::int64_t head = 0; head < step.num_heads(); ++head) {
      KdaHead(step, head, step.rows().runs[run], step.rows().first_row[run]);
    }
  }
}

template <typename Act>
void MlaAppend(const Step<Act>& step) {
  const InstructionView& view = step.view;
  const std::int64_t rank = step.instruction().imm[0];
  const std::int64_t page_tokens = view.program.state.page_tokens;
  const auto in = view.Rows<Act>(0);
  Act* pool = view.memory.CachePool<Act>(view.operand(1), view.visit.state_index);
  const std::int64_t stride = view.memory.RowStride(view.operand(1));
  step.ForOwnRows([&](std::int64_t row) {
    const std::int32_t position = step.rows().position[static_cast<std::size_t>(row)];
    const std::int32_t slot = step.rows().slot[static_cast<std::size_t>(row)];
    const std::int64_t page = step.device.sequences().PageTable(slot)[position / page_tokens];
    Act* out = pool + (page * page_tokens + position % page_tokens) * stride;
    kernels::RmsNormArgs<Act> args{};
    args.in = in.Row(row);
    args.count = rank;
    args.weight = view.Vector<Bf16>(0);
    args.eps = step.instruction().scalar[0];
    args.out = out;
    scalar::RmsNorm<Act>(args);
    std::copy_n(in.Row(row) + rank, view.OperandColumns(0) - rank, out + rank);
  });
}

template <typename Act>
void MlaAttention(const Step<Act>& step) {
  const InstructionView& view = step.view;
  kernels::MlaAttentionArgs<Act> args = MlaArguments<Act>(view);
  args.heads = step.num_heads();
  args.out_stride = args.rank;
  std::vector<float> scratch(static_cast<std::size_t>(
      kernels::MlaScratchFloats(args.heads, args.rank, args.extra, args.split)));
  args.scratch = scratch.data();
  ForRows(step, step.instruction().imm[2] == 1, [&](std::int64_t row) {
    args.page_table =
        step.device.sequences().PageTable(step.rows().slot[static_cast<std::size_t>(row)]);
    args.num_positions = step.rows().position[static_cast<std::size_t>(row)] + 1;
    args.extra_query = view.Rows<Act>(0).Row(row) + args.extra_query_stride - args.extra;
    args.latent_query = view.Rows<float>(1).Row(row);
    args.out = view.Rows<float>(3).Row(row);
    scalar::MlaAttention<Act>(args);
  });
}

template <typename Act>
void MlaPartial(const Step<Act>& step) {
  const std::int64_t rank = step.view.OperandColumns(1) / step.num_heads();
  const std::int64_t extra = step.view.OperandColumns(2) - rank;
  std::vector<float> scratch(static_cast<std::size_t>(
      kernels::MlaPartialScratchFloats(step.num_heads(), rank, extra, program::kAttentionSplit)));
  ForPartials<Act>(step.view, step.device,
                   [&](kernels::MlaAttentionArgs<Act>& args, std::int64_t chunk) {
                     args.scratch = scratch.data();
                     scalar::MlaPartial<Act>(args, chunk);
                   });
}

template <typename Act>
void MlaMerge(const Step<Act>& step) {
  std::vector<const float*> partials(static_cast<std::size_t>(
      CeilDiv<std::int64_t>(step.view.program.state.max_positions, program::kAttentionChunk)));
  ForMerges(step.view, step.device, partials.data(), scalar::MlaMerge);
}

template <typename Act>
void MlaExpanded(const Step<Act>& step) {
  ForHeadsOfFastRuns(step.view, step.device, [&](const kernels::MlaExpandedArgs& args) {
    scalar::MlaExpanded(args, step.numerics);
  });
}

template <typename Act>
void RouterTopK(const Step<Act>& step) {
  const InstructionView& view = step.view;
  const auto& imm = step.instruction().imm;
  kernels::RouterTopKArgs args{};
  args.bias = view.Vector<float>(0);
  args.num_experts = view.OperandColumns(0);
  args.top_k = imm[0];
  args.renormalize = imm[1] == 1;
  args.softmax = imm[2] == 1;
  args.num_groups = imm[3];
  args.topk_groups = imm[4];
  args.scaling_factor = step.instruction().scalar[0];
  std::vector<float> scratch(static_cast<std::size_t>(2 * args.num_experts + args.num_groups));
  args.scratch = scratch.data();
  step.ForOwnRows([&](std::int64_t row) {
    args.logits = view.Rows<float>(0).Row(row);
    args.ids = view.Rows<std::int32_t>(1).Row(row);
    args.weights = view.Rows<float>(2).Row(row);
    scalar::RouterTopK(args);
  });
}

RoutePlan PlanOf(const InstructionView& view, std::size_t operand) {
  return RoutePlan::FromColumns(view.Rows<std::int32_t>(operand).data, view.instruction.imm[0],
                                view.OperandColumns(operand));
}

template <typename Act>
Status BuildPlan(const Step<Act>& step) {
  const InstructionView& view = step.view;
  const auto ids = view.Rows<std::int32_t>(0);
  const auto weights = view.Rows<float>(1);
  const std::int64_t active = PlanOf(view, 2).Build(
      ids.data, ids.stride, weights.data, weights.stride, step.trip(), step.instruction().imm[1]);
  if (active < 0) return Fail(ErrorCode::kInternal, "route plan: expert id out of range");
  const std::int64_t bound =
      view.program.registers[static_cast<std::size_t>(Register::kActiveExperts)].max_value;
  if (active > bound) {
    return Fail(ErrorCode::kInternal, "route plan: {} active experts, at most {} expected", active,
                bound);
  }
  step.device.SetActiveExperts(active);
  return {};
}

template <typename Act>
void ExpertGateUp(const Step<Act>& step) {
  const InstructionView& view = step.view;
  const RoutePlan plan = PlanOf(view, 1);
  std::vector<float> acc;
  for (std::int64_t active = 0; active < step.trip(); ++active) {
    if (!view.IsOwnExpert(plan.Expert(active))) continue;
    for (std::int32_t i = 0; i < plan.NumPairs(active); ++i) {
      const Act* x = view.Rows<Act>(0).Row(plan.Rows(active)[i]);
      MultiplyRow(step, plan.Expert(active), x, &acc);
      Act* out = view.Rows<Act>(2).Row(plan.FirstPair(active) + i);
      scalar::GatedPair<Act>({acc.data(), view.tile().num_outputs, view.Activation(), out});
    }
  }
}

template <typename Act>
void ExpertDown(const Step<Act>& step) {
  const InstructionView& view = step.view;
  const RoutePlan plan = PlanOf(view, 1);
  const std::int64_t count = view.tile().num_outputs;
  std::vector<float> acc;
  std::vector<float> sum;
  // Row by row; a row's experts in ascending order.
  for (std::int64_t row = 0; row < step.rows().num_rows; ++row) {
    sum.assign(static_cast<std::size_t>(count), 0.0f);
    for (std::int64_t active = 0; active < step.trip(); ++active) {
      for (std::int32_t i = 0; i < plan.NumPairs(active); ++i) {
        if (plan.Rows(active)[i] != row) continue;
        const Act* x = view.Rows<Act>(0).Row(plan.FirstPair(active) + i);
        MultiplyRow(step, plan.Expert(active), x, &acc);
        scalar::WeightedAdd<Act>(acc.data(), plan.Weights(active)[i], count, sum.data());
      }
    }
    scalar::Store<Act>(sum.data(), count, view.Rows<Act>(2).Row(row));
  }
}

template <typename Act>
void ExpertOut(const Step<Act>& step) {
  const InstructionView& view = step.view;
  const RoutePlan plan = PlanOf(view, 1);
  std::vector<float> acc;
  for (std::int64_t active = 0; active < step.trip(); ++active) {
    if (!view.IsOwnExpert(plan.Expert(active))) continue;
    for (std::int32_t i = 0; i < plan.NumPairs(active); ++i) {
      const std::int64_t pair = plan.FirstPair(active) + i;
      MultiplyRow(step, plan.Expert(active), view.Rows<Act>(0).Row(pair), &acc);
      scalar::Store<Act>(acc.data(), view.tile().num_outputs, view.Rows<Act>(2).Row(pair));
    }
  }
}

template <typename Act>
void ExpertSum(const Step<Act>& step) {
  const InstructionView& view = step.view;
  const RoutePlan plan = PlanOf(view, 1);
  const std::int64_t count = view.OperandColumns(2);
  const std::int64_t num_active = step.device.reg(Register::kActiveExperts);
  std::vector<float> sum;
  step.ForOwnRows([&](std::int64_t row) {
    sum.assign(static_cast<std::size_t>(count), 0.0f);
    for (std::int64_t active = 0; active < num_active; ++active) {
      for (std::int32_t i = 0; i < plan.NumPairs(active); ++i) {
        if (plan.Rows(active)[i] != row) continue;
        const Act* in = view.Rows<Act>(2).Row(plan.FirstPair(active) + i);
        std::vector<float> values(static_cast<std::size_t>(count));
        std::transform(in, in + count, values.begin(), [](Act x) { return kernels::Widen(x); });
        scalar::WeightedAdd<Act>(values.data(), plan.Weights(active)[i], count, sum.data());
      }
    }
    scalar::Store<Act>(sum.data(), count, view.Rows<Act>(3).Row(row));
  });
}

template <typename Act>
void Draft(const Step<Act>& step) {
  std::vector<float> floats(
      static_cast<std::size_t>(DraftScratchFloats(step.view.program, step.instruction())));
  kernels::SamplingScratch sampling(
      ChoosesTokens(step.instruction().opcode) ? step.view.program.vocab_size : 0);
  ExecuteDraft<Act>(step.view, step.device,
                    {scalar::HeadNormRotary<Act>, scalar::DraftAttention<Act>},
                    {floats.data(), &sampling});
}

}  // namespace

template <typename Act>
Status Execute(const InstructionView& view, DeviceMemory* device, ExchangePort* exchanges,
               kernels::DotNumerics numerics) {
  const Step<Act> step{view, *device, numerics};
  switch (view.instruction.opcode) {
    case Opcode::kWait:
    case Opcode::kStepBegin:
    case Opcode::kStepEnd:
    case Opcode::kFetch:
    case Opcode::kFetchNext:
      return {};
    case Opcode::kEmbed:
      Embed(step);
      return {};
    case Opcode::kAttnResNorm:
      AttnResNorm(step);
      return {};
    case Opcode::kPushBlock:
      PushBlock(step);
      return {};
    case Opcode::kRmsNorm:
      RmsNorm(step);
      return {};
    case Opcode::kMatmul:
      Matmul(step);
      return {};
    case Opcode::kKda:
      Kda(step);
      return {};
    case Opcode::kMlaAppend:
      MlaAppend(step);
      return {};
    case Opcode::kMlaAttention:
      MlaAttention(step);
      return {};
    case Opcode::kMlaPartial:
      MlaPartial(step);
      return {};
    case Opcode::kMlaMerge:
      MlaMerge(step);
      return {};
    case Opcode::kMlaExpanded:
      MlaExpanded(step);
      return {};
    case Opcode::kRouterTopK:
      RouterTopK(step);
      return {};
    case Opcode::kRoutePlan:
      return BuildPlan(step);
    case Opcode::kExpertGateUp:
      ExpertGateUp(step);
      return {};
    case Opcode::kExpertDown:
      if (view.instruction.imm[2] == 1) {
        ExpertOut(step);
      } else {
        ExpertDown(step);
      }
      return {};
    case Opcode::kExpertSum:
      ExpertSum(step);
      return {};
    case Opcode::kExchangeFill:
    case Opcode::kExchangePublish:
    case Opcode::kExchangeReceive:
      if (const char* failure = exchanges->Run(view, *device, [] { return true; })) {
        return Fail(ErrorCode::kInternal, "{}: {}", program::Info(view.instruction.opcode).name,
                    failure);
      }
      return {};
    case Opcode::kCaptureResidual:
    case Opcode::kSample:
    case Opcode::kDraftAppend:
    case Opcode::kDraftEmbed:
    case Opcode::kDraftAttention:
    case Opcode::kMarkovEmbed:
    case Opcode::kDraftChoose:
    case Opcode::kMarkovGate:
    case Opcode::kMarkovRnn:
      Draft(step);
      return {};
  }
  return Fail(ErrorCode::kInternal, "opcode {} has no handler",
              static_cast<int>(view.instruction.opcode));
}

template Status Execute<Bf16>(const InstructionView&, DeviceMemory*, ExchangePort*,
                              kernels::DotNumerics);
template Status Execute<float>(const InstructionView&, DeviceMemory*, ExchangePort*,
                               kernels::DotNumerics);

}  // namespace megalith::exec::reference
