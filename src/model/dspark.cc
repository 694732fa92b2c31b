#include "model/dspark.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "model/config_checks.h"
#include "model/drafter_tensors.h"
#include "model/json_reader.h"

namespace megalith::model {
namespace {

namespace dom = simdjson::dom;

constexpr std::int64_t kMaxBlock = 64;
/// Published drafters have one to six: they are to be much cheaper than their target.
constexpr std::int64_t kMaxDrafterLayers = 128;
constexpr std::string_view kSpeculatorsArchitecture = "DSparkDraftModel";
constexpr std::string_view kDeepSpecArchitecture = "Qwen3DSparkModel";
constexpr std::string_view kFullAttention = "full_attention";
constexpr std::string_view kSlidingAttention = "sliding_attention";

/// Keys without a meaning here: special ids are the target's, layer_types lists what
/// max_window_layers would count.
constexpr std::array kUnusedKeys = std::to_array<std::string_view>({
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "max_window_layers",
    // training
    "num_anchors",
    "speculators_version",
});

void IgnoreKnown(JsonReader* reader) {
  IgnoreInertKeys(reader);
  for (const std::string_view key : kUnusedKeys) reader->Ignore(key);
}

bool OptionalBool(JsonReader* reader, std::string_view key) {
  return reader->Has(key) && reader->Bool(key);
}

/// A size that must be the target's, because vectors and tokens of both are exchanged.
std::int64_t SizeOfTarget(JsonReader* reader, std::string_view key, std::int64_t target,
                          std::int64_t max) {
  const std::int64_t found = reader->Int(key, 1, max);
  if (found != target) {
    reader->FailAt(ErrorCode::kBadConfig, key,
                   fmt::format("the target's {} expected, {} found", target, found));
  }
  return found;
}

void RequireArchitecture(JsonReader* reader, std::string_view architecture) {
  const auto names = reader->StringList("architectures");
  if (std::find(names.begin(), names.end(), architecture) == names.end()) {
    reader->FailAt(ErrorCode::kUnsupported, "architectures",
                   fmt::format("{} expected, [{}] found", architecture, fmt::join(names, ", ")));
  }
  ExpectString(reader, "dtype", "bfloat16");
  ExpectString(reader, "torch_dtype", "bfloat16");
  ExpectNull(reader, "quantization_config", "quantized drafters are not read");
  ExpectNull(reader, "dflash_config", "the flat DFlash form of a config is not read");
}

/// From rope_parameters or flat; both must say the same. Anything but plain rotary positions is
/// refused: a factor that is not applied ruins acceptance without a wrong word.
double ReadRopeTheta(JsonReader* reader) {
  ExpectNull(reader, "rope_scaling", "scaled rotary positions are not read");
  std::optional<double> theta;
  reader->Ignore("rope_parameters");
  if (reader->Has("rope_parameters") && !reader->IsNull("rope_parameters")) {
    auto rope = reader->Object("rope_parameters");
    if (!rope) return 1.0;
    ExpectString(&*rope, "rope_type", "default");
    theta = rope->Double("rope_theta");
    if (rope->Has("partial_rotary_factor") && rope->Double("partial_rotary_factor") != 1.0) {
      rope->FailAt(ErrorCode::kUnsupported, "partial_rotary_factor", "1 expected");
    }
    const auto others = rope->UnknownKeys();
    if (!others.empty()) {
      rope->FailAt(ErrorCode::kUnsupported, others.front(),
                   "only rope_theta and rope_type 'default' are read");
    }
  }
  if (!theta || reader->Has("rope_theta")) {
    const double flat = reader->Double("rope_theta");
    if (theta && *theta != flat) {
      reader->FailAt(ErrorCode::kBadConfig, "rope_theta",
                     fmt::format("differs from rope_parameters: {} and {}", flat, *theta));
    }
    theta = flat;
  }
  if (!(*theta > 0.0)) {
    reader->FailAt(ErrorCode::kBadConfig, "rope_theta",
                   fmt::format("a positive number expected, {} found", *theta));
  }
  return *theta;
}

/// The keys of a Qwen3 config that both formats have; returns the number of layers.
std::int64_t ReadTransformer(JsonReader* reader, const Model& target, Drafter* drafter) {
  RequireString(reader, "model_type", "qwen3");
  ExpectNull(reader, "kv_lora_rank", "drafters with latent attention are not read");
  ExpectNull(reader, "q_lora_rank", "drafters with latent attention are not read");
  RequireString(reader, "hidden_act", "silu");
  ExpectBool(reader, "attention_bias", false);
  ExpectBool(reader, "mlp_bias", false);
  drafter->hidden_size = SizeOfTarget(reader, "hidden_size", target.hidden_size, kMaxWidth);
  drafter->vocab_size = SizeOfTarget(reader, "vocab_size", target.vocab_size, kMaxVocab);
  drafter->intermediate_size = reader->Int("intermediate_size", 1, kMaxWidth);
  drafter->num_attention_heads = reader->Int("num_attention_heads", 1, kMaxHeads);
  drafter->num_key_value_heads = reader->Int("num_key_value_heads", 1, kMaxHeads);
  if (drafter->num_attention_heads % drafter->num_key_value_heads != 0) {
    reader->FailAt(ErrorCode::kBadConfig, "num_key_value_heads",
                   fmt::format("a divisor of num_attention_heads ({}) expected, {} found",
                               drafter->num_attention_heads, drafter->num_key_value_heads));
  }
  drafter->head_dim = reader->Int("head_dim", 2, kMaxHeadDim);
  if (drafter->head_dim % 2 != 0) {
    reader->FailAt(ErrorCode::kBadConfig, "head_dim",
                   fmt::format("an even number expected, {} found: rotary positions turn pairs",
                               drafter->head_dim));
  }
  drafter->rms_norm_eps = ReadEpsilon(reader, "rms_norm_eps");
  drafter->rope_theta = ReadRopeTheta(reader);
  if (reader->Has("max_position_embeddings")) {
    drafter->max_position_embeddings =
        reader->IntOrNull("max_position_embeddings", 1, kMaxPositions).value_or(0);
  }
  return reader->Int("num_hidden_layers", 1, kMaxDrafterLayers);
}

MarkovHead ReadMarkovHead(JsonReader* reader) {
  // Other heads have tensors that this one does not, so an absent type cannot hide one.
  if (!reader->Has("markov_head_type")) return MarkovHead::kVanilla;
  const std::string_view found = reader->String("markov_head_type");
  constexpr std::array kHeads = {MarkovHead::kVanilla, MarkovHead::kGated, MarkovHead::kRnn};
  for (const MarkovHead head : kHeads) {
    if (found == MarkovHeadName(head)) return head;
  }
  if (reader->status()) {
    reader->FailAt(ErrorCode::kUnsupported, "markov_head_type",
                   fmt::format("'vanilla', 'gated' or 'rnn' expected, '{}' found", found));
  }
  return MarkovHead::kVanilla;
}

/// The keys of block and heads, which both formats name alike.
void ReadHeads(JsonReader* reader, Drafter* drafter) {
  drafter->block_size = reader->Int("block_size", drafter->sample_from_anchor ? 1 : 2, kMaxBlock);
  drafter->mask_token_id = reader->Int("mask_token_id", 0, drafter->vocab_size - 1);
  drafter->markov_rank = reader->Int("markov_rank", 0, kMaxWidth);
  reader->Ignore("markov_head_type");
  if (drafter->markov_rank > 0) drafter->markov_head = ReadMarkovHead(reader);
  drafter->confidence_head = OptionalBool(reader, "enable_confidence_head");
  const bool with_markov = OptionalBool(reader, "confidence_head_with_markov");
  drafter->confidence_with_markov = drafter->confidence_head && with_markov;
  if (drafter->confidence_with_markov && drafter->markov_rank == 0) {
    reader->FailAt(ErrorCode::kBadConfig, "confidence_head_with_markov",
                   "false expected: markov_rank is 0");
  }
}

/// Layers whose incoming residual is read. `shift` turns the format's ids into those: a layer's
/// output is what enters the next one. The last layer's output enters none.
std::vector<std::int64_t> ReadAuxLayers(JsonReader* reader, std::string_view key,
                                        std::int64_t shift, const Model& target) {
  const auto num_layers = static_cast<std::int64_t>(target.layers.size());
  std::vector<std::int64_t> layers = reader->IntList(key, -shift, num_layers - 1 - shift);
  if (layers.empty()) reader->FailAt(ErrorCode::kBadConfig, key, "the list is empty");
  // The columns of fc follow the list. Engines that collect the vectors in layer order would read
  // another list differently.
  if (std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) != layers.end()) {
    reader->FailAt(ErrorCode::kBadConfig, key,
                   fmt::format("ascending layers expected, {} found", fmt::join(layers, ", ")));
  }
  for (std::int64_t& layer : layers) layer += shift;
  return layers;
}

std::vector<std::string_view> ReadLayerTypes(JsonReader* reader, std::int64_t num_layers) {
  auto types = reader->StringList("layer_types");
  if (types.size() != static_cast<std::size_t>(num_layers)) {
    reader->FailAt(
        ErrorCode::kBadConfig, "layer_types",
        fmt::format("num_hidden_layers ({}) entries expected, {} found", num_layers, types.size()));
  }
  return types;
}

std::vector<DrafterLayer> ReadSpeculatorsLayers(JsonReader* reader, std::int64_t num_layers,
                                                bool sliding_window_non_causal) {
  const auto window = reader->IntOrNull("sliding_window", 1, kMaxPositions);
  std::vector<DrafterLayer> layers;
  for (const std::string_view type : ReadLayerTypes(reader, num_layers)) {
    if (type == kFullAttention) {
      layers.push_back({0, false});
    } else if (type != kSlidingAttention) {
      reader->FailAt(ErrorCode::kUnsupported, "layer_types",
                     fmt::format("'{}' or '{}' expected, '{}' found", kFullAttention,
                                 kSlidingAttention, type));
    } else if (!window) {
      reader->FailAt(ErrorCode::kBadConfig, "sliding_window",
                     fmt::format("a number expected: layer_types has '{}'", type));
    } else {
      layers.push_back({*window, !sliding_window_non_causal});
    }
  }
  const bool any_slides = std::any_of(layers.begin(), layers.end(), [](const DrafterLayer& layer) {
    return layer.sliding_window > 0;
  });
  if (reader->Has("use_sliding_window") && !reader->Bool("use_sliding_window") && any_slides) {
    reader->FailAt(ErrorCode::kBadConfig, "use_sliding_window",
                   fmt::format("true expected: layer_types has '{}'", kSlidingAttention));
  }
  return layers;
}

void ReadSpeculators(JsonReader* reader, const Model& target, DrafterConfig* config) {
  Drafter& drafter = config->drafter;
  drafter.format = "speculators";
  RequireString(reader, "speculators_model_type", "dspark");
  RequireArchitecture(reader, kSpeculatorsArchitecture);
  reader->Ignore("model_type");  // of the library's class
  if (reader->Has("speculators_config")) {
    if (auto speculators = reader->Object("speculators_config")) {
      ExpectString(&*speculators, "algorithm", "dspark");
      for (const char* key : {"default_proposal_method", "proposal_methods", "verifier"}) {
        speculators->Ignore(key);
      }
      speculators->ListUnknown(&config->warnings);
    }
  }
  auto layers = reader->Object("transformer_layer_config");
  if (!layers) return;
  IgnoreKnown(&*layers);
  for (const char* key : {"architectures", "dtype", "torch_dtype"}) layers->Ignore(key);
  const std::int64_t num_layers = ReadTransformer(&*layers, target, &drafter);
  if (reader->Int("draft_vocab_size", 1, kMaxVocab) != target.vocab_size) {
    reader->FailAt(ErrorCode::kUnsupported, "draft_vocab_size",
                   fmt::format("the target's {} expected: a vocabulary of the drafter's own (d2t, "
                               "t2d) is not read",
                               target.vocab_size));
  }
  if (reader->Has("target_hidden_size") && !reader->IsNull("target_hidden_size")) {
    SizeOfTarget(reader, "target_hidden_size", target.hidden_size, kMaxWidth);
  }
  reader->Ignore("target_hidden_size");
  drafter.sample_from_anchor = OptionalBool(reader, "sample_from_anchor");
  drafter.aux_layers = ReadAuxLayers(reader, "aux_hidden_state_layer_ids", 0, target);
  ReadHeads(reader, &drafter);
  if (reader->Has("tie_word_embeddings") || layers->Has("tie_word_embeddings")) {
    drafter.tie_word_embeddings =
        ReadAtEitherLevel<bool>(&*layers, reader, "tie_word_embeddings",
                                [](JsonReader* r) { return r->Bool("tie_word_embeddings"); });
  }
  drafter.layers = ReadSpeculatorsLayers(&*layers, num_layers,
                                         OptionalBool(reader, "sliding_window_non_causal"));
  layers->ListUnknown(&config->warnings);
}

void ReadDeepSpec(JsonReader* reader, const Model& target, DrafterConfig* config) {
  Drafter& drafter = config->drafter;
  drafter.format = "deepspec";
  RequireArchitecture(reader, kDeepSpecArchitecture);
  const std::int64_t num_layers = ReadTransformer(reader, target, &drafter);
  ExpectBool(reader, "sample_from_anchor", true);
  drafter.sample_from_anchor = true;
  drafter.aux_layers = ReadAuxLayers(reader, "target_layer_ids", 1, target);
  const auto target_layers = static_cast<std::int64_t>(target.layers.size());
  if (reader->Has("num_target_layers")) {
    SizeOfTarget(reader, "num_target_layers", target_layers, kMaxLayers);
  }
  ReadHeads(reader, &drafter);
  drafter.tie_word_embeddings = OptionalBool(reader, "tie_word_embeddings");
  // The copy of the target's config may carry a window that no layer has.
  ExpectBool(reader, "use_sliding_window", false);
  reader->Ignore("sliding_window");
  if (reader->Has("layer_types")) {
    for (const std::string_view type : ReadLayerTypes(reader, num_layers)) {
      if (type == kFullAttention) continue;
      reader->FailAt(ErrorCode::kUnsupported, "layer_types",
                     fmt::format("'{}' expected, '{}' found", kFullAttention, type));
    }
  }
  drafter.layers.assign(static_cast<std::size_t>(num_layers), DrafterLayer());
}

/// The strings in `architectures`, whatever else the document is.
std::vector<std::string_view> ListArchitectures(dom::object root) {
  std::vector<std::string_view> names;
  dom::array list;
  if (root.at_key("architectures").get(list) != simdjson::SUCCESS) return names;
  for (const dom::element item : list) {
    std::string_view name;
    if (item.get(name) == simdjson::SUCCESS) names.push_back(name);
  }
  return names;
}

Error UnknownDrafter(dom::object root, std::string_view source) {
  std::string_view model_type;
  if (root.at_key("model_type").get(model_type) != simdjson::SUCCESS) model_type = "none";
  return {ErrorCode::kUnsupported,
          fmt::format("{}: no drafter that can be read: a DSpark drafter in the speculators format "
                      "(architectures {}, speculators_model_type dspark) or in the DeepSpec format "
                      "(architectures {}) expected; architectures [{}], model_type '{}' found",
                      source, kSpeculatorsArchitecture, kDeepSpecArchitecture,
                      fmt::join(ListArchitectures(root), ", "), model_type)};
}

}  // namespace

Result<DrafterConfig> ParseDrafterConfig(std::string_view json, const Model& target,
                                         std::string_view source) {
  dom::parser parser;
  MEGALITH_ASSIGN_OR_RETURN(const dom::object root, ParseJsonObject(json, source, &parser));
  Status status;
  DrafterConfig config;
  JsonReader reader(root, fmt::format("{}: ", source), &status);
  IgnoreKnown(&reader);
  if (reader.Has("speculators_model_type") || reader.Has("transformer_layer_config")) {
    ReadSpeculators(&reader, target, &config);
  } else {
    const auto names = ListArchitectures(root);
    if (std::find(names.begin(), names.end(), kDeepSpecArchitecture) == names.end()) {
      return tl::unexpected<Error>(UnknownDrafter(root, source));
    }
    ReadDeepSpec(&reader, target, &config);
  }
  if (status) CheckTotals(&reader, MakeDrafterTensorRules(config.drafter));
  if (!status) return tl::unexpected<Error>(status.error());
  reader.ListUnknown(&config.warnings);
  return config;
}

Result<DrafterConfig> ReadDrafterConfig(const std::string& path, const Model& target) {
  std::string source;
  MEGALITH_ASSIGN_OR_RETURN(const std::string json, ReadConfigText(path, &source));
  return ParseDrafterConfig(json, target, source);
}

}  // namespace megalith::model
