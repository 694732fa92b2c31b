#include <algorithm>
#include <cmath>

#include "base/align.h"
#include "kernels/layout.h"
#include "program/compile/layers.h"

namespace megalith::program {
namespace {

constexpr char kAttention[] = "layers.{layer}.self_attn.";

std::string Name(std::string_view part) { return kAttention + std::string(part); }

/// Whether a rank's heads split evenly over its workers and on panel borders: then everything of a
/// head can stay on one worker and the recurrence needs no join.
bool HeadsAlign(std::int64_t heads, std::int32_t workers,
                std::initializer_list<std::int64_t> widths) {
  if (heads % workers != 0) return false;
  for (std::int64_t width : widths) {
    if (width % kernels::kPanelOutputs != 0) return false;
  }
  return true;
}

/// Emits the part of this rank's heads of a product whose outputs are heads x width, either level
/// over the workers or by whole heads.
void EmitHeads(SegmentBuilder& segment, const Product& product, std::int64_t heads, bool aligned,
               Leveler& leveler) {
  const Product own = segment.OfOwnHeads(product, heads);
  if (!aligned) {
    segment.EmitOnEveryRank(own, leveler);
    return;
  }
  const std::int64_t panels = product.num_outputs / heads / kernels::kPanelOutputs;
  const std::vector<Range> ranges =
      SplitEvenly(segment.builder.OwnHeads(heads).size(), segment.num_workers());
  for (std::int32_t worker = 0; worker < segment.num_workers(); ++worker) {
    const Range range = ranges[static_cast<std::size_t>(worker)];
    segment.EmitProduct(worker, own, {range.begin * panels, range.end * panels});
  }
}

void EmitOutputProjection(SegmentBuilder& segment, const LayerBuffers& buffers, std::uint32_t in) {
  segment.EmitExchange({.name = "heads", .buffers = {in}});
  EmitCopiesOfPrefix(segment, buffers);
  segment.BeginPhase("o_proj");
  Product o = segment.Whole(Name("o_proj"), segment.builder.model.hidden_size, in,
                            buffers.shared.prefix_mid);
  o.epilogue = Epilogue::kAddResidual;
  o.residual = buffers.shared.prefix;
  o.restarts_residual = true;
  Leveler leveler(segment.builder);
  segment.EmitLevel(o, leveler);
  segment.EmitExchange({.name = "mixer_out", .buffers = {buffers.shared.prefix_mid}});
}

/// All but the operands that say where the result goes.
Instruction AbsorbedAttention(const SegmentBuilder& segment, const MlaBuffers& own,
                              std::uint32_t step_input, Opcode opcode, Range heads) {
  const ProgramBuilder& builder = segment.builder;
  const model::MlaConfig& mla = builder.model.mla;
  const std::int64_t query_width = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
  Instruction attention;
  attention.opcode = opcode;
  attention.trip = Register::kRows;
  attention.scalar[0] = 1.0f / std::sqrt(static_cast<float>(query_width));
  attention.imm[0] = static_cast<std::int32_t>(heads.begin);
  attention.imm[1] = static_cast<std::int32_t>(heads.end);
  attention.operands[0] = {own.q, heads.begin * query_width, heads.end * query_width};
  attention.operands[1] = {own.latent_query, heads.begin * mla.kv_lora_rank,
                           heads.end * mla.kv_lora_rank};
  attention.operands[2] = builder.All(own.cache);
  attention.operands[4] = builder.All(step_input);
  return attention;
}

/// Each worker: its heads over the whole context.
void EmitAttention(SegmentBuilder& segment, const MlaBuffers& own, std::uint32_t step_input) {
  const ProgramBuilder& builder = segment.builder;
  const model::MlaConfig& mla = builder.model.mla;
  segment.BeginPhase("mla_attention");
  const std::vector<Range> ranges =
      SplitEvenly(builder.OwnHeads(mla.num_attention_heads), segment.num_workers());
  for (std::int32_t worker = 0; worker < segment.num_workers(); ++worker) {
    const Range range = ranges[static_cast<std::size_t>(worker)];
    if (range.size() == 0) continue;
    Instruction attention =
        AbsorbedAttention(segment, own, step_input, Opcode::kMlaAttention, range);
    attention.imm[2] = builder.HasFastRuns() ? 1 : 0;
    attention.operands[3] = {own.latent_out, range.begin * mla.kv_lora_rank,
                             range.end * mla.kv_lora_rank};
    segment.Emit(worker, attention);
  }
}

/// Each worker: some chunks of the context for all heads. Then whoever goes on with a head merges
/// its chunks.
void EmitDividedAttention(SegmentBuilder& segment, const MlaBuffers& own,
                          std::uint32_t step_input) {
  const ProgramBuilder& builder = segment.builder;
  const model::MlaConfig& mla = builder.model.mla;
  const Range heads = builder.OwnHeads(mla.num_attention_heads);
  const std::int32_t shares = segment.num_workers();
  const std::int64_t columns = builder.program.buffers[own.partials].columns / shares;
  segment.BeginPhase("mla_partial");
  Instruction partial = AbsorbedAttention(segment, own, step_input, Opcode::kMlaPartial, heads);
  partial.imm[4] = shares;
  for (std::int32_t worker = 0; worker < shares; ++worker) {
    partial.imm[3] = worker;
    partial.operands[3] = {own.partials, worker * columns, (worker + 1) * columns};
    segment.Emit(worker, partial);
  }
  segment.BeginPhase("mla_merge");
  Instruction merge;
  merge.opcode = Opcode::kMlaMerge;
  merge.trip = Register::kRows;
  merge.imm = {0, 0, static_cast<std::int32_t>(heads.begin), static_cast<std::int32_t>(heads.end),
               shares};
  merge.operands[0] = builder.All(own.partials);
  merge.operands[2] = builder.All(step_input);
  const std::vector<Range> ranges = SplitEvenly(heads, shares);
  for (std::int32_t worker = 0; worker < shares; ++worker) {
    const Range range = ranges[static_cast<std::size_t>(worker)];
    if (range.size() == 0) continue;
    merge.imm[0] = static_cast<std::int32_t>(range.begin);
    merge.imm[1] = static_cast<std::int32_t>(range.end);
    merge.operands[1] = {own.latent_out, range.begin * mla.kv_lora_rank,
                         range.end * mla.kv_lora_rank};
    segment.Emit(worker, merge);
  }
}

/// The attention of fast runs, into their rows of what the value halves of kv_b have given the
/// others.
void EmitExpandedAttention(SegmentBuilder& segment, const MlaBuffers& own,
                           std::uint32_t step_input) {
  ProgramBuilder& builder = segment.builder;
  const model::MlaConfig& mla = builder.model.mla;
  const std::int64_t heads = mla.num_attention_heads;
  segment.BeginPhase("mla_expanded");
  Instruction attention;
  attention.opcode = Opcode::kMlaExpanded;
  attention.trip = Register::kRows;
  attention.imm[2] = static_cast<std::int32_t>(mla.kv_lora_rank);
  attention.scalar[0] =
      1.0f / std::sqrt(static_cast<float>(mla.qk_nope_head_dim + mla.qk_rope_head_dim));
  const std::vector<Range> ranges = SplitEvenly(builder.OwnHeads(heads), segment.num_workers());
  for (std::int32_t worker = 0; worker < segment.num_workers(); ++worker) {
    const Range range = ranges[static_cast<std::size_t>(worker)];
    if (range.size() == 0) continue;
    const auto columns = [&](std::uint32_t buffer) {
      const std::int64_t per_head = builder.program.buffers[buffer].columns / heads;
      return Operand{buffer, range.begin * per_head, range.end * per_head};
    };
    attention.imm[0] = static_cast<std::int32_t>(range.begin);
    attention.imm[1] = static_cast<std::int32_t>(range.end);
    attention.operands = {columns(own.q), columns(own.key_panels), columns(own.value_panels),
                          builder.All(own.cache)};
    if (mla.use_output_gate) attention.operands[4] = columns(own.gate);
    attention.operands[5] = columns(own.out);
    attention.operands[6] = builder.All(step_input);
    segment.Emit(worker, attention);
  }
}

}  // namespace

void EmitKda(SegmentBuilder& segment, const LayerBuffers& buffers) {
  ProgramBuilder& builder = segment.builder;
  const model::KdaConfig& kda = builder.model.kda;
  const KdaBuffers& own = buffers.kda;
  const std::int64_t width = kda.num_heads * kda.head_dim;
  const std::uint32_t x = buffers.shared.mixer_in;
  const Range own_heads = builder.OwnHeads(kda.num_heads);
  const bool aligned = HeadsAlign(own_heads.size(), segment.num_workers(), {kda.head_dim});
  Leveler leveler(builder);

  // The narrow projections come first: others wait for them, and the wide ones hide that wait. The
  // two whose outputs all heads need are a hundredth of a layer: every rank reads all of them.
  segment.BeginPhase("kda_narrow");
  segment.EmitOnEveryRank(segment.Whole(Name("f_a_proj"), kda.head_dim, x, own.decay_a), leveler);
  segment.EmitOnEveryRank(
      segment.OfOwnHeads(segment.Whole(Name("b_proj"), kda.num_heads, x, own.beta), kda.num_heads),
      leveler);
  if (!kda.use_full_rank_gate) {
    segment.EmitOnEveryRank(segment.Whole(Name("g_a_proj"), kda.head_dim, x, own.gate_a), leveler);
  }
  segment.BeginPhase("kda_qkvg");
  EmitHeads(segment, segment.Whole(Name("q_proj"), width, x, own.q), kda.num_heads, aligned,
            leveler);
  EmitHeads(segment, segment.Whole(Name("k_proj"), width, x, own.k), kda.num_heads, aligned,
            leveler);
  EmitHeads(segment, segment.Whole(Name("v_proj"), width, x, own.v), kda.num_heads, aligned,
            leveler);
  if (kda.use_full_rank_gate) {
    EmitHeads(segment, segment.Whole(Name("g_proj"), width, x, own.gate), kda.num_heads, aligned,
              leveler);
  }
  segment.BeginPhase("kda_decay");
  EmitHeads(segment, segment.Whole(Name("f_b_proj"), width, own.decay_a, own.decay), kda.num_heads,
            aligned, leveler);
  if (!kda.use_full_rank_gate) {
    EmitHeads(segment, segment.Whole(Name("g_b_proj"), width, own.gate_a, own.gate), kda.num_heads,
              aligned, leveler);
  }

  segment.BeginPhase("kda");
  Instruction recurrence;
  recurrence.opcode = Opcode::kKda;
  recurrence.trip = Register::kRows;
  const std::int64_t taps = kda.short_conv_kernel_size;
  // A_log is stored with one entry per channel of a head; the first num_heads are used.
  recurrence.vectors = {segment.AddTaps(Name("q_conv1d.weight"), width, taps),
                        segment.AddTaps(Name("k_conv1d.weight"), width, taps),
                        segment.AddTaps(Name("v_conv1d.weight"), width, taps),
                        segment.AddVector(Name("A_log"), DType::kF32, kda.num_heads,
                                          std::max(kda.num_heads, kda.head_dim)),
                        segment.AddVector(Name("dt_bias"), DType::kF32, width),
                        segment.AddVector(Name("o_norm.weight"), DType::kF32, kda.head_dim)};
  recurrence.scalar[0] = builder.model.rms_norm_eps;
  recurrence.scalar[1] = kda.gate_lower_bound.value_or(0.0f);
  recurrence.imm[2] = builder.HasFastRuns() ? 1 : 0;
  const std::int64_t state_width =
      kda.head_dim * RoundUp<std::int64_t>(kda.head_dim, kernels::kLanes);
  const std::int64_t conv_width = (taps - 1) * 3 * kda.head_dim;
  builder.SetColumnsOfRanks(own.out, builder.ColumnsOfRanks(own.q));
  const std::vector<Range> heads = SplitEvenly(own_heads, segment.num_workers());
  for (std::int32_t worker = 0; worker < segment.num_workers(); ++worker) {
    const Range range = heads[static_cast<std::size_t>(worker)];
    if (range.size() == 0) continue;
    const auto columns = [&](std::uint32_t buffer, std::int64_t per_head) {
      return Operand{buffer, range.begin * per_head, range.end * per_head};
    };
    const auto state_columns = [&](std::uint32_t buffer, std::int64_t per_head) {
      return Operand{buffer, (range.begin - own_heads.begin) * per_head,
                     (range.end - own_heads.begin) * per_head};
    };
    recurrence.imm[0] = static_cast<std::int32_t>(range.begin);
    recurrence.imm[1] = static_cast<std::int32_t>(range.end);
    recurrence.operands = {
        columns(own.q, kda.head_dim),        columns(own.k, kda.head_dim),
        columns(own.v, kda.head_dim),        columns(own.gate, kda.head_dim),
        columns(own.decay, kda.head_dim),    columns(own.beta, 1),
        columns(own.out, kda.head_dim),      state_columns(own.state, state_width),
        state_columns(own.conv, conv_width), builder.All(buffers.shared.step_input)};
    segment.Emit(worker, recurrence);
  }
  EmitOutputProjection(segment, buffers, own.out);
}

void EmitMla(SegmentBuilder& segment, const LayerBuffers& buffers) {
  ProgramBuilder& builder = segment.builder;
  const model::MlaConfig& mla = builder.model.mla;
  const MlaBuffers& own = buffers.mla;
  const std::int64_t heads = mla.num_attention_heads;
  const std::int64_t rank = mla.kv_lora_rank;
  const std::int64_t query_width = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
  const std::uint32_t x = buffers.shared.mixer_in;
  const Range own_heads = builder.OwnHeads(heads);
  const bool aligned =
      HeadsAlign(own_heads.size(), segment.num_workers(), {query_width, mla.v_head_dim, rank});
  Leveler leveler(builder);

  // Latents first: everything waits for them.
  segment.BeginPhase("mla_latents");
  if (mla.q_lora_rank) {
    segment.EmitLevel(segment.Whole(Name("q_a_proj"), *mla.q_lora_rank, x, own.q_a), leveler);
  }
  segment.EmitLevel(
      segment.Whole(Name("kv_a_proj_with_mqa"), rank + mla.qk_rope_head_dim, x, own.kv_a), leveler);

  const ExchangePlan latents{.name = "latents", .buffers = {own.q_a, own.kv_a}};
  segment.BeginExchange(latents);
  // The wide gate projection hides a wait: for the latents of other ranks or workers, or for the
  // norms if few workers compute them.
  const auto emit_gate = [&] {
    if (!mla.use_output_gate) return;
    segment.BeginPhase("mla_gate");
    EmitHeads(segment, segment.Whole(Name("g_proj"), heads * mla.v_head_dim, x, own.gate), heads,
              aligned, leveler);
  };
  const bool gate_first =
      (mla.q_lora_rank && builder.IsCopied(own.q_a_norm)) || builder.num_ranks() > 1;
  if (gate_first) emit_gate();
  segment.FinishExchange(latents);
  segment.BeginPhase("mla_norms");
  if (mla.q_lora_rank) {
    Instruction norm;
    norm.opcode = Opcode::kRmsNorm;
    norm.trip = Register::kRows;
    norm.vectors[0] =
        segment.AddVector(Name("q_a_layernorm.weight"), DType::kBf16, *mla.q_lora_rank);
    norm.scalar[0] = builder.model.lora_norm_eps;
    norm.operands[0] = builder.All(own.q_a);
    norm.operands[1] = builder.All(own.q_a_norm);
    segment.EmitOwnRows(norm);
  }
  Instruction append;
  append.opcode = Opcode::kMlaAppend;
  append.trip = Register::kRows;
  append.vectors[0] = segment.AddVector(Name("kv_a_layernorm.weight"), DType::kBf16, rank);
  append.scalar[0] = builder.model.lora_norm_eps;
  append.imm[0] = static_cast<std::int32_t>(rank);
  append.operands[0] = builder.All(own.kv_a);
  append.operands[1] = builder.All(own.cache);
  append.operands[2] = builder.All(buffers.shared.step_input);
  segment.EmitOwnRows(append);

  if (!gate_first) emit_gate();

  segment.BeginPhase("mla_q");
  if (mla.q_lora_rank) {
    EmitHeads(segment, segment.Whole(Name("q_b_proj"), heads * query_width, own.q_a_norm, own.q),
              heads, aligned, leveler);
  } else {
    EmitHeads(segment, segment.Whole(Name("q_proj"), heads * query_width, x, own.q), heads, aligned,
              leveler);
  }

  // Absorbed form: the key half of kv_b turns the query into the latent space, ...
  const std::int64_t kv_width = mla.qk_nope_head_dim + mla.v_head_dim;
  const std::uint32_t kv_b = builder.AddTensor(Name("kv_b_proj"), heads * kv_width, rank);
  builder.SetRowsOfTensor(kv_b, {own_heads.begin * kv_width, own_heads.end * kv_width});
  std::vector<Product> absorb(static_cast<std::size_t>(own_heads.size()));
  std::vector<Product> expand(static_cast<std::size_t>(own_heads.size()));
  const bool fast = builder.HasFastRuns();
  const auto panels_of_head = [&](std::uint32_t buffer) {
    return builder.program.buffers[buffer].columns / heads;
  };
  for (std::int64_t head = own_heads.begin; head < own_heads.end; ++head) {
    Product& key = absorb[static_cast<std::size_t>(head - own_heads.begin)];
    key.tensor = kv_b;
    key.transposed = true;
    key.num_outputs = rank;
    key.first_input = head * kv_width;
    key.num_inputs = mla.qk_nope_head_dim;
    key.in = {own.q, head * query_width, head * query_width + mla.qk_nope_head_dim};
    key.out = own.latent_query;
    key.out_begin = head * rank;
    // ... and the value half brings the weighted latents back.
    Product& value = expand[static_cast<std::size_t>(head - own_heads.begin)];
    value.tensor = kv_b;
    value.first_output = head * kv_width + mla.qk_nope_head_dim;
    value.num_outputs = mla.v_head_dim;
    value.num_inputs = rank;
    value.in = {own.latent_out, head * rank, (head + 1) * rank};
    value.out = own.out;
    value.out_begin = head * mla.v_head_dim;
    if (mla.use_output_gate) {
      value.epilogue = Epilogue::kSigmoidGate;
      value.aux = own.gate;
    }
    if (fast) {
      key.panels = own.key_panels;
      key.panels_begin = head * panels_of_head(own.key_panels);
      value.panels = own.value_panels;
      value.panels_begin = head * panels_of_head(own.value_panels);
    }
  }
  segment.BeginPhase("mla_absorb");
  segment.EmitPerHead(absorb, aligned);

  if (builder.DividesContext()) {
    EmitDividedAttention(segment, own, buffers.shared.step_input);
  } else {
    EmitAttention(segment, own, buffers.shared.step_input);
  }

  segment.BeginPhase("mla_values");
  std::vector<Range> columns = SplitEvenly(heads, builder.num_ranks());
  for (Range& range : columns) {
    range = {range.begin * mla.v_head_dim, range.end * mla.v_head_dim};
  }
  builder.SetColumnsOfRanks(own.out, std::move(columns));
  segment.EmitPerHead(expand, aligned);
  if (fast) EmitExpandedAttention(segment, own, buffers.shared.step_input);
  EmitOutputProjection(segment, buffers, own.out);
}

}  // namespace megalith::program
