#include "synth/drafter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "model/dspark.h"
#include "synth/assignment.h"

namespace megalith::synth {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kOption[] = "--draft-set";
constexpr char kLayers[] = "transformer_layer_config";

/// Where the published drafter reads the target, of the way from the first layer to the last.
constexpr std::array kAuxDepths = {24.0 / 92.0, 48.0 / 92.0, 72.0 / 92.0, 88.0 / 92.0, 1.0};
/// As in the published config: an unnamed id close to the end of the vocabulary.
constexpr std::int64_t kMaskFromEnd = 3;
constexpr std::int64_t kWindow = 2048;
constexpr std::int64_t kMaxQueryHeadsPerKey = 6;

std::vector<std::int64_t> AuxLayers(std::int64_t num_layers) {
  std::set<std::int64_t> layers;
  for (const double depth : kAuxDepths) {
    layers.insert(std::llround(depth * static_cast<double>(num_layers - 1)));
  }
  // Where the target is too short for the proportions, its last layers fill the list up.
  const auto wanted =
      static_cast<std::size_t>(std::min<std::int64_t>(kAuxDepths.size(), num_layers));
  for (std::int64_t layer = num_layers; layers.size() < wanted;) layers.insert(--layer);
  return {layers.begin(), layers.end()};
}

/// At most six query heads share one, and at least two are left if there are two.
std::int64_t NumKeyHeads(std::int64_t num_heads) {
  for (std::int64_t share = kMaxQueryHeadsPerKey; share > 1; --share) {
    if (num_heads % share == 0 && num_heads / share >= 2) return num_heads / share;
  }
  return num_heads;
}

Json ConfigInProportion(const model::Model& target) {
  const std::int64_t hidden = target.hidden_size;
  const std::int64_t num_heads = target.mla.num_attention_heads;
  const bool small = hidden < 512;
  return {
      {"architectures", {"DSparkDraftModel"}},
      {"speculators_model_type", "dspark"},
      {"dtype", "bfloat16"},
      {"aux_hidden_state_layer_ids", AuxLayers(static_cast<std::int64_t>(target.layers.size()))},
      {"block_size", 8},
      {"mask_token_id", std::max<std::int64_t>(0, target.vocab_size - kMaskFromEnd)},
      {"draft_vocab_size", target.vocab_size},
      {"markov_rank", small ? 16 : 256},
      {"markov_head_type", "vanilla"},
      {"enable_confidence_head", true},
      {"confidence_head_with_markov", true},
      {"sample_from_anchor", true},
      {"sliding_window_non_causal", false},
      {"tie_word_embeddings", false},
      {"speculators_config",
       {{"algorithm", "dspark"},
        {"default_proposal_method", "greedy"},
        {"proposal_methods",
         Json::array(
             {{{"proposal_type", "greedy"}, {"speculative_tokens", 8}, {"verifier_accept_k", 1}}})},
        {"verifier",
         {{"name_or_path", "random"}, {"architectures", {"KimiK3ForConditionalGeneration"}}}}}},
      {kLayers,
       {{"model_type", "qwen3"},
        {"hidden_size", hidden},
        {"num_hidden_layers", small           ? 2
                              : hidden < 4096 ? 3
                                              : 5},
        {"num_attention_heads", num_heads},
        {"num_key_value_heads", NumKeyHeads(num_heads)},
        {"head_dim", small ? 32 : 64},
        {"intermediate_size", 2 * hidden},
        {"vocab_size", target.vocab_size},
        {"hidden_act", "silu"},
        {"rms_norm_eps", 1e-05},
        {"attention_bias", false},
        {"attention_dropout", 0.0},
        {"sliding_window", kWindow},
        {"rope_parameters", {{"rope_theta", 10000.0}, {"rope_type", "default"}}}}}};
}

/// Unless they were given.
void FillLayerTypes(Json* layers) {
  if (layers->contains("layer_types")) return;
  const Json& count = (*layers)["num_hidden_layers"];
  constexpr std::int64_t kMaxListed = 1 << 16;  // for memory only; the reader has the real bound
  const std::int64_t listed =
      count.is_number_integer() ? std::clamp<std::int64_t>(count, 0, kMaxListed) : 0;
  (*layers)["layer_types"] =
      std::vector<std::string>(static_cast<std::size_t>(listed), "sliding_attention");
}

}  // namespace

Result<std::string> MakeDrafterConfig(const model::Model& target,
                                      std::span<const std::string> assignments) {
  Json root = ConfigInProportion(target);
  for (const std::string& text : assignments) {
    MEGALITH_ASSIGN_OR_RETURN(const Assignment assignment, ParseAssignment(kOption, text));
    const bool at_top = root.contains(assignment.path.substr(0, assignment.path.find('.')));
    MEGALITH_RETURN_IF_ERROR(ApplyAssignment(assignment, at_top ? &root : &root[kLayers]));
  }
  if (!root[kLayers].is_object()) {
    return Fail(ErrorCode::kUsage, "{} {}: an object expected", kOption, kLayers);
  }
  FillLayerTypes(&root[kLayers]);
  std::string config = root.dump(2) + "\n";
  auto parsed = model::ParseDrafterConfig(config, target, "drafter");
  if (!parsed) {
    return Fail(ErrorCode::kUsage, "{}{}",
                assignments.empty() ? "" : "--draft-set: ", parsed.error().message);
  }
  // A misspelt key would change nothing and be written as if it did.
  if (!parsed->warnings.empty()) {
    return Fail(ErrorCode::kUsage, "{}: {}", kOption, parsed->warnings.front());
  }
  return config;
}

}  // namespace megalith::synth
