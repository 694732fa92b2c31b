// The two ends of a step (embedding, head), the residual norm every layer uses, and the buffers.

#include <algorithm>

#include "base/align.h"
#include "kernels/layout.h"
#include "program/attention_division.h"
#include "program/compile/layers.h"

namespace megalith::program {

void EmitResidualNorm(SegmentBuilder& segment, const LayerBuffers& buffers,
                      const ResidualNorm& names, std::uint32_t in, std::uint32_t out,
                      bool before_push, Register trip) {
  ProgramBuilder& builder = segment.builder;
  const std::int64_t hidden = builder.model.hidden_size;
  segment.BeginPhase(names.phase);
  Instruction instruction;
  instruction.opcode = Opcode::kAttnResNorm;
  instruction.trip = trip;
  if (builder.model.attn_res_block_size > 0) {
    instruction.vectors[0] =
        segment.AddFold(names.mix + "_norm.weight", names.mix + "_proj.weight", hidden);
    instruction.operands[1] = builder.All(buffers.shared.blocks);
    instruction.imm[0] = before_push ? 1 : 0;
  }
  instruction.vectors[1] = segment.AddVector(names.norm, DType::kBf16, hidden);
  instruction.scalar[0] = builder.model.rms_norm_eps;
  instruction.operands[0] = builder.All(in);
  instruction.operands[2] = builder.All(out);
  if (trip == Register::kLogitRows) {
    instruction.imm[1] = 1;
    instruction.operands[3] = builder.All(buffers.shared.step_input);
  }
  segment.EmitOwnRows(instruction);
}

void EmitCopiesOfPrefix(SegmentBuilder& segment, const LayerBuffers& buffers) {
  const auto copy = [&](std::string phase, Opcode opcode, std::uint32_t to) {
    if (to == kNone) return;
    segment.BeginPhase(std::move(phase));
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.trip = Register::kRows;
    instruction.operands[0] = segment.builder.All(buffers.shared.prefix);
    instruction.operands[1] = segment.builder.All(to);
    segment.EmitOwnRows(instruction);
  };
  copy("push_block", Opcode::kPushBlock, buffers.shared.blocks);
  copy("capture_residual", Opcode::kCaptureResidual, buffers.draft.captured);
}

void EmitEmbedding(SegmentBuilder& segment, const LayerBuffers& buffers) {
  ProgramBuilder& builder = segment.builder;
  segment.BeginPhase("step_begin");
  Instruction begin;
  begin.opcode = Opcode::kStepBegin;
  begin.operands[0] = builder.All(buffers.shared.step_input);
  for (std::int32_t worker = 0; worker < segment.num_workers(); ++worker) {
    segment.Emit(worker, begin);
  }
  segment.BeginPhase("embed");
  Instruction embed;
  embed.opcode = Opcode::kEmbed;
  embed.trip = Register::kRows;
  embed.operands[0] = builder.All(buffers.shared.step_input);
  embed.operands[1] = builder.All(buffers.shared.prefix);
  embed.imm[0] = builder.AddTable("embed_tokens.weight", builder.model.hidden_size);
  segment.EmitOwnRows(embed);
}

void EmitHead(SegmentBuilder& segment, const LayerBuffers& buffers) {
  ProgramBuilder& builder = segment.builder;
  const model::Model& model = builder.model;
  const std::uint32_t head_in =
      builder.AddCopiedRows("head_in", BufferKind::kLogitRows, model.hidden_size);
  const std::uint32_t logits =
      builder.AddBuffer("logits", BufferKind::kLogitRows, DType::kF32, model.vocab_size);

  // The drafter's context fills what would be waits: for the norm, and for the logits.
  EmitResidualNorm(segment, buffers, {"final_norm", "output_attn_res", "norm.weight"},
                   buffers.shared.prefix, head_in, false, Register::kLogitRows);
  EmitDraftFusion(segment, buffers);

  segment.BeginPhase("lm_head");
  Product head = segment.Whole("lm_head", model.vocab_size, head_in, logits);
  head.trip = Register::kLogitRows;
  Leveler leveler(builder);
  segment.EmitLevel(head, leveler);
  const ExchangePlan exchange{.name = "logits", .buffers = {logits}, .trip = Register::kLogitRows};
  segment.BeginExchange(exchange);
  EmitDraftContext(segment, buffers);
  segment.FinishExchange(exchange);

  segment.BeginPhase("sample");
  Instruction sample;
  sample.opcode = Opcode::kSample;
  sample.trip = Register::kLogitRows;
  sample.operands[0] = builder.All(logits);
  sample.operands[1] = builder.All(buffers.tokens);
  sample.operands[2] = builder.All(buffers.shared.step_input);
  segment.EmitOwnRows(sample);
  EmitDraftAppend(segment, buffers);
}

void EmitStepEnd(SegmentBuilder& segment) {
  segment.BeginPhase("step_end");
  Instruction end;
  end.opcode = Opcode::kStepEnd;
  for (std::int32_t worker = 0; worker < segment.num_workers(); ++worker) {
    segment.Emit(worker, end);
  }
}

LayerBuffers AddLayerBuffers(ProgramBuilder& builder) {
  const model::Model& model = builder.model;
  LayerBuffers buffers;
  SharedBuffers& shared = buffers.shared;
  shared.step_input = builder.AddBuffer("step_input", BufferKind::kStepInput, DType::kI32, 1);
  shared.prefix = builder.AddRows("prefix", model.hidden_size);
  shared.prefix_mid = builder.AddRows("prefix_mid", model.hidden_size);
  if (model.attn_res_block_size > 0) {
    shared.blocks = builder.AddRows("blocks", model.MaxBlocks() * model.hidden_size);
  }
  buffers.tokens = builder.AddBuffer("tokens", BufferKind::kLogitRows, DType::kI32, 1);
  AddDraftBuffers(builder, buffers);
  shared.mixer_in = builder.AddCopiedRows("mixer_in", BufferKind::kRows, model.hidden_size);
  shared.ffn_in = builder.AddCopiedRows("ffn_in", BufferKind::kRows, model.hidden_size);

  // Sets of which only one is in use at a time start at the same place.
  const std::int64_t mixer_begin = builder.arena_position();
  std::int64_t mixer_end = mixer_begin;
  if (model.CountLayers(model::Mixer::kKda) > 0) {
    const model::KdaConfig& kda = model.kda;
    const std::int64_t width = kda.num_heads * kda.head_dim;
    KdaBuffers& own = buffers.kda;
    own.q = builder.AddRows("kda_q", width);
    own.k = builder.AddRows("kda_k", width);
    own.v = builder.AddRows("kda_v", width);
    own.gate = builder.AddRows("kda_gate", width);
    own.gate_a = kda.use_full_rank_gate ? kNone : builder.AddRows("kda_gate_a", kda.head_dim);
    own.decay_a = builder.AddRows("kda_decay_a", kda.head_dim);
    own.decay = builder.AddRows("kda_decay", width);
    own.beta = builder.AddRows("kda_beta", kda.num_heads);
    own.out = builder.AddRows("kda_out", width);
    // State is kept for this rank's heads only.
    const std::int64_t state_rows = builder.OwnHeads(kda.num_heads).size() * kda.head_dim;
    own.state =
        builder.AddBuffer("kda_state", BufferKind::kKdaState, DType::kF32,
                          state_rows * RoundUp<std::int64_t>(kda.head_dim, kernels::kLanes));
    own.conv =
        builder.AddBuffer("kda_conv", BufferKind::kConvState, builder.options.activation_dtype,
                          (kda.short_conv_kernel_size - 1) * 3 * state_rows);
    mixer_end = std::max(mixer_end, builder.arena_position());
    builder.set_arena_position(mixer_begin);
  }
  if (model.CountLayers(model::Mixer::kMla) > 0) {
    const model::MlaConfig& mla = model.mla;
    const std::int64_t heads = mla.num_attention_heads;
    MlaBuffers& own = buffers.mla;
    own.q_a = mla.q_lora_rank ? builder.AddRows("mla_q_a", *mla.q_lora_rank) : kNone;
    own.q_a_norm = mla.q_lora_rank
                       ? builder.AddCopiedRows("mla_q_a_norm", BufferKind::kRows, *mla.q_lora_rank)
                       : kNone;
    own.kv_a = builder.AddRows("mla_kv_a", mla.kv_lora_rank + mla.qk_rope_head_dim);
    own.q = builder.AddRows("mla_q", heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim));
    own.gate = mla.use_output_gate ? builder.AddRows("mla_gate", heads * mla.v_head_dim) : kNone;
    own.latent_query = builder.AddBuffer("mla_latent_query", BufferKind::kRows, DType::kF32,
                                         heads * mla.kv_lora_rank);
    own.latent_out = builder.AddBuffer("mla_latent_out", BufferKind::kRows, DType::kF32,
                                       heads * mla.kv_lora_rank);
    own.out = builder.AddRows("mla_out", heads * mla.v_head_dim);
    own.cache =
        builder.AddBuffer("mla_cache", BufferKind::kMlaCache, builder.options.activation_dtype,
                          mla.kv_lora_rank + mla.qk_rope_head_dim);
    if (builder.DividesContext()) {
      const std::int64_t workers = builder.options.num_workers;
      const std::int64_t items =
          MaxItemsOfShare(builder.OwnHeads(heads).size(), builder.options.max_positions, workers);
      own.partials = builder.AddBuffer("mla_partials", BufferKind::kRows, DType::kF32,
                                       workers * items * PartialStride(mla.kv_lora_rank));
    }
    if (builder.HasFastRuns()) {
      const auto panels = [](std::int64_t outputs, std::int64_t inputs) {
        return RoundUp<std::int64_t>(outputs, kernels::kPanelOutputs) *
               kernels::PaddedInputs(inputs);
      };
      own.key_panels = builder.AddBuffer("mla_key_panels", BufferKind::kSingle, DType::kBf16,
                                         heads * panels(mla.kv_lora_rank, mla.qk_nope_head_dim));
      own.value_panels = builder.AddBuffer("mla_value_panels", BufferKind::kSingle, DType::kBf16,
                                           heads * panels(mla.v_head_dim, mla.kv_lora_rank));
    }
    mixer_end = std::max(mixer_end, builder.arena_position());
  }
  builder.set_arena_position(mixer_end);

  const std::int64_t ffn_begin = builder.arena_position();
  std::int64_t ffn_end = ffn_begin;
  if (model.CountLayers(model::FeedForward::kDense) > 0) {
    buffers.dense.activated = builder.AddRows("mlp_activated", model.intermediate_size);
    ffn_end = std::max(ffn_end, builder.arena_position());
    builder.set_arena_position(ffn_begin);
  }
  if (model.CountLayers(model::FeedForward::kMoe) > 0) {
    const model::MoeConfig& moe = model.moe;
    MoeBuffers& own = buffers.moe;
    own.scores =
        builder.AddBuffer("router_scores", BufferKind::kRows, DType::kF32, moe.num_experts);
    own.ids =
        builder.AddBuffer("router_ids", BufferKind::kRows, DType::kI32, moe.num_experts_per_token);
    own.weights = builder.AddBuffer("router_weights", BufferKind::kRows, DType::kF32,
                                    moe.num_experts_per_token);
    own.plan = builder.AddBuffer(
        "route_plan", BufferKind::kSingle, DType::kI32,
        PlanColumns(moe.num_experts, builder.options.max_rows * moe.num_experts_per_token));
    own.latent =
        moe.routed_expert_hidden_size ? builder.AddRows("latent", model.ExpertWidth()) : kNone;
    own.expert_activated =
        builder.AddBuffer("expert_activated", BufferKind::kPairs, builder.options.activation_dtype,
                          moe.moe_intermediate_size);
    if (builder.options.ranks.expert_parallel > 1) {
      own.expert_out = builder.AddBuffer("expert_out", BufferKind::kPairs,
                                         builder.options.activation_dtype, model.ExpertWidth());
    }
    own.routed = builder.AddRows("routed", model.ExpertWidth());
    own.routed_norm =
        moe.latent_moe_use_norm
            ? builder.AddCopiedRows("routed_norm", BufferKind::kRows, model.ExpertWidth())
            : kNone;
    if (moe.num_shared_experts > 0) {
      own.shared_activated =
          builder.AddRows("shared_activated", moe.num_shared_experts * moe.moe_intermediate_size);
      own.shared_out =
          builder.AddBuffer("shared_out", BufferKind::kRows, DType::kF32, model.hidden_size);
    }
    ffn_end = std::max(ffn_end, builder.arena_position());
  }
  builder.set_arena_position(ffn_end);
  return buffers;
}

}  // namespace megalith::program
