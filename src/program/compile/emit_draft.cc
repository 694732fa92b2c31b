// The DSpark drafter: its context from the target's residuals, and the block that proposes tokens.

#include <algorithm>
#include <cmath>
#include <optional>

#include "program/compile/layers.h"

namespace megalith::program {
namespace {

std::string LayerName(std::size_t layer, std::string_view part) {
  return fmt::format("draft.layers.{}.{}", layer, part);
}

const model::Drafter& DrafterOf(const SegmentBuilder& segment) {
  return *segment.builder.options.drafter;
}

bool HasDrafter(const SegmentBuilder& segment) {
  return segment.builder.options.drafter != nullptr;
}

std::int64_t KeyWidth(const model::Drafter& drafter) {
  return drafter.num_key_value_heads * drafter.head_dim;
}

/// RMS norm of rows that `trip` counts, shared out.
void EmitNorm(SegmentBuilder& segment, std::string phase, std::string weight, std::uint32_t in,
              std::uint32_t out, Register trip) {
  segment.BeginPhase(std::move(phase));
  Instruction norm;
  norm.opcode = Opcode::kRmsNorm;
  norm.trip = trip;
  norm.operands[0] = segment.builder.All(in);
  norm.operands[1] = segment.builder.All(out);
  norm.vectors[0] = segment.AddVector(std::move(weight), DType::kBf16, norm.operands[0].end);
  norm.scalar[0] = DrafterOf(segment).rms_norm_eps;
  segment.EmitOwnRows(norm);
}

/// A matrix product of block rows, level over the workers.
Product BlockProduct(SegmentBuilder& segment, std::string name, std::int64_t outputs,
                     std::uint32_t in, std::uint32_t out) {
  Product product = segment.Whole(std::move(name), outputs, in, out);
  product.trip = Register::kDraftRows;
  return product;
}

/// This rank's part of a product whose outputs are the key heads.
Product OfOwnKeyHeads(SegmentBuilder& segment, std::string name, std::uint32_t in,
                      std::uint32_t out) {
  const model::Drafter& drafter = DrafterOf(segment);
  return segment.OfOwnHeads(segment.Whole(std::move(name), KeyWidth(drafter), in, out),
                            drafter.num_key_value_heads);
}

void EmitResidualProduct(SegmentBuilder& segment, std::string phase, std::string name,
                         std::uint32_t in, std::uint32_t residual, std::uint32_t out) {
  const std::string phase_out = phase + "_out";
  segment.BeginPhase(std::move(phase));
  Product product = BlockProduct(segment, std::move(name), DrafterOf(segment).hidden_size, in, out);
  product.epilogue = Epilogue::kAddResidual;
  product.residual = residual;
  Leveler leveler(segment.builder);
  segment.EmitLevel(product, leveler);
  segment.EmitExchange({.name = phase_out, .buffers = {out}, .trip = Register::kDraftRows});
}

/// The linear layer in which a Markov head joins what the drafted tokens have left with the slot's
/// hidden row. The tokens' inputs lie side by side, as in the buffer `markov`.
struct MarkovProjection {
  std::string name;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::int64_t first_token_input = 0;
  std::int64_t first_hidden_input = 0;
};

/// Nothing for heads without one.
std::optional<MarkovProjection> ProjectionOf(const model::Drafter& drafter) {
  const std::int64_t hidden = drafter.hidden_size;
  const std::int64_t rank = drafter.markov_rank;
  if (rank == 0) return {};
  switch (drafter.markov_head) {
    case model::MarkovHead::kVanilla:
      return {};
    case model::MarkovHead::kGated:  // [h; e]
      return MarkovProjection{"draft.markov_head.gate_proj", rank, hidden + rank, hidden, 0};
    case model::MarkovHead::kRnn:  // [s; e; h]
      return MarkovProjection{"draft.markov_head.joint_proj", 3 * rank, 2 * rank + hidden, 0,
                              2 * rank};
  }
  return {};
}

bool HasMarkovState(const model::Drafter& drafter) {
  return drafter.markov_rank > 0 && drafter.markov_head == model::MarkovHead::kRnn;
}

/// The part of the projection whose inputs, from `first_input` on, are the rows of `in`.
Product PartOfProjection(SegmentBuilder& segment, const MarkovProjection& projection,
                         std::int64_t first_input, std::uint32_t in, std::uint32_t out) {
  Product product;
  product.tensor =
      segment.builder.AddTensor(projection.name, projection.outputs, projection.inputs);
  product.in = segment.builder.All(in);
  product.first_input = first_input;
  product.num_inputs = product.in.end;
  product.num_outputs = projection.outputs;
  product.out = out;
  return product;
}

/// The row of the Markov head's first matrix, behind the state if there is one.
Operand MarkovEmbedding(const SegmentBuilder& segment, const LayerBuffers& buffers) {
  Operand embedding = segment.builder.All(buffers.draft.markov);
  embedding.begin = embedding.end - DrafterOf(segment).markov_rank;
  return embedding;
}

/// Phases: from the embedding (and the state) to what the second matrix is multiplied with. Every
/// rank does all of it: these matrices cost less to read than an exchange.
void EmitMarkovProjection(SegmentBuilder& segment, const LayerBuffers& buffers,
                          const MarkovProjection& projection) {
  ProgramBuilder& builder = segment.builder;
  const DraftBuffers& own = buffers.draft;
  segment.BeginPhase("markov_projection");
  Product tokens = PartOfProjection(segment, projection, projection.first_token_input, own.markov,
                                    own.markov_projected);
  tokens.trip = Register::kDraftRuns;
  tokens.epilogue = Epilogue::kAddDraftBase;
  tokens.aux = own.markov_base;
  Leveler leveler(builder);
  segment.EmitOnEveryRank(tokens, leveler);

  segment.BeginPhase("markov_activation");
  const bool has_state = HasMarkovState(DrafterOf(segment));
  Instruction activate;
  activate.opcode = has_state ? Opcode::kMarkovRnn : Opcode::kMarkovGate;
  activate.trip = Register::kDraftRuns;
  activate.operands[0] = builder.All(own.markov_projected);
  activate.operands[1] = builder.All(own.markov);
  activate.operands[2] = builder.All(own.markov_out);
  if (has_state) activate.operands[3] = builder.All(own.markov_state);
  activate.vectors[0] =
      segment.AddVector(projection.name + ".bias", DType::kBf16, projection.outputs);
  segment.EmitOwnRows(activate);
}

void EmitDraftEmbed(SegmentBuilder& segment, const LayerBuffers& buffers) {
  ProgramBuilder& builder = segment.builder;
  segment.BeginPhase("draft_embed");
  Instruction embed;
  embed.opcode = Opcode::kDraftEmbed;
  embed.trip = Register::kDraftRows;
  embed.operands[0] = builder.All(buffers.tokens);
  embed.operands[1] = builder.All(buffers.draft.x[0]);
  embed.operands[2] = builder.All(buffers.shared.step_input);
  embed.imm[0] = builder.AddTable("draft.embed_tokens.weight", DrafterOf(segment).hidden_size);
  segment.EmitOwnRows(embed);
}

void EmitBlockAttention(SegmentBuilder& segment, const LayerBuffers& buffers, std::size_t layer) {
  ProgramBuilder& builder = segment.builder;
  const model::Drafter& drafter = DrafterOf(segment);
  const DraftBuffers& own = buffers.draft;
  const std::int64_t group = drafter.num_attention_heads / drafter.num_key_value_heads;
  segment.BeginPhase("draft_attention");
  Instruction attention;
  attention.opcode = Opcode::kDraftAttention;
  attention.trip = Register::kDraftRows;
  attention.vectors[0] = segment.AddVector(LayerName(layer, "self_attn.q_norm.weight"),
                                           DType::kBf16, drafter.head_dim);
  attention.vectors[1] = segment.AddVector(LayerName(layer, "self_attn.k_norm.weight"),
                                           DType::kBf16, drafter.head_dim);
  attention.scalar[0] = drafter.rms_norm_eps;
  attention.scalar[1] = static_cast<float>(drafter.rope_theta);
  attention.imm[2] = static_cast<std::int32_t>(group);
  attention.imm[3] = static_cast<std::int32_t>(drafter.layers[layer].sliding_window);
  attention.imm[4] = drafter.layers[layer].causal_in_block ? 1 : 0;
  std::vector<Range> columns = SplitEvenly(drafter.num_key_value_heads, builder.num_ranks());
  for (Range& range : columns) {
    const std::int64_t width = group * drafter.head_dim;
    range = {range.begin * width, range.end * width};
  }
  builder.SetColumnsOfRanks(own.attended, std::move(columns));
  const std::vector<Range> ranges =
      SplitEvenly(builder.OwnHeads(drafter.num_key_value_heads), segment.num_workers());
  for (std::int32_t worker = 0; worker < segment.num_workers(); ++worker) {
    const Range range = ranges[static_cast<std::size_t>(worker)];
    if (range.size() == 0) continue;
    attention.imm[0] = static_cast<std::int32_t>(range.begin);
    attention.imm[1] = static_cast<std::int32_t>(range.end);
    const auto heads = [&](std::uint32_t buffer, std::int64_t per_head) {
      const std::int64_t width = per_head * drafter.head_dim;
      return Operand{buffer, range.begin * width, range.end * width};
    };
    attention.operands[0] = heads(own.q, group);
    attention.operands[1] = heads(own.k, 1);
    attention.operands[2] = heads(own.v, 1);
    attention.operands[3] = builder.All(own.cache[layer]);
    attention.operands[4] = builder.All(buffers.tokens);
    attention.operands[5] = heads(own.attended, group);
    attention.operands[6] = builder.All(buffers.shared.step_input);
    segment.Emit(worker, attention);
  }
}

}  // namespace

void EmitDraftFusion(SegmentBuilder& segment, const LayerBuffers& buffers) {
  if (!HasDrafter(segment)) return;
  segment.BeginPhase("draft_fc");
  Leveler leveler(segment.builder);
  segment.EmitLevel(segment.Whole("draft.fc", DrafterOf(segment).hidden_size,
                                  buffers.draft.captured, buffers.draft.fused),
                    leveler);
  segment.EmitExchange({.name = "draft_fused", .buffers = {buffers.draft.fused}});
  EmitNorm(segment, "draft_hidden_norm", "draft.hidden_norm.weight", buffers.draft.fused,
           buffers.draft.context, Register::kRows);
}

void EmitDraftContext(SegmentBuilder& segment, const LayerBuffers& buffers) {
  if (!HasDrafter(segment)) return;
  const DraftBuffers& own = buffers.draft;
  segment.BeginPhase("draft_context");
  Leveler leveler(segment.builder);
  const auto project = [&](std::string name, std::uint32_t out) {
    segment.EmitOnEveryRank(OfOwnKeyHeads(segment, std::move(name), own.context, out), leveler);
  };
  for (std::size_t layer = 0; layer < own.cache.size(); ++layer) {
    project(LayerName(layer, "self_attn.k_proj"), own.context_k[layer]);
    project(LayerName(layer, "self_attn.v_proj"), own.context_v[layer]);
  }
}

void EmitDraftAppend(SegmentBuilder& segment, const LayerBuffers& buffers) {
  if (!HasDrafter(segment)) return;
  ProgramBuilder& builder = segment.builder;
  const model::Drafter& drafter = DrafterOf(segment);
  const DraftBuffers& own = buffers.draft;
  const Range heads = builder.OwnHeads(drafter.num_key_value_heads);
  if (heads.size() == 0) return;
  const Range columns{heads.begin * drafter.head_dim, heads.end * drafter.head_dim};
  segment.BeginPhase("draft_append");
  for (std::size_t layer = 0; layer < own.cache.size(); ++layer) {
    Instruction append;
    append.opcode = Opcode::kDraftAppend;
    append.trip = Register::kRows;
    append.operands[0] = {own.context_k[layer], columns.begin, columns.end};
    append.operands[1] = {own.context_v[layer], columns.begin, columns.end};
    append.operands[2] = builder.All(own.cache[layer]);
    append.operands[3] = builder.All(buffers.shared.step_input);
    append.vectors[0] = segment.AddVector(LayerName(layer, "self_attn.k_norm.weight"), DType::kBf16,
                                          drafter.head_dim);
    append.imm[0] = static_cast<std::int32_t>(heads.size());
    append.scalar[0] = drafter.rms_norm_eps;
    append.scalar[1] = static_cast<float>(drafter.rope_theta);
    segment.EmitOwnRows(append);
  }
}

void EmitDraftLayer(SegmentBuilder& segment, const LayerBuffers& buffers, std::size_t layer) {
  const model::Drafter& drafter = DrafterOf(segment);
  const DraftBuffers& own = buffers.draft;
  const std::int64_t query_width = drafter.num_attention_heads * drafter.head_dim;
  const std::uint32_t x = own.x[layer % 2];
  if (layer == 0) EmitDraftEmbed(segment, buffers);
  EmitNorm(segment, "draft_input_norm", LayerName(layer, "input_layernorm.weight"), x,
           own.attention_in, Register::kDraftRows);
  segment.BeginPhase("draft_qkv");
  Leveler leveler(segment.builder);
  const auto project = [&](std::string_view part, std::int64_t width, std::uint32_t out) {
    const Product all = BlockProduct(segment, LayerName(layer, part), width, own.attention_in, out);
    segment.EmitOnEveryRank(segment.OfOwnHeads(all, drafter.num_key_value_heads), leveler);
  };
  project("self_attn.q_proj", query_width, own.q);
  project("self_attn.k_proj", KeyWidth(drafter), own.k);
  project("self_attn.v_proj", KeyWidth(drafter), own.v);
  EmitBlockAttention(segment, buffers, layer);
  segment.EmitExchange(
      {.name = "draft_heads", .buffers = {own.attended}, .trip = Register::kDraftRows});
  EmitResidualProduct(segment, "draft_o_proj", LayerName(layer, "self_attn.o_proj"), own.attended,
                      x, own.x_mid);
  EmitNorm(segment, "draft_mlp_norm", LayerName(layer, "post_attention_layernorm.weight"),
           own.x_mid, own.mlp_in, Register::kDraftRows);
  segment.BeginPhase("draft_gate_up");
  Product gate = BlockProduct(segment, LayerName(layer, "mlp.gate_proj"), drafter.intermediate_size,
                              own.mlp_in, own.activated);
  gate.pair_tensor = segment.builder.AddTensor(LayerName(layer, "mlp.up_proj"),
                                               drafter.intermediate_size, drafter.hidden_size);
  gate.epilogue = Epilogue::kGatedPair;
  gate.activation = Activation::kSilu;
  Leveler gate_leveler(segment.builder);
  segment.EmitLevel(gate, gate_leveler);
  segment.EmitExchange(
      {.name = "draft_activated", .buffers = {own.activated}, .trip = Register::kDraftRows});
  EmitResidualProduct(segment, "draft_down_proj", LayerName(layer, "mlp.down_proj"), own.activated,
                      own.x_mid, own.x[(layer + 1) % 2]);
}

void EmitDraftHead(SegmentBuilder& segment, const LayerBuffers& buffers) {
  EmitNorm(segment, "draft_final_norm", "draft.norm.weight",
           buffers.draft.x[DrafterOf(segment).layers.size() % 2], buffers.draft.hidden,
           Register::kDraftRows);
  segment.BeginPhase("draft_lm_head");
  Leveler leveler(segment.builder);
  segment.EmitLevel(BlockProduct(segment, "draft.lm_head", DrafterOf(segment).vocab_size,
                                 buffers.draft.hidden, buffers.draft.base_logits),
                    leveler);
  // What does not depend on drafted tokens is computed here for all slots at once.
  if (const auto projection = ProjectionOf(DrafterOf(segment))) {
    Product hidden = PartOfProjection(segment, *projection, projection->first_hidden_input,
                                      buffers.draft.hidden, buffers.draft.markov_base);
    hidden.trip = Register::kDraftRows;
    segment.EmitOnEveryRank(hidden, leveler);
  }
  // With a Markov head its rows of the vocabulary are the same rank's, and no others are read.
  if (DrafterOf(segment).markov_rank == 0) {
    segment.EmitExchange({.name = "draft_logits",
                          .buffers = {buffers.draft.base_logits},
                          .trip = Register::kDraftRows});
  }
}

void EmitDraftToken(SegmentBuilder& segment, const LayerBuffers& buffers) {
  ProgramBuilder& builder = segment.builder;
  const model::Drafter& drafter = DrafterOf(segment);
  const DraftBuffers& own = buffers.draft;
  const bool has_markov = drafter.markov_rank > 0;
  if (has_markov) {
    segment.BeginPhase("markov_embed");
    Instruction embed;
    embed.opcode = Opcode::kMarkovEmbed;
    embed.trip = Register::kDraftRuns;
    embed.operands[0] = builder.All(buffers.tokens);
    embed.operands[1] = builder.All(own.tokens);
    embed.operands[2] = builder.All(own.markov);
    embed.operands[3] = builder.All(buffers.shared.step_input);
    if (HasMarkovState(drafter)) embed.operands[4] = builder.All(own.markov_state);
    embed.imm[0] = builder.AddTable("draft.markov_head.markov_w1.weight", drafter.markov_rank);
    segment.EmitOwnRows(embed);

    const auto projection = ProjectionOf(drafter);
    if (projection) EmitMarkovProjection(segment, buffers, *projection);

    segment.BeginPhase("markov_bias");
    Product bias = segment.Whole("draft.markov_head.markov_w2", drafter.vocab_size,
                                 projection ? own.markov_out : own.markov, own.logits);
    bias.trip = Register::kDraftRuns;
    bias.epilogue = Epilogue::kAddDraftBase;
    bias.aux = own.base_logits;
    Leveler leveler(segment.builder);
    segment.EmitLevel(bias, leveler);
    segment.EmitExchange(
        {.name = "draft_logits", .buffers = {own.logits}, .trip = Register::kDraftRuns});
  }

  segment.BeginPhase("draft_choose");
  Instruction choose;
  choose.opcode = Opcode::kDraftChoose;
  choose.trip = Register::kDraftRuns;
  choose.operands[0] = builder.All(has_markov ? own.logits : own.base_logits);
  if (has_markov) choose.operands[2] = MarkovEmbedding(segment, buffers);
  choose.operands[3] = builder.All(own.tokens);
  choose.operands[5] = builder.All(buffers.tokens);
  choose.operands[6] = builder.All(buffers.shared.step_input);
  if (drafter.confidence_head) {
    const bool with_markov = has_markov && drafter.confidence_with_markov;
    choose.operands[1] = builder.All(own.hidden);
    choose.operands[4] = builder.All(own.confidence);
    choose.vectors[0] =
        segment.AddVector("draft.confidence_head.proj.weight", DType::kBf16,
                          drafter.hidden_size + (with_markov ? drafter.markov_rank : 0));
    choose.vectors[1] = segment.AddVector("draft.confidence_head.proj.bias", DType::kBf16, 1);
    choose.imm[0] = with_markov ? 1 : 0;
  }
  segment.EmitOwnRows(choose);
}

void AddDraftBuffers(ProgramBuilder& builder, LayerBuffers& buffers) {
  if (builder.options.drafter == nullptr) return;
  const model::Drafter& drafter = *builder.options.drafter;
  DraftBuffers& own = buffers.draft;
  const auto captures = static_cast<std::int64_t>(drafter.aux_layers.size());
  own.captured = builder.AddRows("draft_captured", captures * drafter.hidden_size);
  own.fused = builder.AddRows("draft_fused", drafter.hidden_size);
  // Keys and values of this rank's heads only; a drafter may have fewer than there are ranks.
  const std::int64_t own_keys =
      2 * builder.OwnHeads(drafter.num_key_value_heads).size() * drafter.head_dim;
  own.context = builder.AddCopiedRows("draft_context", BufferKind::kRows, drafter.hidden_size);
  for (std::size_t layer = 0; layer < drafter.layers.size(); ++layer) {
    own.context_k.push_back(
        builder.AddRows(fmt::format("draft_context_k_{}", layer), KeyWidth(drafter)));
    own.context_v.push_back(
        builder.AddRows(fmt::format("draft_context_v_{}", layer), KeyWidth(drafter)));
    own.cache.push_back(builder.AddBuffer(fmt::format("draft_cache_{}", layer),
                                          BufferKind::kDraftCache, builder.options.activation_dtype,
                                          std::max<std::int64_t>(own_keys, 1)));
  }
  if (builder.options.draft_runs == 0) return;
  const auto add = [&](std::string name, BufferKind kind, std::int64_t columns) {
    return builder.AddBuffer(std::move(name), kind, builder.options.activation_dtype, columns);
  };
  const std::int64_t query_width = drafter.num_attention_heads * drafter.head_dim;
  own.x = {add("draft_x_even", BufferKind::kDraftRows, drafter.hidden_size),
           add("draft_x_odd", BufferKind::kDraftRows, drafter.hidden_size)};
  own.x_mid = add("draft_x_mid", BufferKind::kDraftRows, drafter.hidden_size);
  own.attention_in = add("draft_attention_in", BufferKind::kDraftRows, drafter.hidden_size);
  own.mlp_in = add("draft_mlp_in", BufferKind::kDraftRows, drafter.hidden_size);
  own.q = add("draft_q", BufferKind::kDraftRows, query_width);
  own.k = add("draft_k", BufferKind::kDraftRows, KeyWidth(drafter));
  own.v = add("draft_v", BufferKind::kDraftRows, KeyWidth(drafter));
  own.attended = add("draft_attended", BufferKind::kDraftRows, query_width);
  own.activated = add("draft_activated", BufferKind::kDraftRows, drafter.intermediate_size);
  own.hidden = add("draft_hidden", BufferKind::kDraftRows, drafter.hidden_size);
  own.base_logits = builder.AddBuffer("draft_base_logits", BufferKind::kDraftRows, DType::kF32,
                                      drafter.vocab_size);
  if (drafter.markov_rank > 0) {
    const auto add_runs = [&](std::string name, std::int64_t columns) {
      return builder.AddCopiedRows(std::move(name), BufferKind::kDraftRuns, columns);
    };
    own.markov = add_runs("draft_markov", (HasMarkovState(drafter) ? 2 : 1) * drafter.markov_rank);
    if (const auto projection = ProjectionOf(drafter)) {
      own.markov_base = builder.AddBuffer("draft_markov_base", BufferKind::kDraftRows, DType::kF32,
                                          projection->outputs);
      own.markov_projected = builder.AddBuffer("draft_markov_projected", BufferKind::kDraftRuns,
                                               DType::kF32, projection->outputs);
      own.markov_out = add_runs("draft_markov_out", drafter.markov_rank);
    }
    if (HasMarkovState(drafter)) {
      own.markov_state = add_runs("draft_markov_state", drafter.markov_rank);
    }
    own.logits =
        builder.AddBuffer("draft_logits", BufferKind::kDraftRuns, DType::kF32, drafter.vocab_size);
  }
  own.tokens = builder.AddBuffer("draft_tokens", BufferKind::kDraftRuns, DType::kI32,
                                 builder.options.num_drafts);
  if (drafter.confidence_head) {
    own.confidence = builder.AddBuffer("draft_confidence", BufferKind::kDraftRuns, DType::kF32,
                                       builder.options.num_drafts);
  }
}

}  // namespace megalith::program
