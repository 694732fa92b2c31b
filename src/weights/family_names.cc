#include "weights/family_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

#include "model/drafter_tensors.h"
#include "model/tensors.h"

namespace megalith::weights {
namespace {

using model::FeedForward;
using model::Mixer;

/// `name` with the number behind `before` replaced by `placeholder`. The number goes to `number`,
/// -1 if there is none; one too large for 64 bits is as good as the largest.
std::string ReplaceNumber(std::string_view name, std::string_view before,
                          std::string_view placeholder, std::int64_t* number) {
  *number = -1;
  const std::size_t at = name.find(before);
  if (at == std::string_view::npos) return std::string(name);
  const std::size_t begin = at + before.size();
  const std::size_t end = std::min(name.find_first_not_of("0123456789", begin), name.size());
  if (end == begin) return std::string(name);
  const auto result = std::from_chars(name.data() + begin, name.data() + end, *number);
  if (result.ec != std::errc()) *number = std::numeric_limits<std::int64_t>::max();
  return fmt::format("{}{}{}", name.substr(0, begin), placeholder, name.substr(end));
}

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// The setting that decides whether a layer of these kinds has the tensor of this rule.
std::string Setting(const model::Model& model, const model::Layer& layer, std::string_view rule) {
  const auto number_or_null = [](const std::optional<std::int64_t>& value) {
    return value ? fmt::to_string(*value) : std::string("null");
  };
  if (Contains(rule, "_res_norm") || Contains(rule, "_res_proj")) {
    return "attn_res_block_size is null";
  }
  if (Contains(rule, ".mlp.") || Contains(rule, ".block_sparse_moe.")) {
    const bool dense_tensor = Contains(rule, ".mlp.");
    if (dense_tensor != (layer.feed_forward == FeedForward::kDense)) {
      return fmt::format(
          "first_k_dense_replace and moe_layer_freq make the layer {}",
          layer.feed_forward == FeedForward::kDense ? "dense" : "a mixture of experts");
    }
    if (Contains(rule, "shared_experts")) {
      return fmt::format("num_shared_experts is {}", model.moe.num_shared_experts);
    }
    if (Contains(rule, "routed_expert_norm") && model.moe.routed_expert_hidden_size) {
      return fmt::format("latent_moe_use_norm is {}", model.moe.latent_moe_use_norm);
    }
    return fmt::format("routed_expert_hidden_size is {}",
                       number_or_null(model.moe.routed_expert_hidden_size));
  }
  if (layer.mixer == Mixer::kMla) {
    if (Contains(rule, ".g_proj")) {
      return fmt::format("mla_use_output_gate is {}", model.mla.use_output_gate);
    }
    if (Contains(rule, ".q_") && !Contains(rule, "conv1d")) {
      return fmt::format("q_lora_rank is {}", number_or_null(model.mla.q_lora_rank));
    }
  } else if (Contains(rule, ".g_")) {
    return fmt::format("use_full_rank_gate is {}", model.kda.use_full_rank_gate);
  }
  return fmt::format("linear_attn_config makes the layer {}",
                     layer.mixer == Mixer::kKda ? "KDA" : "MLA");
}

NameTemplates MakeTemplates(const std::vector<model::TensorRule>& rules) {
  NameTemplates templates;
  for (const model::TensorRule& rule : rules) {
    if (rule.kind != model::TensorKind::kMatrix) {
      templates.emplace(rule.name, rule.name);
      continue;
    }
    for (const char* ending : {".weight", ".weight_packed", ".weight_scale"}) {
      templates.emplace(rule.name + ending, rule.name);
    }
  }
  return templates;
}

}  // namespace

FamilyNames::FamilyNames(const model::Model& model)
    : model_(model), templates_(MakeTemplates(model::FamilyTensorRules(model))) {}

std::optional<std::string> FamilyNames::WhyUnused(std::string_view name) const {
  std::int64_t layer = -1;
  std::int64_t expert = -1;
  std::string generic = name.starts_with("layers.")
                            ? ReplaceNumber(name, "layers.", "{layer}", &layer)
                            : std::string(name);
  generic = ReplaceNumber(generic, ".experts.", "{expert}", &expert);
  const auto found = templates_.find(generic);
  if (found == templates_.end()) return std::nullopt;
  if (layer >= static_cast<std::int64_t>(model_.layers.size())) {
    return fmt::format("num_hidden_layers is {}", model_.layers.size());
  }
  if (layer < 0) {
    return name.starts_with("lm_head.") ? std::string("tie_word_embeddings is true")
                                        : std::string("attn_res_block_size is null");
  }
  const model::Layer& kinds = model_.layers[static_cast<std::size_t>(layer)];
  if (expert >= model_.moe.num_experts && kinds.feed_forward == FeedForward::kMoe) {
    return fmt::format("num_experts is {}", model_.moe.num_experts);
  }
  return Setting(model_, kinds, found->second);
}

DrafterNames::DrafterNames(const model::Drafter& drafter)
    : drafter_(drafter), templates_(MakeTemplates(model::DrafterFamilyTensorRules())) {}

std::optional<std::string> DrafterNames::WhyUnused(std::string_view name) const {
  std::int64_t layer = -1;
  const auto found = templates_.find(name.starts_with("layers.")
                                         ? ReplaceNumber(name, "layers.", "{layer}", &layer)
                                         : std::string(name));
  if (found == templates_.end()) return std::nullopt;
  const std::string_view rule = found->second;
  if (layer >= static_cast<std::int64_t>(drafter_.layers.size())) {
    return fmt::format("num_hidden_layers is {}", drafter_.layers.size());
  }
  if (layer >= 0) return "attention_bias is false";
  if (rule.starts_with("markov_head.")) {
    return drafter_.markov_rank == 0
               ? std::string("markov_rank is 0")
               : fmt::format("markov_head_type is {}", model::MarkovHeadName(drafter_.markov_head));
  }
  if (rule.starts_with("confidence_head.")) return "enable_confidence_head is false";
  if (rule == "d2t" || rule == "t2d") return "the vocabulary is the target's";
  return "tie_word_embeddings is true";
}

}  // namespace megalith::weights
