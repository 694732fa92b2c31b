#include "model/drafter_tensors.h"

#include <fmt/format.h>

#include <utility>

#include "model/rule_list.h"

namespace megalith::model {
namespace {

std::vector<TensorRule> LayerRules(const Drafter& drafter) {
  const std::int64_t hidden = drafter.hidden_size;
  const std::int64_t query_width = drafter.num_attention_heads * drafter.head_dim;
  const std::int64_t key_width = drafter.num_key_value_heads * drafter.head_dim;
  RuleList rules("layers.{layer}.");
  rules.Plain("input_layernorm.weight", DType::kBf16, {hidden}, Part::kNorms);
  rules.Matrix("self_attn.q_proj", query_width, hidden, Part::kAttention);
  rules.Matrix("self_attn.k_proj", key_width, hidden, Part::kAttention);
  rules.Matrix("self_attn.v_proj", key_width, hidden, Part::kAttention);
  rules.Plain("self_attn.q_norm.weight", DType::kBf16, {drafter.head_dim}, Part::kAttention);
  rules.Plain("self_attn.k_norm.weight", DType::kBf16, {drafter.head_dim}, Part::kAttention);
  rules.Matrix("self_attn.o_proj", hidden, query_width, Part::kAttention);
  rules.Plain("post_attention_layernorm.weight", DType::kBf16, {hidden}, Part::kNorms);
  rules.Matrix("mlp.gate_proj", drafter.intermediate_size, hidden, Part::kDenseFfn);
  rules.Matrix("mlp.up_proj", drafter.intermediate_size, hidden, Part::kDenseFfn);
  rules.Matrix("mlp.down_proj", hidden, drafter.intermediate_size, Part::kDenseFfn);
  return rules.Take();
}

/// Spec section 10: what the gated and the recurrent Markov head add.
void AddMarkovRules(const Drafter& drafter, RuleList* rules) {
  const std::int64_t rank = drafter.markov_rank;
  const auto add = [&](const std::string& name, std::int64_t outputs, std::int64_t inputs) {
    rules->Matrix(name, outputs, inputs, Part::kHead);
    rules->Plain(name + ".bias", DType::kBf16, {outputs}, Part::kHead);
  };
  switch (drafter.markov_head) {
    case MarkovHead::kVanilla:
      return;
    case MarkovHead::kGated:
      add("markov_head.gate_proj", rank, drafter.hidden_size + rank);
      return;
    case MarkovHead::kRnn:
      add("markov_head.joint_proj", 3 * rank, 2 * rank + drafter.hidden_size);
      return;
  }
}

std::vector<TensorRule> ModelRules(const Drafter& drafter) {
  const std::int64_t hidden = drafter.hidden_size;
  const auto num_aux = static_cast<std::int64_t>(drafter.aux_layers.size());
  RuleList rules("");
  rules.Plain("embed_tokens.weight", DType::kBf16, {drafter.vocab_size, hidden}, Part::kEmbedding);
  rules.Matrix("fc", hidden, num_aux * hidden, Part::kFusion);
  rules.Plain("hidden_norm.weight", DType::kBf16, {hidden}, Part::kNorms);
  rules.Plain("norm.weight", DType::kBf16, {hidden}, Part::kNorms);
  if (!drafter.tie_word_embeddings) {
    rules.Matrix("lm_head", drafter.vocab_size, hidden, Part::kHead);
  }
  if (drafter.markov_rank > 0) {
    rules.Plain("markov_head.markov_w1.weight", DType::kBf16,
                {drafter.vocab_size, drafter.markov_rank}, Part::kEmbedding);
    rules.Matrix("markov_head.markov_w2", drafter.vocab_size, drafter.markov_rank, Part::kHead);
    AddMarkovRules(drafter, &rules);
  }
  if (drafter.confidence_head) {
    const std::int64_t inputs = hidden + (drafter.confidence_with_markov ? drafter.markov_rank : 0);
    rules.Plain("confidence_head.proj.weight", DType::kBf16, {1, inputs}, Part::kHead);
    rules.Plain("confidence_head.proj.bias", DType::kBf16, {1}, Part::kHead);
  }
  return rules.Take();
}

}  // namespace

TensorRules MakeDrafterTensorRules(const Drafter& drafter) {
  TensorRules rules;
  rules.model_rules = ModelRules(drafter);
  rules.layer_kinds.push_back(LayerRules(drafter));
  rules.kind_of_layer.assign(drafter.layers.size(), 0);
  return rules;
}

std::vector<TensorRule> DrafterFamilyTensorRules() {
  Drafter all;
  all.markov_rank = 1;
  all.confidence_head = true;
  std::vector<TensorRule> rules = ModelRules(all);
  for (TensorRule& rule : LayerRules(all)) rules.push_back(std::move(rule));
  RuleList others("");
  for (const MarkovHead head : {MarkovHead::kGated, MarkovHead::kRnn}) {
    all.markov_head = head;
    AddMarkovRules(all, &others);
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    others.Plain(fmt::format("layers.{{layer}}.self_attn.{}.bias", name), DType::kBf16, {0},
                 Part::kAttention);
  }
  for (const char* name : {"d2t", "t2d"}) others.Plain(name, DType::kBf16, {0}, Part::kHead);
  for (TensorRule& rule : others.Take()) rules.push_back(std::move(rule));
  return rules;
}

}  // namespace megalith::model
