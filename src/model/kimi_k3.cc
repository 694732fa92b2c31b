#include "model/kimi_k3.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config_checks.h"
#include "model/json_reader.h"
#include "model/tensors.h"

namespace megalith::model {
namespace {

constexpr std::int64_t kMaxExperts = std::int64_t{1} << 16;
constexpr std::int64_t kMaxShared = std::int64_t{1} << 10;
constexpr std::int64_t kMxfp4Group = 32;

/// Keys of the vision part, which text inference does not use.
constexpr std::array kVisionKeys = std::to_array<std::string_view>({
    "vision_config",
    "ignore_index",
    "image_placeholder",
    "video_placeholder",
    "media_placeholder_token_id",
    "use_unified_vision_chunk",
});

void IgnoreKnown(JsonReader* reader) {
  for (const std::string_view key : kVisionKeys) reader->Ignore(key);
  IgnoreInertKeys(reader);
}

void CheckNames(JsonReader* reader, std::string_view model_type, std::string_view architecture) {
  RequireString(reader, "model_type", model_type);
  if (reader->Has("architectures") && !reader->IsNull("architectures")) {
    const auto names = reader->StringList("architectures");
    if (std::find(names.begin(), names.end(), architecture) == names.end()) {
      reader->FailAt(ErrorCode::kUnsupported, "architectures",
                     fmt::format("'{}' expected", architecture));
    }
  } else {
    reader->Ignore("architectures");
  }
  ExpectString(reader, "dtype", "bfloat16");
  ExpectString(reader, "torch_dtype", "bfloat16");
}

KdaConfig ReadKda(JsonReader* reader, std::vector<std::int64_t>* full_attn_layers,
                  std::vector<std::int64_t>* kda_layers) {
  KdaConfig kda;
  kda.num_heads = reader->Int("num_heads", 1, kMaxHeads);
  kda.head_dim = reader->Int("head_dim", 1, kMaxHeadDim);
  kda.short_conv_kernel_size = reader->Int("short_conv_kernel_size", 2, 8);
  kda.gate_lower_bound = reader->FloatOrNull("gate_lower_bound");
  if (kda.gate_lower_bound && !(*kda.gate_lower_bound >= -5.0f && *kda.gate_lower_bound < 0.0f)) {
    reader->FailAt(
        ErrorCode::kBadConfig, "gate_lower_bound",
        fmt::format("a value in [-5, 0) or null expected, {} found", *kda.gate_lower_bound));
  }
  // The one structural key whose absence has a meaning in the released code; the tensors disagree
  // (g_proj against g_a_proj and g_b_proj) if it was lost by mistake.
  kda.use_full_rank_gate = reader->Has("use_full_rank_gate") && reader->Bool("use_full_rank_gate");
  *full_attn_layers = reader->IntList("full_attn_layers", 1, kMaxLayers);
  *kda_layers = reader->IntList("kda_layers", 1, kMaxLayers);
  return kda;
}

MlaConfig ReadMla(JsonReader* reader) {
  MlaConfig mla;
  mla.num_attention_heads = reader->Int("num_attention_heads", 1, kMaxHeads);
  const std::int64_t key_value_heads = reader->Int("num_key_value_heads", 1, kMaxHeads);
  if (key_value_heads != mla.num_attention_heads) {
    reader->FailAt(ErrorCode::kBadConfig, "num_key_value_heads",
                   fmt::format("num_attention_heads ({}) expected, {} found",
                               mla.num_attention_heads, key_value_heads));
  }
  mla.q_lora_rank = reader->IntOrNull("q_lora_rank", 1, kMaxWidth);
  mla.kv_lora_rank = reader->Int("kv_lora_rank", 1, kMaxWidth);
  mla.qk_nope_head_dim = reader->Int("qk_nope_head_dim", 1, kMaxHeadDim);
  mla.qk_rope_head_dim = reader->Int("qk_rope_head_dim", 1, kMaxHeadDim);
  mla.v_head_dim = reader->Int("v_head_dim", 1, kMaxHeadDim);
  if (!reader->Bool("mla_use_nope")) {
    reader->FailAt(ErrorCode::kUnsupported, "mla_use_nope",
                   "true expected: the family has no rotary positions");
  }
  mla.use_output_gate = reader->Bool("mla_use_output_gate");
  return mla;
}

void CheckExpertGroups(JsonReader* reader, const MoeConfig& moe) {
  if (moe.topk_group > moe.num_expert_group) {
    reader->FailAt(ErrorCode::kBadConfig, "topk_group",
                   fmt::format("at most num_expert_group ({}) expected, {} found",
                               moe.num_expert_group, moe.topk_group));
    return;
  }
  if (moe.num_experts % moe.num_expert_group != 0) {
    reader->FailAt(ErrorCode::kBadConfig, "num_expert_group",
                   fmt::format("{} experts do not divide into {} groups", moe.num_experts,
                               moe.num_expert_group));
    return;
  }
  if (moe.topk_group == moe.num_expert_group) return;  // no limit: plain top-k
  const std::int64_t experts_per_group = moe.num_experts / moe.num_expert_group;
  if (experts_per_group < 2) {
    reader->FailAt(ErrorCode::kBadConfig, "num_expert_group",
                   "groups of at least 2 experts expected: a group is scored by its best two");
  }
  if (moe.num_experts_per_token > moe.topk_group * experts_per_group) {
    reader->FailAt(ErrorCode::kBadConfig, "topk_group",
                   fmt::format("{} groups of {} experts cannot give {} experts per token",
                               moe.topk_group, experts_per_group, moe.num_experts_per_token));
  }
}

MoeConfig ReadMoe(JsonReader* reader) {
  MoeConfig moe;
  moe.num_experts = reader->Int("num_experts", 1, kMaxExperts);
  moe.num_experts_per_token = reader->Int("num_experts_per_token", 1, kMaxExperts);
  if (moe.num_experts_per_token > moe.num_experts) {
    reader->FailAt(ErrorCode::kBadConfig, "num_experts_per_token",
                   fmt::format("at most num_experts ({}) expected, {} found", moe.num_experts,
                               moe.num_experts_per_token));
  }
  moe.num_shared_experts = reader->IntOrNull("num_shared_experts", 0, kMaxShared).value_or(0);
  moe.moe_intermediate_size = reader->Int("moe_intermediate_size", 1, kMaxWidth);
  moe.routed_expert_hidden_size = reader->IntOrNull("routed_expert_hidden_size", 1, kMaxWidth);
  moe.latent_moe_use_norm = reader->Bool("latent_moe_use_norm");
  if (moe.latent_moe_use_norm && !moe.routed_expert_hidden_size) {
    reader->FailAt(ErrorCode::kBadConfig, "latent_moe_use_norm",
                   "false expected: routed_expert_hidden_size is null, there is no latent to norm");
  }
  const std::string_view activation = reader->String("moe_router_activation_func");
  if (activation == "softmax") {
    moe.router_activation = RouterActivation::kSoftmax;
  } else if (activation != "sigmoid") {
    reader->FailAt(ErrorCode::kUnsupported, "moe_router_activation_func",
                   fmt::format("'sigmoid' or 'softmax' expected, '{}' found", activation));
  }
  moe.renormalize = reader->Bool("moe_renormalize");
  moe.routed_scaling_factor = reader->Float("routed_scaling_factor");
  if (!(moe.routed_scaling_factor > 0.0f)) {
    reader->FailAt(ErrorCode::kBadConfig, "routed_scaling_factor",
                   fmt::format("a positive number expected, {} found", moe.routed_scaling_factor));
  }
  moe.num_expert_group = reader->Int("num_expert_group", 1, kMaxExperts);
  moe.topk_group = reader->Int("topk_group", 1, kMaxExperts);
  CheckExpertGroups(reader, moe);
  // The selection these two describe is the only one this reader can express; other exports of the
  // family leave them out.
  ExpectString(reader, "topk_method", "noaux_tc");
  if (reader->Has("use_grouped_topk") && !reader->Bool("use_grouped_topk") &&
      moe.topk_group < moe.num_expert_group) {
    reader->FailAt(ErrorCode::kBadConfig, "use_grouped_topk",
                   fmt::format("true expected: {} of {} expert groups are used", moe.topk_group,
                               moe.num_expert_group));
  }
  return moe;
}

ActivationConfig ReadActivation(JsonReader* reader) {
  ActivationConfig activation;
  const std::string_view kind = reader->String("hidden_act");
  if (kind == "silu") {
    activation.kind = HiddenAct::kSilu;
    reader->Ignore("activation_situ_beta");
    reader->Ignore("activation_situ_linear_beta");
    return activation;
  }
  if (kind != "situ") {
    reader->FailAt(ErrorCode::kUnsupported, "hidden_act",
                   fmt::format("'situ' or 'silu' expected, '{}' found", kind));
    return activation;
  }
  activation.situ_beta = reader->FloatOrNull("activation_situ_beta").value_or(1.0f);
  activation.situ_linear_beta = reader->FloatOrNull("activation_situ_linear_beta");
  if (!(activation.situ_beta > 0.0f)) {
    reader->FailAt(ErrorCode::kBadConfig, "activation_situ_beta",
                   "a positive number or null expected");
  }
  if (activation.situ_linear_beta && !(*activation.situ_linear_beta > 0.0f)) {
    reader->FailAt(ErrorCode::kBadConfig, "activation_situ_linear_beta",
                   "a positive number or null expected");
  }
  return activation;
}

/// The one quantization of the family: MXFP4 weights in groups of 32, activations as they are.
void ReadQuantization(JsonReader* reader, std::vector<std::string>* warnings) {
  constexpr std::string_view kFormat = "mxfp4-pack-quantized";
  RequireString(reader, "quant_method", "compressed-tensors");
  RequireString(reader, "format", kFormat);
  ExpectString(reader, "quantization_status", "compressed");
  ExpectNull(reader, "kv_cache_scheme", "quantized caches are not read");
  reader->Ignore("global_compression_ratio");
  reader->Ignore("ignore");  // which tensors are packed is decided by the tensors
  reader->Ignore("version");
  auto groups = reader->Object("config_groups");
  if (!groups) return;
  auto group = groups->Object("group_0");
  if (!group) return;
  std::vector<std::string> others;
  groups->ListUnknown(&others);
  if (!others.empty()) {
    reader->FailAt(ErrorCode::kUnsupported, "config_groups", "one group expected");
    return;
  }
  ExpectString(&*group, "format", kFormat);
  constexpr std::string_view kActivations = "quantized activations are other arithmetic";
  ExpectNull(&*group, "input_activations", kActivations);
  ExpectNull(&*group, "output_activations", kActivations);
  auto weights = group->Object("weights");
  if (!weights) return;
  if (weights->Int("num_bits", 1, 64) != 4) {
    weights->FailAt(ErrorCode::kUnsupported, "num_bits", "4 expected");
  }
  if (weights->Int("group_size", 1, kMaxWidth) != kMxfp4Group) {
    weights->FailAt(ErrorCode::kUnsupported, "group_size", fmt::format("{} expected", kMxfp4Group));
  }
  RequireString(&*weights, "type", "float");
  RequireString(&*weights, "strategy", "group");
  RequireBool(&*weights, "symmetric", true);
  RequireBool(&*weights, "dynamic", false);
  ExpectString(&*weights, "scale_dtype", "torch.uint8");
  ExpectNull(&*weights, "actorder", "columns in stored order are read");
  ExpectNull(&*weights, "block_structure", "blocks of weights are not read");
  ExpectNull(&*weights, "zp_dtype", "zero points are not read");
  for (const std::string_view key : {"observer", "observer_kwargs"}) weights->Ignore(key);
  group->Ignore("targets");
  weights->ListUnknown(warnings);
  group->ListUnknown(warnings);
  reader->ListUnknown(warnings);
}

void ReadTokenIds(JsonReader* text, JsonReader* outer, Model* model) {
  const std::int64_t last = model->vocab_size - 1;
  using Ids = std::vector<std::int64_t>;
  model->bos_token_id = ReadAtEitherLevel<std::int64_t>(
      text, outer, "bos_token_id", [&](JsonReader* r) { return r->Int("bos_token_id", 0, last); });
  model->eos_token_ids = ReadAtEitherLevel<Ids>(text, outer, "eos_token_id", [&](JsonReader* r) {
    return r->IntOrIntList("eos_token_id", 0, last);
  });
  // Padding is a matter of training batches; generation does not need it.
  const bool outer_has = outer != nullptr && outer->Has("pad_token_id");
  if (!text->Has("pad_token_id") && !outer_has) return;
  model->pad_token_id = ReadAtEitherLevel<std::optional<std::int64_t>>(
                            text, outer, "pad_token_id",
                            [&](JsonReader* r) { return r->IntOrNull("pad_token_id", 0, last); })
                            .value_or(-1);
}

/// Every layer once, from the two one-based lists.
void FillLayers(JsonReader* linear_attn, const std::vector<std::int64_t>& full_attn_layers,
                const std::vector<std::int64_t>& kda_layers, std::int64_t num_layers,
                std::int64_t first_dense, std::int64_t moe_freq, Model* model) {
  std::vector<int> seen(static_cast<std::size_t>(num_layers), 0);
  model->layers.assign(static_cast<std::size_t>(num_layers), Layer());
  const auto add = [&](const std::vector<std::int64_t>& list, std::string_view key, Mixer mixer) {
    for (const std::int64_t number : list) {
      if (number > num_layers) {
        linear_attn->FailAt(ErrorCode::kBadConfig, key,
                            fmt::format("layer {} of {}", number, num_layers));
        return;
      }
      const auto layer = static_cast<std::size_t>(number - 1);
      if (++seen[layer] > 1) {
        linear_attn->FailAt(ErrorCode::kBadConfig, key,
                            fmt::format("layer {} is listed twice", number));
        return;
      }
      model->layers[layer].mixer = mixer;
    }
  };
  add(full_attn_layers, "full_attn_layers", Mixer::kMla);
  add(kda_layers, "kda_layers", Mixer::kKda);
  const auto absent = std::find(seen.begin(), seen.end(), 0);
  if (absent != seen.end()) {
    linear_attn->FailAt(ErrorCode::kBadConfig, "kda_layers",
                        fmt::format("layer {} is in neither kda_layers nor full_attn_layers",
                                    absent - seen.begin() + 1));
  }
  for (std::int64_t l = 0; l < num_layers; ++l) {
    Layer& layer = model->layers[static_cast<std::size_t>(l)];
    layer.feed_forward =
        l >= first_dense && l % moe_freq == 0 ? FeedForward::kMoe : FeedForward::kDense;
    const bool blocks = model->attn_res_block_size > 0;
    layer.residual = blocks ? ResidualRule::kAttnRes : ResidualRule::kPlain;
    layer.pushes_block = blocks && l % model->attn_res_block_size == 0;
  }
}

void CheckWidths(JsonReader* text, const Model& model) {
  if (model.hidden_size % kMxfp4Group != 0) {
    text->FailAt(
        ErrorCode::kBadConfig, "hidden_size",
        fmt::format("a multiple of {} expected, {} found", kMxfp4Group, model.hidden_size));
  }
  if (!model.declares_mxfp4_experts) return;
  if (model.moe.moe_intermediate_size % kMxfp4Group != 0) {
    text->FailAt(ErrorCode::kBadConfig, "moe_intermediate_size",
                 fmt::format("a multiple of {} expected with MXFP4 experts, {} found", kMxfp4Group,
                             model.moe.moe_intermediate_size));
  }
  if (model.ExpertWidth() % kMxfp4Group != 0) {
    text->FailAt(ErrorCode::kBadConfig, "routed_expert_hidden_size",
                 fmt::format("a multiple of {} expected with MXFP4 experts, {} found", kMxfp4Group,
                             model.ExpertWidth()));
  }
}

void ReadText(JsonReader* text, JsonReader* outer, Config* config) {
  Model& model = config->model;
  model.family = "kimi_k3";
  CheckNames(text, "kimi_linear", "KimiLinearForCausalLM");
  model.hidden_size = text->Int("hidden_size", 1, kMaxWidth);
  model.vocab_size = text->Int("vocab_size", 1, kMaxVocab);
  model.intermediate_size = text->Int("intermediate_size", 1, kMaxWidth);
  model.max_position_embeddings = text->Int("max_position_embeddings", 1, kMaxPositions);
  model.rms_norm_eps = ReadEpsilon(text, "rms_norm_eps");
  model.attn_res_block_size = text->IntOrNull("attn_res_block_size", 1, kMaxLayers).value_or(0);
  model.activation = ReadActivation(text);
  model.mla = ReadMla(text);
  model.moe = ReadMoe(text);
  if (text->Int("num_nextn_predict_layers", 0, kMaxLayers) != 0) {
    text->FailAt(ErrorCode::kUnsupported, "num_nextn_predict_layers",
                 "0 expected: layers for multi-token prediction are not read");
  }
  model.tie_word_embeddings =
      ReadAtEitherLevel<bool>(text, outer, "tie_word_embeddings",
                              [](JsonReader* r) { return r->Bool("tie_word_embeddings"); });
  ReadTokenIds(text, outer, &model);

  const bool outer_quantized = outer != nullptr && outer->Has("quantization_config");
  JsonReader* quantized = outer_quantized ? outer : text;
  if (outer_quantized && text->Has("quantization_config")) {
    text->FailAt(ErrorCode::kBadConfig, "quantization_config", "present at both levels");
  }
  quantized->Ignore("quantization_config");
  if (quantized->Has("quantization_config") && !quantized->IsNull("quantization_config")) {
    if (auto reader = quantized->Object("quantization_config"))
      ReadQuantization(&*reader, &config->warnings);
    model.declares_mxfp4_experts = true;
  }

  const std::int64_t num_layers = text->Int("num_hidden_layers", 1, kMaxLayers);
  const std::int64_t first_dense = text->Int("first_k_dense_replace", 0, kMaxLayers);
  const std::int64_t moe_freq = text->Int("moe_layer_freq", 1, kMaxLayers);
  auto linear_attn = text->Object("linear_attn_config");
  if (!linear_attn) return;
  std::vector<std::int64_t> full_attn_layers;
  std::vector<std::int64_t> kda_layers;
  model.kda = ReadKda(&*linear_attn, &full_attn_layers, &kda_layers);
  if (!text->status()) return;
  FillLayers(&*linear_attn, full_attn_layers, kda_layers, num_layers, first_dense, moe_freq,
             &model);
  linear_attn->ListUnknown(&config->warnings);
  if (!text->status()) return;
  CheckWidths(text, model);
  CheckTotals(text, MakeTensorRules(model));
}

}  // namespace

Result<Config> ReadKimiK3(simdjson::dom::object root, std::string_view source) {
  Status status;
  Config config;
  JsonReader reader(root, fmt::format("{}: ", source), &status);
  IgnoreKnown(&reader);
  const bool bare = !reader.Has("text_config") && reader.Has("hidden_size");
  if (bare) {
    ReadText(&reader, nullptr, &config);
  } else {
    CheckNames(&reader, "kimi_k3", "KimiK3ForConditionalGeneration");
    if (auto text = reader.Object("text_config")) {
      IgnoreKnown(&*text);
      ReadText(&*text, &reader, &config);
      text->ListUnknown(&config.warnings);
    }
  }
  if (!status) return tl::unexpected<Error>(status.error());
  reader.ListUnknown(&config.warnings);
  return config;
}

}  // namespace megalith::model
