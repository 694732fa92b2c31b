#include "synth/config_edit.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "synth/assignment.h"

namespace megalith::synth {
namespace {

using Json = nlohmann::ordered_json;

// Where K3 keeps its special ids, counted from the end of the vocabulary.
constexpr std::int64_t kBosFromEnd = 256;
constexpr std::int64_t kEosFromEnd = 254;
constexpr std::int64_t kPadFromEnd = 1;

// A bound for memory only; the reader of the config has the real one.
constexpr std::int64_t kMaxLayers = 1 << 16;

constexpr std::array kNumbers = std::to_array<EditableNumber>({
    {"hidden", &ConfigEdits::hidden_size, "hidden_size", "Width of the residual stream"},
    {"layers", &ConfigEdits::num_layers, "num_hidden_layers",
     "Layers; every fourth and the last are MLA, the others KDA"},
    {"vocab", &ConfigEdits::vocab_size, "vocab_size", "Vocabulary"},
    {"heads", &ConfigEdits::num_heads,
     "num_attention_heads, num_key_value_heads, linear_attn_config.num_heads",
     "Heads of both mixers"},
    {"head-dim", &ConfigEdits::head_dim,
     "linear_attn_config.head_dim, qk_nope_head_dim, v_head_dim", "Width of a head"},
    {"qk-rope", &ConfigEdits::qk_rope_head_dim, "qk_rope_head_dim",
     "Extra key width of an MLA head"},
    {"q-lora", &ConfigEdits::q_lora_rank, "q_lora_rank", "Rank of the MLA queries"},
    {"kv-lora", &ConfigEdits::kv_lora_rank, "kv_lora_rank", "Rank of the MLA keys and values"},
    {"dense-width", &ConfigEdits::dense_width, "intermediate_size",
     "Width of the dense feed-forward"},
    {"experts", &ConfigEdits::num_experts, "num_experts", "Routed experts of a layer"},
    {"experts-per-token", &ConfigEdits::num_experts_per_token, "num_experts_per_token",
     "Experts that a token chooses"},
    {"shared-experts", &ConfigEdits::num_shared_experts, "num_shared_experts",
     "Experts that every token uses; 0: none"},
    {"expert-width", &ConfigEdits::expert_width, "moe_intermediate_size",
     "Inner width of an expert"},
    {"latent", &ConfigEdits::latent_size, "routed_expert_hidden_size",
     "Input and output width of routed experts"},
    {"dense-layers", &ConfigEdits::num_dense_layers, "first_k_dense_replace",
     "First layers with a dense feed-forward; may be 0"},
    {"block", &ConfigEdits::attn_res_block_size, "attn_res_block_size",
     "Layers of an attention-residual block"},
    {"context", &ConfigEdits::max_position_embeddings, "max_position_embeddings",
     "Longest sequence that the model allows"},
});

bool MayBeZero(const EditableNumber& number) {
  return number.member == &ConfigEdits::num_shared_experts ||
         number.member == &ConfigEdits::num_dense_layers;
}

Status CheckNumbers(const ConfigEdits& edits) {
  for (const EditableNumber& number : kNumbers) {
    const auto& value = edits.*number.member;
    const std::int64_t least = MayBeZero(number) ? 0 : 1;
    if (value && *value < least) {
      return Fail(ErrorCode::kUsage, "--{} ({}): at least {} expected, {} given", number.option,
                  number.keys, least, *value);
    }
  }
  if (edits.num_layers && edits.layer_kinds) {
    return Fail(ErrorCode::kUsage,
                "--layers and --layer-kinds: one of them expected, the kinds give the number");
  }
  if (edits.num_layers && *edits.num_layers > kMaxLayers) {
    return Fail(ErrorCode::kUsage, "--layers: at most {} expected, {} given", kMaxLayers,
                *edits.num_layers);
  }
  return {};
}

std::string KindsOfKimiK3(std::int64_t num_layers) {
  std::string kinds(static_cast<std::size_t>(num_layers), 'K');
  for (std::size_t i = 3; i < kinds.size(); i += 4) kinds[i] = 'M';
  kinds.back() = 'M';
  return kinds;
}

Status SetLayers(const std::string& kinds, Json* text) {
  if (kinds.empty()) return Fail(ErrorCode::kUsage, "--layer-kinds: at least one letter expected");
  Json kda = Json::array();
  Json mla = Json::array();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] != 'K' && kinds[i] != 'M') {
      return Fail(ErrorCode::kUsage,
                  "--layer-kinds: K (KDA) or M (MLA) expected for layer {}, '{}' given", i,
                  kinds[i]);
    }
    (kinds[i] == 'K' ? kda : mla).push_back(i + 1);  // the lists count from one
  }
  (*text)["num_hidden_layers"] = kinds.size();
  Json& linear = (*text)["linear_attn_config"];
  linear["kda_layers"] = std::move(kda);
  linear["full_attn_layers"] = std::move(mla);
  return {};
}

/// Sets the key wherever it stands; a nested config may have it at both levels.
void SetTokenId(std::string_view key, std::int64_t id, Json* root, Json* text) {
  const std::string name(key);
  if (root->contains(name)) (*root)[name] = id;
  if (root != text && text->contains(name)) (*text)[name] = id;
}

void SetVocabulary(std::int64_t size, Json* root, Json* text) {
  (*text)["vocab_size"] = size;
  SetTokenId("bos_token_id", std::max<std::int64_t>(0, size - kBosFromEnd), root, text);
  SetTokenId("eos_token_id", std::max<std::int64_t>(0, size - kEosFromEnd), root, text);
  SetTokenId("pad_token_id", size - kPadFromEnd, root, text);
}

void SetNumber(std::string_view keys, std::int64_t value, Json* text) {
  while (!keys.empty()) {
    const std::size_t end = std::min(keys.find(", "), keys.size());
    std::string_view key = keys.substr(0, end);
    keys.remove_prefix(std::min(end + 2, keys.size()));
    Json* object = text;
    if (const std::size_t dot = key.find('.'); dot != std::string_view::npos) {
      object = &(*text)[std::string(key.substr(0, dot))];
      key.remove_prefix(dot + 1);
    }
    (*object)[std::string(key)] = value;
  }
}

Status Assign(const std::string& text_of_edit, Json* root, Json* text) {
  MEGALITH_ASSIGN_OR_RETURN(const Assignment assignment, ParseAssignment("--set", text_of_edit));
  // A few keys stand at both levels of a nested config and must agree.
  if (root != text && root->contains(assignment.path)) {
    MEGALITH_RETURN_IF_ERROR(ApplyAssignment(assignment, root));
  }
  return ApplyAssignment(assignment, text);
}

Status Apply(const ConfigEdits& edits, Json* root, Json* text) {
  if (edits.layer_kinds) MEGALITH_RETURN_IF_ERROR(SetLayers(*edits.layer_kinds, text));
  for (const EditableNumber& number : kNumbers) {
    const auto& value = edits.*number.member;
    if (!value) continue;
    if (number.member == &ConfigEdits::num_layers) {
      MEGALITH_RETURN_IF_ERROR(SetLayers(KindsOfKimiK3(*value), text));
    } else if (number.member == &ConfigEdits::vocab_size) {
      SetVocabulary(*value, root, text);
    } else {
      SetNumber(number.keys, *value, text);
    }
  }
  for (const std::string& assignment : edits.assignments) {
    MEGALITH_RETURN_IF_ERROR(Assign(assignment, root, text));
  }
  return {};
}

}  // namespace

std::span<const EditableNumber> EditableNumbers() { return kNumbers; }

Result<std::string> EditConfig(std::string_view config_json, std::string_view source,
                               const ConfigEdits& edits) {
  MEGALITH_RETURN_IF_ERROR(CheckNumbers(edits));
  // A preset becomes valid by its edits, so what is there now need not be; but it must be JSON with
  // the objects that edits go into.
  Json root = Json::parse(config_json, nullptr, false);
  if (!root.is_object()) {
    MEGALITH_RETURN_IF_ERROR(model::ParseConfig(config_json, source));
    return Fail(ErrorCode::kBadConfig, "{}: a JSON object expected", source);
  }
  Json* text = root.contains("text_config") ? &root["text_config"] : &root;
  if (!text->is_object() || !text->contains("linear_attn_config") ||
      !(*text)["linear_attn_config"].is_object()) {
    return Fail(ErrorCode::kBadConfig, "{}: text_config with linear_attn_config expected", source);
  }
  MEGALITH_RETURN_IF_ERROR(Apply(edits, &root, text));
  std::string edited = root.dump(2) + "\n";
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ParseConfig(edited, source));
  if (!edits.assignments.empty()) {
    // A misspelt key would change nothing and be written as if it did.
    const auto before = model::ParseConfig(config_json, source);
    const std::vector<std::string> known = before ? before->warnings : std::vector<std::string>();
    for (const std::string& warning : config.warnings) {
      if (std::find(known.begin(), known.end(), warning) == known.end()) {
        return Fail(ErrorCode::kUsage, "--set: {}", warning);
      }
    }
  }
  return edited;
}

}  // namespace megalith::synth
