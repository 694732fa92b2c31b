#include "model/tensors.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "model/rule_list.h"

namespace megalith::model {
namespace {

constexpr std::string_view kLayer = "{layer}";
constexpr std::string_view kExpert = "{expert}";
constexpr std::int64_t kMxfp4Group = 32;

std::uint64_t SaturatingAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::numeric_limits<std::uint64_t>::max();
  return sum;
}

std::uint64_t SaturatingMultiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::numeric_limits<std::uint64_t>::max();
  return product;
}

// Spec 3.3.
void AddKda(const Model& model, RuleList* rules) {
  const KdaConfig& kda = model.kda;
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t width = kda.num_heads * kda.head_dim;
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) {
    rules->Matrix(name, width, hidden, Part::kKda);
  }
  for (const char* name :
       {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight"}) {
    rules->ConvTaps(name, width, kda.short_conv_kernel_size, Part::kKda);
  }
  // The released file stores head_dim entries for num_heads heads, the rest is zero.
  rules->PerHead("self_attn.A_log", kda.num_heads, std::max(kda.num_heads, kda.head_dim),
                 Part::kKda);
  rules->Plain("self_attn.dt_bias", DType::kF32, {width}, Part::kKda);
  rules->Matrix("self_attn.f_a_proj", kda.head_dim, hidden, Part::kKda);
  rules->Matrix("self_attn.f_b_proj", width, kda.head_dim, Part::kKda);
  rules->Matrix("self_attn.b_proj", kda.num_heads, hidden, Part::kKda);
  rules->Plain("self_attn.o_norm.weight", DType::kF32, {kda.head_dim}, Part::kKda);
  if (kda.use_full_rank_gate) {
    rules->Matrix("self_attn.g_proj", width, hidden, Part::kKda);
  } else {
    rules->Matrix("self_attn.g_a_proj", kda.head_dim, hidden, Part::kKda);
    rules->Matrix("self_attn.g_b_proj", width, kda.head_dim, Part::kKda);
  }
  rules->Matrix("self_attn.o_proj", hidden, width, Part::kKda);
}

// Spec 3.4.
void AddMla(const Model& model, RuleList* rules) {
  const MlaConfig& mla = model.mla;
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t heads = mla.num_attention_heads;
  const std::int64_t query_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
  if (mla.q_lora_rank) {
    rules->Matrix("self_attn.q_a_proj", *mla.q_lora_rank, hidden, Part::kMla);
    rules->Plain("self_attn.q_a_layernorm.weight", DType::kBf16, {*mla.q_lora_rank}, Part::kMla);
    rules->Matrix("self_attn.q_b_proj", query_width, *mla.q_lora_rank, Part::kMla);
  } else {
    rules->Matrix("self_attn.q_proj", query_width, hidden, Part::kMla);
  }
  rules->Matrix("self_attn.kv_a_proj_with_mqa", mla.kv_lora_rank + mla.qk_rope_head_dim, hidden,
                Part::kMla);
  rules->Plain("self_attn.kv_a_layernorm.weight", DType::kBf16, {mla.kv_lora_rank}, Part::kMla);
  rules->Matrix("self_attn.kv_b_proj", heads * (mla.qk_nope_head_dim + mla.v_head_dim),
                mla.kv_lora_rank, Part::kMla);
  if (mla.use_output_gate) {
    rules->Matrix("self_attn.g_proj", heads * mla.v_head_dim, hidden, Part::kMla);
  }
  rules->Matrix("self_attn.o_proj", hidden, heads * mla.v_head_dim, Part::kMla);
}

// Spec 3.5, MoE rows.
void AddMoe(const Model& model, RuleList* rules) {
  const MoeConfig& moe = model.moe;
  const std::int64_t hidden = model.hidden_size;
  rules->Matrix("block_sparse_moe.gate", moe.num_experts, hidden, Part::kRouter);
  rules->Plain("block_sparse_moe.gate.e_score_correction_bias", DType::kF32, {moe.num_experts},
               Part::kRouter);
  if (moe.routed_expert_hidden_size) {
    const std::int64_t latent = *moe.routed_expert_hidden_size;
    rules->Matrix("block_sparse_moe.routed_expert_down_proj", latent, hidden, Part::kLatent);
    if (moe.latent_moe_use_norm) {
      rules->Plain("block_sparse_moe.routed_expert_norm.weight", DType::kBf16, {latent},
                   Part::kLatent);
    }
    rules->Matrix("block_sparse_moe.routed_expert_up_proj", hidden, latent, Part::kLatent);
  }
  if (moe.num_shared_experts > 0) {
    const std::int64_t shared = moe.num_shared_experts * moe.moe_intermediate_size;
    rules->Matrix("block_sparse_moe.shared_experts.gate_proj", shared, hidden,
                  Part::kSharedExperts);
    rules->Matrix("block_sparse_moe.shared_experts.up_proj", shared, hidden, Part::kSharedExperts);
    rules->Matrix("block_sparse_moe.shared_experts.down_proj", hidden, shared,
                  Part::kSharedExperts);
  }
  const std::int64_t width = model.ExpertWidth();
  const std::int64_t intermediate = moe.moe_intermediate_size;
  rules->Matrix("block_sparse_moe.experts.{expert}.w1", intermediate, width, Part::kExperts,
                moe.num_experts);
  rules->Matrix("block_sparse_moe.experts.{expert}.w2", width, intermediate, Part::kExperts,
                moe.num_experts);
  rules->Matrix("block_sparse_moe.experts.{expert}.w3", intermediate, width, Part::kExperts,
                moe.num_experts);
}

void AddAttnRes(std::string_view name, std::int64_t hidden, RuleList* rules) {
  rules->Plain(std::string(name) + "_norm.weight", DType::kBf16, {hidden}, Part::kNorms);
  rules->Plain(std::string(name) + "_proj.weight", DType::kBf16, {1, hidden}, Part::kNorms);
}

std::vector<TensorRule> LayerRules(const Model& model, const Layer& layer) {
  const std::int64_t hidden = model.hidden_size;
  RuleList rules("layers.{layer}.");
  rules.Plain("input_layernorm.weight", DType::kBf16, {hidden}, Part::kNorms);
  rules.Plain("post_attention_layernorm.weight", DType::kBf16, {hidden}, Part::kNorms);
  if (layer.residual == ResidualRule::kAttnRes) {
    AddAttnRes("self_attention_res", hidden, &rules);
    AddAttnRes("mlp_res", hidden, &rules);
  }
  layer.mixer == Mixer::kKda ? AddKda(model, &rules) : AddMla(model, &rules);
  if (layer.feed_forward == FeedForward::kMoe) {
    AddMoe(model, &rules);
  } else {
    rules.Matrix("mlp.gate_proj", model.intermediate_size, hidden, Part::kDenseFfn);
    rules.Matrix("mlp.up_proj", model.intermediate_size, hidden, Part::kDenseFfn);
    rules.Matrix("mlp.down_proj", hidden, model.intermediate_size, Part::kDenseFfn);
  }
  return rules.Take();
}

std::vector<TensorRule> ModelRules(const Model& model) {
  RuleList rules("");
  rules.Plain("embed_tokens.weight", DType::kBf16, {model.vocab_size, model.hidden_size},
              Part::kEmbedding);
  rules.Plain("norm.weight", DType::kBf16, {model.hidden_size}, Part::kNorms);
  if (model.attn_res_block_size > 0) AddAttnRes("output_attn_res", model.hidden_size, &rules);
  if (!model.tie_word_embeddings) {
    rules.Matrix("lm_head", model.vocab_size, model.hidden_size, Part::kHead);
  }
  return rules.Take();
}

void Accumulate(const TensorRule& rule, std::uint64_t count, bool mxfp4_experts,
                std::array<StoredSize, kNumParts>* parts) {
  const StoredSize one = SizeOf(rule, mxfp4_experts && rule.part == Part::kExperts);
  if (rule.num_experts > 0) {
    count = SaturatingMultiply(count, static_cast<std::uint64_t>(rule.num_experts));
  }
  StoredSize& sum = (*parts)[static_cast<std::size_t>(rule.part)];
  sum.num_tensors = SaturatingAdd(sum.num_tensors, SaturatingMultiply(one.num_tensors, count));
  sum.num_parameters =
      SaturatingAdd(sum.num_parameters, SaturatingMultiply(one.num_parameters, count));
  sum.num_bytes = SaturatingAdd(sum.num_bytes, SaturatingMultiply(one.num_bytes, count));
}

}  // namespace

std::string_view PartName(Part part) {
  switch (part) {
    case Part::kEmbedding:
      return "embedding";
    case Part::kKda:
      return "kda";
    case Part::kMla:
      return "mla";
    case Part::kDenseFfn:
      return "dense_ffn";
    case Part::kRouter:
      return "router";
    case Part::kLatent:
      return "latent";
    case Part::kSharedExperts:
      return "shared_experts";
    case Part::kExperts:
      return "experts";
    case Part::kNorms:
      return "norms";
    case Part::kHead:
      return "head";
    case Part::kAttention:
      return "attention";
    case Part::kFusion:
      return "fusion";
  }
  return "unknown";
}

TensorRules MakeTensorRules(const Model& model) {
  TensorRules rules;
  rules.model_rules = ModelRules(model);
  using Kind = std::tuple<Mixer, FeedForward, ResidualRule>;
  std::vector<Kind> kinds;
  for (const Layer& layer : model.layers) {
    const Kind kind(layer.mixer, layer.feed_forward, layer.residual);
    const auto found = std::find(kinds.begin(), kinds.end(), kind);
    rules.kind_of_layer.push_back(static_cast<std::uint32_t>(found - kinds.begin()));
    if (found != kinds.end()) continue;
    kinds.push_back(kind);
    rules.layer_kinds.push_back(LayerRules(model, layer));
  }
  return rules;
}

std::vector<TensorRule> FamilyTensorRules(const Model& model) {
  Model all = model;
  all.attn_res_block_size = 1;
  all.tie_word_embeddings = false;
  all.mla.use_output_gate = true;
  all.moe.num_shared_experts = 1;
  all.moe.routed_expert_hidden_size = 1;
  all.moe.latent_moe_use_norm = true;
  std::vector<TensorRule> rules = ModelRules(all);
  // Each pair of these excludes the other in one layer.
  for (const bool first : {true, false}) {
    all.kda.use_full_rank_gate = first;
    all.mla.q_lora_rank = first ? std::optional<std::int64_t>(1) : std::nullopt;
    for (const Layer& layer :
         {Layer{Mixer::kKda, FeedForward::kDense, ResidualRule::kAttnRes, false},
          Layer{Mixer::kMla, FeedForward::kMoe, ResidualRule::kAttnRes, false}}) {
      for (TensorRule& rule : LayerRules(all, layer)) rules.push_back(std::move(rule));
    }
  }
  return rules;
}

StoredSize SizeOf(const TensorRule& rule, bool mxfp4) {
  std::uint64_t parameters = 1;
  for (const std::int64_t extent : rule.shape) {
    parameters = SaturatingMultiply(parameters, static_cast<std::uint64_t>(extent));
  }
  if (rule.kind == TensorKind::kPerHead)
    parameters = static_cast<std::uint64_t>(rule.stored_length);
  if (rule.kind == TensorKind::kMatrix && mxfp4) {
    return {2, parameters, parameters / 2 + parameters / kMxfp4Group};
  }
  const auto element_bytes = static_cast<std::uint64_t>(DTypeBytes(rule.dtype));
  return {1, parameters, SaturatingMultiply(parameters, element_bytes)};
}

std::array<StoredSize, kNumParts> CountTensors(const TensorRules& rules, bool mxfp4_experts) {
  std::array<StoredSize, kNumParts> parts = {};
  for (const TensorRule& rule : rules.model_rules) Accumulate(rule, 1, mxfp4_experts, &parts);
  std::vector<std::uint64_t> layers_of_kind(rules.layer_kinds.size(), 0);
  for (const std::uint32_t kind : rules.kind_of_layer) ++layers_of_kind[kind];
  for (std::size_t kind = 0; kind < rules.layer_kinds.size(); ++kind) {
    for (const TensorRule& rule : rules.layer_kinds[kind]) {
      Accumulate(rule, layers_of_kind[kind], mxfp4_experts, &parts);
    }
  }
  return parts;
}

StoredSize Total(const std::array<StoredSize, kNumParts>& parts) {
  StoredSize total;
  for (const StoredSize& part : parts) {
    total.num_tensors = SaturatingAdd(total.num_tensors, part.num_tensors);
    total.num_parameters = SaturatingAdd(total.num_parameters, part.num_parameters);
    total.num_bytes = SaturatingAdd(total.num_bytes, part.num_bytes);
  }
  return total;
}

void ExpandTensorName(const TensorRule& rule, std::int64_t layer, std::int64_t expert,
                      std::string* out) {
  out->clear();
  std::string_view rest = rule.name;
  const auto replace = [&](std::string_view placeholder, std::int64_t number) {
    const std::size_t at = rest.find(placeholder);
    if (at == std::string_view::npos) return;
    out->append(rest.substr(0, at));
    char digits[24];
    const auto result = std::to_chars(digits, digits + sizeof(digits), number);
    out->append(digits, result.ptr);
    rest.remove_prefix(at + placeholder.size());
  };
  replace(kLayer, layer);
  replace(kExpert, expert);
  out->append(rest);
}

}  // namespace megalith::model
