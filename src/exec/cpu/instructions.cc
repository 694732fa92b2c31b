#include "exec/cpu/instructions.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/align.h"
#include "exec/divided_attention.h"
#include "exec/draft_instructions.h"
#include "exec/fast_runs.h"
#include "exec/mla_arguments.h"
#include "exec/recurrent_states.h"
#include "exec/route_plan.h"
#include "kernels/activation.h"

namespace megalith::exec::cpu {
namespace {

using kernels::kPanelOutputs;
using program::Epilogue;
using program::Opcode;

/// One instruction being run.
template <typename Act>
class Runner {
 public:
  Runner(const InstructionView& view, const kernels::KernelTable<Act>& table, DeviceMemory* device,
         const Scratch& scratch)
      : view_(view),
        instruction_(view.instruction),
        table_(table),
        device_(*device),
        rows_(device->rows()),
        scratch_(scratch),
        trip_(device->reg(view.instruction.trip)) {}

  const char* Dispatch() {
    switch (instruction_.opcode) {
      case Opcode::kWait:
      case Opcode::kStepBegin:
      case Opcode::kStepEnd:
      case Opcode::kFetch:
      case Opcode::kFetchNext:
        return nullptr;
      case Opcode::kEmbed:
        Embed();
        return nullptr;
      case Opcode::kAttnResNorm:
        AttnResNorm();
        return nullptr;
      case Opcode::kPushBlock:
        PushBlock();
        return nullptr;
      case Opcode::kRmsNorm:
        RmsNorm();
        return nullptr;
      case Opcode::kMatmul:
        Matmul();
        return nullptr;
      case Opcode::kKda:
        Kda();
        return nullptr;
      case Opcode::kMlaAppend:
        MlaAppend();
        return nullptr;
      case Opcode::kMlaAttention:
        MlaAttention();
        return nullptr;
      case Opcode::kMlaPartial:
        MlaPartial();
        return nullptr;
      case Opcode::kMlaMerge:
        ForMerges(view_, device_, reinterpret_cast<const float**>(scratch_.kernel()),
                  table_.mla_merge);
        return nullptr;
      case Opcode::kMlaExpanded:
        MlaExpanded();
        return nullptr;
      case Opcode::kRouterTopK:
        RouterTopK();
        return nullptr;
      case Opcode::kRoutePlan:
        return BuildPlan();
      case Opcode::kExpertGateUp:
        ExpertGateUp();
        return nullptr;
      case Opcode::kExpertDown:
        if (instruction_.imm[2] == 1) {
          ExpertOut();
        } else {
          ExpertDown();
        }
        return nullptr;
      case Opcode::kExpertSum:
        ExpertSum();
        return nullptr;
      case Opcode::kExchangeFill:
      case Opcode::kExchangePublish:
      case Opcode::kExchangeReceive:
        break;  // the worker's
      case Opcode::kCaptureResidual:
      case Opcode::kSample:
      case Opcode::kDraftAppend:
      case Opcode::kDraftEmbed:
      case Opcode::kDraftAttention:
      case Opcode::kMarkovEmbed:
      case Opcode::kDraftChoose:
      case Opcode::kMarkovGate:
      case Opcode::kMarkovRnn:
        ExecuteDraft<Act>(view_, device_, {table_.head_norm_rotary, table_.draft_attention},
                          {scratch_.kernel(), scratch_.sampling()});
        return nullptr;
    }
    return "opcode without a handler";
  }

 private:
  template <typename Function>
  void ForOwnRows(Function function) const {
    for (std::int64_t row = instruction_.rows.first; row < trip_; row += instruction_.rows.step) {
      function(row);
    }
  }

  void Embed() const {
    const auto prefix = view_.Rows<Act>(1);
    ForOwnRows([&](std::int64_t row) {
      LookUp(view_, instruction_.imm[0], rows_.token[static_cast<std::size_t>(row)],
             prefix.Row(row));
    });
  }

  void AttnResNorm() const {
    const std::int64_t hidden = view_.OperandColumns(0);
    const std::int64_t num_blocks = view_.NumBlocks();
    const bool has_blocks = view_.memory.IsPresent(view_.operand(1));
    const RowView<Act> blocks = has_blocks ? view_.Rows<Act>(1) : RowView<Act>{};
    const auto prefix = view_.Rows<Act>(0);
    const auto out = view_.Rows<Act>(2);
    auto** sources = reinterpret_cast<const Act**>(scratch_.sources());
    const bool gathers = instruction_.imm[1] == 1;
    kernels::AttnResNormArgs<Act> args{};
    args.sources = sources;
    args.num_sources = num_blocks + 1;
    args.hidden = hidden;
    args.fold = view_.Vector<float>(0);
    args.norm_weight = view_.Vector<Bf16>(1);
    args.eps = instruction_.scalar[0];
    args.scratch = scratch_.kernel();
    ForOwnRows([&](std::int64_t row) {
      const std::int64_t source = gathers ? rows_.logit_rows[static_cast<std::size_t>(row)] : row;
      Act* source_blocks = blocks.Row(source);
      for (std::int64_t block = 0; block < num_blocks; ++block) {
        sources[block] = source_blocks + block * hidden;
      }
      sources[num_blocks] = prefix.Row(source);
      args.out = out.Row(row);
      table_.attn_res_norm(args);
    });
  }

  void PushBlock() const {
    if (!view_.visit.pushes_block) return;
    const std::int64_t hidden = view_.OperandColumns(0);
    const auto prefix = view_.Rows<Act>(0);
    const auto blocks = view_.Rows<Act>(1);
    ForOwnRows([&](std::int64_t row) {
      std::memcpy(blocks.Row(row) + view_.visit.num_blocks * hidden, prefix.Row(row),
                  static_cast<std::size_t>(hidden) * sizeof(Act));
    });
  }

  void RmsNorm() const {
    const auto in = view_.Rows<Act>(0);
    const auto out = view_.Rows<Act>(1);
    kernels::RmsNormArgs<Act> args{};
    args.count = view_.OperandColumns(0);
    args.weight = view_.Vector<Bf16>(0);
    args.eps = instruction_.scalar[0];
    ForOwnRows([&](std::int64_t row) {
      args.in = in.Row(row);
      args.out = out.Row(row);
      table_.rms_norm(args);
    });
  }

  /// Calls function(first row, rows) for the slabs of `rows` rows.
  template <typename Function>
  static void ForSlabs(std::int64_t rows, Function function) {
    for (std::int64_t first = 0; first < rows; first += Scratch::kSlabRows) {
      function(first, std::min(rows - first, Scratch::kSlabRows));
    }
  }

  /// `num_panels` panels from `panels` times `rows` rows of `x`, into scratch_.acc(), which has
  /// 16 * num_panels floats per row.
  template <typename X>
  void Multiply(const std::byte* panels, std::int64_t num_panels, RowView<X> x,
                const std::int32_t* row_indices, std::int64_t rows) const {
    kernels::MatmulArgs<X> args{};
    args.panels = panels;
    args.num_panels = num_panels;
    args.inputs = view_.tile().num_inputs;
    args.x = x.data;
    args.x_stride = x.stride;
    args.row_indices = row_indices;
    args.rows = rows;
    args.acc = scratch_.acc();
    args.acc_stride = num_panels * kPanelOutputs;
    args.scratch = scratch_.kernel();
    const auto format = static_cast<std::size_t>(view_.Format());
    if constexpr (std::is_same_v<X, Act>) {
      table_.matmul[format](args);
    } else {
      table_.matmul_float[format](args);
    }
  }

  /// Calls function(first panel, panels, first output, outputs) for the tile's groups of panels.
  template <typename Function>
  void ForGroups(std::int64_t rows, bool pairs, Function function) const {
    const program::Tile& tile = view_.tile();
    const std::int64_t unit = pairs ? 2 : 1;
    const std::int64_t group = Scratch::GroupPanels(std::min(rows, Scratch::kSlabRows), unit);
    for (std::int64_t panel = 0; panel < tile.num_panels; panel += group) {
      const std::int64_t panels = std::min(group, tile.num_panels - panel);
      const std::int64_t first_output = panel / unit * kPanelOutputs;
      const std::int64_t outputs =
          std::min(panels / unit * kPanelOutputs, tile.num_outputs - first_output);
      function(panel, panels, first_output, outputs);
    }
  }

  std::int64_t PanelBytes() const { return view_.tile().bytes / view_.tile().num_panels; }

  /// Rows begin .. begin + count - 1.
  template <typename X>
  void MatmulFrom(RowView<X> in, std::int64_t begin, std::int64_t count) const {
    const bool pairs = instruction_.epilogue == Epilogue::kGatedPair;
    ForSlabs(count, [&](std::int64_t first_of_slab, std::int64_t rows) {
      const std::int64_t first_row = begin + first_of_slab;
      const RowView<X> slab{in.Row(first_row), in.stride};
      ForGroups(rows, pairs,
                [&](std::int64_t panel, std::int64_t panels, std::int64_t first_output,
                    std::int64_t outputs) {
                  Multiply<X>(view_.Panels() + panel * PanelBytes(), panels, slab, nullptr, rows);
                  for (std::int64_t row = 0; row < rows; ++row) {
                    const float* acc = scratch_.acc() + row * panels * kPanelOutputs;
                    ApplyEpilogue(first_row + row, acc, first_output, outputs);
                  }
                });
    });
  }

  void Matmul() const {
    if (trip_ == 0) return;
    if (instruction_.imm[1] == 0) {
      MatmulRows(0, trip_);
      return;
    }
    if (HasFastRun(rows_)) {
      std::memcpy(static_cast<void*>(view_.Rows<Bf16>(4).data), view_.Panels(),
                  static_cast<std::size_t>(view_.tile().bytes));
    }
    ForOtherRows(rows_, [&](std::int64_t first, std::int64_t count) { MatmulRows(first, count); });
  }

  void MatmulRows(std::int64_t first, std::int64_t count) const {
    if (view_.OperandDType(0) == DType::kF32) {
      MatmulFrom<float>(view_.Rows<float>(0), first, count);
    } else {
      MatmulFrom<Act>(view_.Rows<Act>(0), first, count);
    }
  }

  void ApplyEpilogue(std::int64_t row, const float* acc, std::int64_t first_output,
                     std::int64_t outputs) const {
    if (instruction_.epilogue == Epilogue::kAddDraftBase) {
      AddDraftBase(view_, row, acc, first_output, outputs);
      return;
    }
    if (instruction_.epilogue == Epilogue::kStore && view_.OperandDType(1) == DType::kF32) {
      std::memcpy(view_.Rows<float>(1).Row(row) + first_output, acc,
                  static_cast<std::size_t>(outputs) * sizeof(float));
      return;
    }
    Act* out = view_.Rows<Act>(1).Row(row) + first_output;
    switch (instruction_.epilogue) {
      case Epilogue::kStore:
        table_.store(acc, outputs, out);
        break;
      case Epilogue::kGatedPair:
        table_.gated_pair({acc, outputs, view_.Activation(), out});
        break;
      case Epilogue::kAddResidual:
        if (view_.PushesBlock()) {
          table_.store(acc, outputs, out);
        } else {
          table_.add_residual(acc, view_.Rows<Act>(3).Row(row) + first_output, outputs, out);
        }
        break;
      case Epilogue::kAddSharedResidual:
        table_.add_shared_residual(acc, view_.Rows<float>(2).Row(row) + first_output,
                                   view_.Rows<Act>(3).Row(row) + first_output, outputs, out);
        break;
      case Epilogue::kSigmoidGate:
        table_.sigmoid_gate(acc, view_.Rows<Act>(2).Row(row) + first_output, outputs, out);
        break;
      case Epilogue::kAddDraftBase:
        break;
    }
  }

  void Kda() const {
    const std::int64_t heads = instruction_.imm[1] - instruction_.imm[0];
    const std::int64_t dim = view_.OperandColumns(0) / heads;
    const std::int64_t value_stride = RoundUp<std::int64_t>(dim, kernels::kLanes);
    const std::int64_t kernel = view_.VectorInfo(0).taps;
    const RowView<Act> q = view_.Rows<Act>(0), k = view_.Rows<Act>(1), v = view_.Rows<Act>(2);
    const RowView<Act> gate = view_.Rows<Act>(3), decay = view_.Rows<Act>(4);
    const RowView<Act> beta = view_.Rows<Act>(5), out = view_.Rows<Act>(6);
    kernels::KdaHeadArgs<Act> args{};
    args.head_dim = dim;
    args.conv_kernel = kernel;
    args.q_stride = q.stride;
    args.k_stride = k.stride;
    args.v_stride = v.stride;
    args.gate_stride = gate.stride;
    args.decay_stride = decay.stride;
    args.beta_stride = beta.stride;
    args.taps_stride = view_.VectorInfo(0).count / kernel;
    args.o_norm = view_.Vector<float>(5);
    args.eps = instruction_.scalar[0];
    args.gate_lower_bound = instruction_.scalar[1];
    args.state_stride = value_stride;
    args.history_stride = 3 * dim;
    args.out_stride = out.stride;
    args.scratch = scratch_.kernel();
    std::array<float*, program::kMaxDrafts> draft_states{};
    std::array<Act*, program::kMaxDrafts> draft_histories{};
    args.draft_states = draft_states.data();
    args.draft_histories = draft_histories.data();
    const bool has_chunks = instruction_.imm[2] == 1;
    for (std::size_t run = 0; run < rows_.runs.size(); ++run) {
      const Run& rows = rows_.runs[run];
      const std::int64_t first = rows_.first_row[run];
      args.rows = rows.count;
      args.zero_state = rows.first_position == 0;
      args.num_drafts = rows.num_drafts;
      args.first_chunk_rows = kernels::kKdaChunkRows - rows.first_position % kernels::kKdaChunkRows;
      const auto kernel_of_run = has_chunks && IsFast(rows) ? table_.kda_chunks : table_.kda_head;
      const RecurrentStates<Act> states(view_, device_, rows);
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t channel = (instruction_.imm[0] + head) * dim;
        args.q = q.Row(first) + head * dim;
        args.k = k.Row(first) + head * dim;
        args.v = v.Row(first) + head * dim;
        args.gate = gate.Row(first) + head * dim;
        args.decay = decay.Row(first) + head * dim;
        args.beta = beta.Row(first) + head;
        args.q_taps = view_.Vector<float>(0) + channel;
        args.k_taps = view_.Vector<float>(1) + channel;
        args.v_taps = view_.Vector<float>(2) + channel;
        args.a_log = view_.Vector<float>(3)[instruction_.imm[0] + head];
        args.dt_bias = view_.Vector<float>(4) + channel;
        const std::int64_t first_state = head * dim * value_stride;
        const std::int64_t first_history = head * (kernel - 1) * 3 * dim;
        args.state = states.state(0) + first_state;
        args.q_history = states.history(0) + first_history;
        for (std::int32_t i = 0; i < rows.num_drafts; ++i) {
          draft_states[static_cast<std::size_t>(i)] = states.state(i + 1) + first_state;
          draft_histories[static_cast<std::size_t>(i)] = states.history(i + 1) + first_history;
        }
        args.k_history = args.q_history + dim;
        args.v_history = args.k_history + dim;
        args.out = out.Row(first) + head * dim;
        kernel_of_run(args);
      }
    }
  }

  void MlaAppend() const {
    const std::int64_t rank = instruction_.imm[0];
    const std::int64_t extra = view_.OperandColumns(0) - rank;
    const std::int64_t page_tokens = view_.program.state.page_tokens;
    const auto in = view_.Rows<Act>(0);
    Act* pool = view_.memory.CachePool<Act>(view_.operand(1), view_.visit.state_index);
    const std::int64_t stride = view_.memory.RowStride(view_.operand(1));
    kernels::RmsNormArgs<Act> args{};
    args.count = rank;
    args.weight = view_.Vector<Bf16>(0);
    args.eps = instruction_.scalar[0];
    ForOwnRows([&](std::int64_t row) {
      const std::int64_t position = rows_.position[static_cast<std::size_t>(row)];
      const std::int32_t slot = rows_.slot[static_cast<std::size_t>(row)];
      const std::int64_t page = device_.sequences().PageTable(slot)[position / page_tokens];
      args.in = in.Row(row);
      args.out = pool + (page * page_tokens + position % page_tokens) * stride;
      table_.rms_norm(args);
      std::memcpy(args.out + rank, args.in + rank, static_cast<std::size_t>(extra) * sizeof(Act));
    });
  }

  void MlaAttention() const {
    const auto query = view_.Rows<Act>(0);
    const auto latent_query = view_.Rows<float>(1);
    const auto out = view_.Rows<float>(3);
    kernels::MlaAttentionArgs<Act> args = MlaArguments<Act>(view_);
    args.heads = instruction_.imm[1] - instruction_.imm[0];
    args.out_stride = args.rank;
    args.scratch = scratch_.kernel();
    const auto attend = [&](std::int64_t row, std::int64_t count) {
      args.page_table = device_.sequences().PageTable(rows_.slot[static_cast<std::size_t>(row)]);
      args.num_positions = rows_.position[static_cast<std::size_t>(row)] + 1;
      args.rows = count;
      args.extra_query = query.Row(row) + args.extra_query_stride - args.extra;
      args.latent_query = latent_query.Row(row);
      args.out = out.Row(row);
      table_.mla_attention(args);
    };
    // Rows of one sequence together.
    const auto attend_rows = [&](std::int64_t first, std::int64_t count) {
      const std::int64_t end = first + count;
      for (std::int64_t row = first, next = first; row < end; row = next) {
        const std::int32_t slot = rows_.slot[static_cast<std::size_t>(row)];
        while (next < end && next - row < kernels::kMaxMlaRows &&
               rows_.slot[static_cast<std::size_t>(next)] == slot) {
          ++next;
        }
        attend(row, next - row);
      }
    };
    if (instruction_.imm[2] == 1) {
      ForOtherRows(rows_, attend_rows);
    } else {
      attend_rows(0, trip_);
    }
  }

  void MlaPartial() const {
    ForPartials<Act>(view_, device_, [&](kernels::MlaAttentionArgs<Act>& args, std::int64_t chunk) {
      args.scratch = scratch_.kernel();
      table_.mla_partial(args, chunk);
    });
  }

  void MlaExpanded() const {
    if constexpr (std::is_same_v<Act, Bf16>) {
      ForHeadsOfFastRuns(view_, device_, [&](kernels::MlaExpandedArgs& args) {
        args.matmul = table_.matmul[static_cast<std::size_t>(kernels::PanelFormat::kBf16)];
        args.scratch = scratch_.kernel();
        table_.mla_expanded(args);
      });
    }
  }

  void RouterTopK() const {
    kernels::RouterTopKArgs args{};
    args.bias = view_.Vector<float>(0);
    args.num_experts = view_.OperandColumns(0);
    args.top_k = instruction_.imm[0];
    args.renormalize = instruction_.imm[1] == 1;
    args.softmax = instruction_.imm[2] == 1;
    args.num_groups = instruction_.imm[3];
    args.topk_groups = instruction_.imm[4];
    args.scaling_factor = instruction_.scalar[0];
    args.scratch = scratch_.kernel();
    ForOwnRows([&](std::int64_t row) {
      args.logits = view_.Rows<float>(0).Row(row);
      args.ids = view_.Rows<std::int32_t>(1).Row(row);
      args.weights = view_.Rows<float>(2).Row(row);
      table_.router_top_k(args);
    });
  }

  RoutePlan Plan(std::size_t operand) const {
    return RoutePlan::FromColumns(view_.Rows<std::int32_t>(operand).data, instruction_.imm[0],
                                  view_.OperandColumns(operand));
  }

  const char* BuildPlan() {
    const auto ids = view_.Rows<std::int32_t>(0);
    const auto weights = view_.Rows<float>(1);
    const std::int64_t active = Plan(2).Build(ids.data, ids.stride, weights.data, weights.stride,
                                              trip_, instruction_.imm[1]);
    if (active < 0) return "the router chose an expert that does not exist";
    constexpr auto kRegister = static_cast<std::size_t>(program::Register::kActiveExperts);
    if (active > view_.program.registers[kRegister].max_value) {
      return "more experts were chosen than register active_experts may count";
    }
    device_.SetActiveExperts(active);
    return nullptr;
  }

  void ExpertGateUp() const {
    const RoutePlan plan = Plan(1);
    const auto in = view_.Rows<Act>(0);
    const auto out = view_.Rows<Act>(2);
    for (std::int64_t active = 0; active < trip_; ++active) {
      if (!view_.IsOwnExpert(plan.Expert(active))) continue;
      const std::byte* weights = view_.Panels(plan.Expert(active));
      ForSlabs(plan.NumPairs(active), [&](std::int64_t first_pair, std::int64_t pairs) {
        const std::int32_t* rows = plan.Rows(active) + first_pair;
        ForGroups(pairs, true,
                  [&](std::int64_t panel, std::int64_t panels, std::int64_t first_output,
                      std::int64_t outputs) {
                    Multiply<Act>(weights + panel * PanelBytes(), panels, in, rows, pairs);
                    for (std::int64_t pair = 0; pair < pairs; ++pair) {
                      const float* acc = scratch_.acc() + pair * panels * kPanelOutputs;
                      Act* target = out.Row(plan.FirstPair(active) + first_pair + pair);
                      table_.gated_pair({acc, outputs, view_.Activation(), target + first_output});
                    }
                  });
      });
    }
  }

  /// Experts ascend inside every group of outputs, so a row's sum has the canonical order.
  void ExpertDown() const {
    const RoutePlan plan = Plan(1);
    const auto in = view_.Rows<Act>(0);
    const auto out = view_.Rows<Act>(2);
    const std::int64_t num_rows = rows_.num_rows;
    ForGroups(num_rows, false,
              [&](std::int64_t panel, std::int64_t panels, std::int64_t first_output,
                  std::int64_t outputs) {
                const std::int64_t stride = panels * kPanelOutputs;
                std::fill_n(scratch_.sum(), num_rows * stride, 0.0f);
                for (std::int64_t active = 0; active < trip_; ++active) {
                  AddExpert(plan, active, in, panel, panels, outputs);
                }
                for (std::int64_t row = 0; row < num_rows; ++row) {
                  table_.store(scratch_.sum() + row * stride, outputs, out.Row(row) + first_output);
                }
              });
  }

  /// The outputs of this rank's experts, pair by pair.
  void ExpertOut() const {
    const RoutePlan plan = Plan(1);
    const auto in = view_.Rows<Act>(0);
    const auto out = view_.Rows<Act>(2);
    for (std::int64_t active = 0; active < trip_; ++active) {
      if (!view_.IsOwnExpert(plan.Expert(active))) continue;
      const std::byte* weights = view_.Panels(plan.Expert(active));
      ForSlabs(plan.NumPairs(active), [&](std::int64_t first_pair, std::int64_t pairs) {
        const std::int64_t first = plan.FirstPair(active) + first_pair;
        const RowView<Act> slab{in.Row(first), in.stride};
        ForGroups(pairs, false,
                  [&](std::int64_t panel, std::int64_t panels, std::int64_t first_output,
                      std::int64_t outputs) {
                    Multiply<Act>(weights + panel * PanelBytes(), panels, slab, nullptr, pairs);
                    for (std::int64_t pair = 0; pair < pairs; ++pair) {
                      table_.store(scratch_.acc() + pair * panels * kPanelOutputs, outputs,
                                   out.Row(first + pair) + first_output);
                    }
                  });
      });
    }
  }

  /// In the order of ExpertDown's sums: a row's experts ascending.
  void ExpertSum() const {
    const RoutePlan plan = Plan(1);
    const std::int64_t active = device_.reg(program::Register::kActiveExperts);
    const std::int64_t columns = view_.OperandColumns(2);
    const auto ids = view_.Rows<std::int32_t>(0);
    const auto in = view_.Rows<Act>(2);
    const auto out = view_.Rows<Act>(3);
    ForOwnRows([&](std::int64_t row) {
      for (std::int64_t first = 0; first < columns; first += Scratch::kAccFloats) {
        const std::int64_t count = std::min(columns - first, Scratch::kAccFloats);
        std::fill_n(scratch_.sum(), count, 0.0f);
        for (std::int64_t i = 0; i < instruction_.imm[1]; ++i) {
          const std::int64_t pair = plan.PairOf(ids.Row(row)[i], row, active);
          const Act* values = in.Row(pair) + first;
          for (std::int64_t j = 0; j < count; ++j) scratch_.acc()[j] = kernels::Widen(values[j]);
          table_.weighted_add(scratch_.acc(), plan.WeightOfPair(pair), count, scratch_.sum());
        }
        table_.store(scratch_.sum(), count, out.Row(row) + first);
      }
    });
  }

  /// scratch_.sum() += weight * one expert's outputs of some panels, for the rows that chose it.
  void AddExpert(const RoutePlan& plan, std::int64_t active, RowView<Act> in, std::int64_t panel,
                 std::int64_t panels, std::int64_t outputs) const {
    const std::byte* weights = view_.Panels(plan.Expert(active)) + panel * PanelBytes();
    const std::int64_t stride = panels * kPanelOutputs;
    ForSlabs(plan.NumPairs(active), [&](std::int64_t first_pair, std::int64_t pairs) {
      const RowView<Act> slab{in.Row(plan.FirstPair(active) + first_pair), in.stride};
      Multiply<Act>(weights, panels, slab, nullptr, pairs);
      for (std::int64_t pair = 0; pair < pairs; ++pair) {
        const std::int64_t row = plan.Rows(active)[first_pair + pair];
        table_.weighted_add(scratch_.acc() + pair * stride, plan.Weights(active)[first_pair + pair],
                            outputs, scratch_.sum() + row * stride);
      }
    });
  }

  const InstructionView& view_;
  const program::Instruction& instruction_;
  const kernels::KernelTable<Act>& table_;
  DeviceMemory& device_;
  const StepRows& rows_;
  const Scratch& scratch_;
  std::int64_t trip_;
};

}  // namespace

template <typename Act>
const char* Execute(const InstructionView& view, const kernels::KernelTable<Act>& kernels,
                    DeviceMemory* device, const Scratch& scratch) {
  return Runner<Act>(view, kernels, device, scratch).Dispatch();
}

template const char* Execute<Bf16>(const InstructionView&, const kernels::KernelTable<Bf16>&,
                                   DeviceMemory*, const Scratch&);
template const char* Execute<float>(const InstructionView&, const kernels::KernelTable<float>&,
                                    DeviceMemory*, const Scratch&);

}  // namespace megalith::exec::cpu
