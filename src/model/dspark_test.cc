#include "model/dspark.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "model/config.h"

namespace megalith::model {
namespace {

using nlohmann::json;

const std::string kData = MEGALITH_TEST_DATA;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Model Target(const std::string& path) {
  auto config = ReadConfig(path);
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return config->model;
}

const Model& TinyTarget() {
  static const Model model = Target(kData + "/golden/k3-tiny");
  return model;
}

json TinyDrafter() { return json::parse(ReadFile(kData + "/golden/k3-tiny-dspark/config.json")); }

/// As DeepSpec writes it for k3-tiny: flat, ids of outputs.
json DeepSpecDrafter() {
  return json::parse(R"({
    "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "torch_dtype": "bfloat16",
    "hidden_size": 128, "vocab_size": 512, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32,
    "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": null,
    "attention_bias": false, "attention_dropout": 0.0, "tie_word_embeddings": false,
    "layer_types": ["full_attention", "full_attention"],
    "sliding_window": null, "use_sliding_window": false, "max_window_layers": 2,
    "max_position_embeddings": 40960, "bos_token_id": 1, "eos_token_id": 2,
    "target_layer_ids": [-1, 4, 11], "num_target_layers": 13, "num_anchors": 512,
    "block_size": 7, "mask_token_id": 507, "markov_rank": 16, "markov_head_type": "vanilla",
    "enable_confidence_head": true, "confidence_head_with_markov": true})");
}

Drafter Accepted(const json& config) {
  const auto result = ParseDrafterConfig(config.dump(), TinyTarget());
  if (!result) {
    ADD_FAILURE() << result.error().message;
    return {};
  }
  return result->drafter;
}

void ExpectRefused(const json& config, ErrorCode code, const std::vector<std::string>& texts) {
  const auto result = ParseDrafterConfig(config.dump(), TinyTarget());
  ASSERT_FALSE(result) << "accepted: " << config.dump(1);
  EXPECT_EQ(result.error().code, code) << result.error().message;
  for (const std::string& text : texts) {
    EXPECT_NE(result.error().message.find(text), std::string::npos)
        << text << " is not in: " << result.error().message;
  }
}

TEST(ReadDrafterConfig, GoldenDrafterGivesItsNumbers) {
  const auto config = ReadDrafterConfig(kData + "/golden/k3-tiny-dspark", TinyTarget());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->warnings, std::vector<std::string>());
  const Drafter& d = config->drafter;
  EXPECT_EQ(d.format, "speculators");
  EXPECT_EQ(d.hidden_size, 128);
  EXPECT_EQ(d.vocab_size, 512);
  EXPECT_EQ(d.intermediate_size, 192);
  EXPECT_EQ(d.num_attention_heads, 6);
  EXPECT_EQ(d.num_key_value_heads, 2);
  EXPECT_EQ(d.head_dim, 32);
  EXPECT_EQ(d.rms_norm_eps, 1e-5f);
  EXPECT_EQ(d.rope_theta, 10000.0);
  EXPECT_EQ(d.aux_layers, (std::vector<std::int64_t>{2, 5, 8, 11, 12}));
  EXPECT_EQ(d.block_size, 8);
  EXPECT_EQ(d.mask_token_id, 507);
  EXPECT_EQ(d.markov_rank, 16);
  EXPECT_TRUE(d.confidence_head);
  EXPECT_TRUE(d.confidence_with_markov);
  EXPECT_TRUE(d.sample_from_anchor);
  EXPECT_FALSE(d.tie_word_embeddings);
  EXPECT_EQ(d.MaxDrafts(), 8);
  ASSERT_EQ(d.layers.size(), 3u);
  for (const DrafterLayer& layer : d.layers) {
    EXPECT_EQ(layer.sliding_window, 24);
    EXPECT_TRUE(layer.causal_in_block);
  }
}

TEST(ReadDrafterConfig, DrafterOfTheSmallModelIsReadWithoutWarnings) {
  const std::string nano = MEGALITH_SOURCE_DIR "/models/k3-nano";
  const auto config = ReadDrafterConfig(nano + "/dspark/config.json", Target(nano));
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->warnings, std::vector<std::string>());
  EXPECT_EQ(config->drafter.aux_layers, (std::vector<std::int64_t>{4, 6, 8}));
  EXPECT_EQ(config->drafter.layers.size(), 2u);
}

TEST(ReadDrafterConfig, PositionsItWasMadeForMayBeGiven) {
  json config = DeepSpecDrafter();
  EXPECT_EQ(Accepted(config).max_position_embeddings, 40960);
  config["max_position_embeddings"] = nullptr;
  EXPECT_EQ(Accepted(config).max_position_embeddings, 0);
  config.erase("max_position_embeddings");
  EXPECT_EQ(Accepted(config).max_position_embeddings, 0);
  config["max_position_embeddings"] = "many";
  ExpectRefused(config, ErrorCode::kBadConfig, {"max_position_embeddings"});
  config = TinyDrafter();
  config["transformer_layer_config"]["max_position_embeddings"] = 64;
  EXPECT_EQ(Accepted(config).max_position_embeddings, 64);
}

// The example of the specification, section 2.1.
TEST(ReadDrafterConfig, PublishedShapeIsRead) {
  json config = TinyDrafter();
  config["aux_hidden_state_layer_ids"] = {24, 48, 72, 88, 92};
  config["mask_token_id"] = 163837;
  config["markov_rank"] = 256;
  config["draft_vocab_size"] = 163840;
  json& layers = config["transformer_layer_config"];
  layers["hidden_size"] = 7168;
  layers["vocab_size"] = 163840;
  layers["intermediate_size"] = 14336;
  layers["num_hidden_layers"] = 5;
  layers["num_attention_heads"] = 96;
  layers["num_key_value_heads"] = 16;
  layers["head_dim"] = 64;
  layers["sliding_window"] = 2048;
  layers["layer_types"] = std::vector<std::string>(5, "sliding_attention");
  layers["rope_parameters"] = {{"rope_theta", 10000}, {"rope_type", "default"}};
  const auto result =
      ParseDrafterConfig(config.dump(), Target(kData + "/kimi-k3-config.json"), "config.json");
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->drafter.layers.size(), 5u);
  EXPECT_EQ(result->drafter.layers[4].sliding_window, 2048);
  EXPECT_EQ(result->drafter.rope_theta, 10000.0);
}

// Ids of outputs are one less than ids of what enters a layer. Adding one twice, or not at all,
// ruins acceptance silently.
TEST(ReadDrafterConfig, DeepSpecDrafterReadsOutputsWholeContextAndWholeBlock) {
  const Drafter d = Accepted(DeepSpecDrafter());
  EXPECT_EQ(d.format, "deepspec");
  EXPECT_EQ(d.aux_layers, (std::vector<std::int64_t>{0, 5, 12}));
  EXPECT_TRUE(d.sample_from_anchor);
  EXPECT_EQ(d.block_size, 7);
  EXPECT_EQ(d.MaxDrafts(), 7);
  EXPECT_EQ(d.rms_norm_eps, 1e-6f);
  EXPECT_EQ(d.rope_theta, 1e6);
  ASSERT_EQ(d.layers.size(), 2u);
  for (const DrafterLayer& layer : d.layers) {
    EXPECT_EQ(layer.sliding_window, 0);
    EXPECT_FALSE(layer.causal_in_block);
  }
  const auto result = ParseDrafterConfig(DeepSpecDrafter().dump(), TinyTarget());
  EXPECT_EQ(result->warnings, std::vector<std::string>());
}

TEST(ReadDrafterConfig, AbsentSampleFromAnchorIsFalseInSpeculatorsAndTrueInDeepSpec) {
  json config = TinyDrafter();
  config.erase("sample_from_anchor");
  EXPECT_FALSE(Accepted(config).sample_from_anchor);
  EXPECT_EQ(Accepted(config).MaxDrafts(), 7);
  config["block_size"] = 1;
  ExpectRefused(config, ErrorCode::kBadConfig, {"block_size", "2 to 64 expected, 1 found"});
  config["sample_from_anchor"] = true;
  EXPECT_EQ(Accepted(config).MaxDrafts(), 1);

  config = DeepSpecDrafter();
  config["sample_from_anchor"] = false;
  ExpectRefused(config, ErrorCode::kUnsupported, {"sample_from_anchor"});
}

TEST(ReadDrafterConfig, LayerTypesDecideWindowAndOrderWithinTheBlock) {
  json config = TinyDrafter();
  config["transformer_layer_config"]["layer_types"] = {"full_attention", "sliding_attention",
                                                       "full_attention"};
  Drafter d = Accepted(config);
  EXPECT_EQ(d.layers[0].sliding_window, 0);
  EXPECT_FALSE(d.layers[0].causal_in_block);
  EXPECT_EQ(d.layers[1].sliding_window, 24);
  EXPECT_TRUE(d.layers[1].causal_in_block);
  config["sliding_window_non_causal"] = true;
  d = Accepted(config);
  EXPECT_EQ(d.layers[1].sliding_window, 24);
  EXPECT_FALSE(d.layers[1].causal_in_block);
  config.erase("sliding_window_non_causal");
  EXPECT_TRUE(Accepted(config).layers[1].causal_in_block);

  config["transformer_layer_config"]["use_sliding_window"] = false;
  ExpectRefused(config, ErrorCode::kBadConfig, {"use_sliding_window", "sliding_attention"});
  config["transformer_layer_config"]["sliding_window"] = nullptr;
  ExpectRefused(config, ErrorCode::kBadConfig, {"sliding_window"});
  config["transformer_layer_config"]["layer_types"] = {"full_attention", "chunked_attention",
                                                       "full_attention"};
  ExpectRefused(config, ErrorCode::kUnsupported, {"layer_types", "chunked_attention"});
  config["transformer_layer_config"]["layer_types"] = {"full_attention"};
  ExpectRefused(config, ErrorCode::kBadConfig, {"layer_types", "(3) entries expected, 1 found"});
  config["transformer_layer_config"]["layer_types"] = {"full_attention", "full_attention",
                                                       "full_attention"};
  EXPECT_EQ(Accepted(config).layers[1].sliding_window, 0);

  config = DeepSpecDrafter();
  config["layer_types"][1] = "sliding_attention";
  ExpectRefused(config, ErrorCode::kUnsupported, {"layer_types", "sliding_attention"});
  config.erase("layer_types");
  EXPECT_EQ(Accepted(config).layers.size(), 2u);
  config["use_sliding_window"] = true;
  ExpectRefused(config, ErrorCode::kUnsupported, {"use_sliding_window"});
}

TEST(ReadDrafterConfig, RotaryBaseMayBeFlatOrNestedButNeverScaled) {
  json config = TinyDrafter();
  json& layers = config["transformer_layer_config"];
  layers["rope_theta"] = 10000;
  EXPECT_EQ(Accepted(config).rope_theta, 10000.0);
  layers["rope_theta"] = 20000;
  ExpectRefused(config, ErrorCode::kBadConfig, {"rope_theta", "20000", "10000"});
  layers.erase("rope_parameters");
  EXPECT_EQ(Accepted(config).rope_theta, 20000.0);
  layers["rope_parameters"] = nullptr;
  EXPECT_EQ(Accepted(config).rope_theta, 20000.0);
  layers["rope_theta"] = 0;
  ExpectRefused(config, ErrorCode::kBadConfig, {"rope_theta", "positive"});
  layers.erase("rope_theta");
  ExpectRefused(config, ErrorCode::kBadConfig, {"rope_theta", "required"});
  layers["rope_parameters"] = {{"rope_theta", 10000}, {"partial_rotary_factor", 1.0}};
  EXPECT_EQ(Accepted(config).rope_theta, 10000.0);
  layers["rope_parameters"]["partial_rotary_factor"] = 0.5;
  ExpectRefused(config, ErrorCode::kUnsupported, {"partial_rotary_factor"});
  layers["rope_parameters"] = {{"rope_theta", 10000}, {"rope_type", "yarn"}, {"factor", 32}};
  ExpectRefused(config, ErrorCode::kUnsupported, {"rope_type", "'yarn' found"});
  layers["rope_parameters"]["rope_type"] = "default";
  ExpectRefused(config, ErrorCode::kUnsupported, {"rope_parameters.factor"});
  layers["rope_parameters"] = {{"rope_theta", 10000}};
  layers["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  ExpectRefused(config, ErrorCode::kUnsupported, {"rope_scaling"});
  layers["rope_scaling"] = nullptr;
  EXPECT_EQ(Accepted(config).rope_theta, 10000.0);
}

TEST(ReadDrafterConfig, AuxLayersMustEnterALayerOfTheTargetInAscendingOrder) {
  json config = TinyDrafter();
  for (const json& bad : {json({12, 13}), json({-1, 3}), json({3, 3}), json({5, 2}), json::array(),
                          json({2.0}), json({"2"}), json(2), json(nullptr)}) {
    config["aux_hidden_state_layer_ids"] = bad;
    ExpectRefused(config, ErrorCode::kBadConfig, {"aux_hidden_state_layer_ids"});
  }
  config["aux_hidden_state_layer_ids"] = {0, 12};
  EXPECT_EQ(Accepted(config).aux_layers, (std::vector<std::int64_t>{0, 12}));

  config = DeepSpecDrafter();
  for (const json& bad : {json({12}), json({-2, 3}), json({3, 3}), json({5, 2}), json::array()}) {
    config["target_layer_ids"] = bad;
    ExpectRefused(config, ErrorCode::kBadConfig, {"target_layer_ids"});
  }
}

TEST(ReadDrafterConfig, SizesThatTheTargetDoesNotHaveAreRefused) {
  json config = TinyDrafter();
  config["transformer_layer_config"]["hidden_size"] = 192;
  ExpectRefused(config, ErrorCode::kBadConfig,
                {"transformer_layer_config.hidden_size", "the target's 128 expected, 192 found"});
  config = TinyDrafter();
  config["transformer_layer_config"]["vocab_size"] = 511;
  ExpectRefused(config, ErrorCode::kBadConfig, {"vocab_size", "512 expected, 511 found"});
  config = TinyDrafter();
  config["draft_vocab_size"] = 256;
  ExpectRefused(config, ErrorCode::kUnsupported, {"draft_vocab_size", "512", "d2t"});
  config = TinyDrafter();
  config["target_hidden_size"] = 64;
  ExpectRefused(config, ErrorCode::kBadConfig, {"target_hidden_size"});
  config["target_hidden_size"] = 128;
  Accepted(config);
  config["mask_token_id"] = 512;
  ExpectRefused(config, ErrorCode::kBadConfig, {"mask_token_id", "0 to 511 expected, 512 found"});
  config = DeepSpecDrafter();
  config["num_target_layers"] = 36;
  ExpectRefused(config, ErrorCode::kBadConfig, {"num_target_layers", "13 expected, 36 found"});
  config = DeepSpecDrafter();
  config["num_hidden_layers"] = 4096;
  ExpectRefused(config, ErrorCode::kBadConfig,
                {"num_hidden_layers", "1 to 128 expected, 4096 found"});
}

TEST(ReadDrafterConfig, HeadsThatDoNotFitAreRefused) {
  json config = TinyDrafter();
  config["transformer_layer_config"]["num_key_value_heads"] = 4;
  ExpectRefused(config, ErrorCode::kBadConfig, {"num_key_value_heads", "divisor", "(6)", "4"});
  config["transformer_layer_config"]["num_key_value_heads"] = 0;
  ExpectRefused(config, ErrorCode::kBadConfig, {"num_key_value_heads"});
  config = TinyDrafter();
  config["transformer_layer_config"]["head_dim"] = 31;
  ExpectRefused(config, ErrorCode::kBadConfig, {"head_dim", "even"});
  config = TinyDrafter();
  config["markov_rank"] = 0;
  ExpectRefused(config, ErrorCode::kBadConfig, {"confidence_head_with_markov", "markov_rank is 0"});
  config["confidence_head_with_markov"] = false;
  EXPECT_EQ(Accepted(config).markov_rank, 0);
  EXPECT_TRUE(Accepted(config).confidence_head);
  config["enable_confidence_head"] = false;
  config["confidence_head_with_markov"] = true;
  EXPECT_FALSE(Accepted(config).confidence_with_markov);
}

TEST(ReadDrafterConfig, TiedEmbeddingsMayStandAtEitherLevelButNotContradict) {
  json config = TinyDrafter();
  config["tie_word_embeddings"] = true;
  EXPECT_TRUE(Accepted(config).tie_word_embeddings);
  config["transformer_layer_config"]["tie_word_embeddings"] = false;
  ExpectRefused(config, ErrorCode::kBadConfig, {"tie_word_embeddings"});
  config.erase("tie_word_embeddings");
  EXPECT_FALSE(Accepted(config).tie_word_embeddings);
  config = DeepSpecDrafter();
  config["tie_word_embeddings"] = true;
  EXPECT_TRUE(Accepted(config).tie_word_embeddings);
}

// An engine that compared one method name took a variant for the method itself.
TEST(ReadDrafterConfig, OtherDraftersAreRefusedByName) {
  json config = TinyDrafter();
  config["speculators_model_type"] = "dflash";
  ExpectRefused(config, ErrorCode::kUnsupported,
                {"speculators_model_type", "'dspark' expected, 'dflash' found"});
  config = TinyDrafter();
  config.erase("speculators_model_type");
  ExpectRefused(config, ErrorCode::kBadConfig, {"speculators_model_type", "required"});
  config = TinyDrafter();
  config["architectures"] = {"Eagle3Speculator"};
  ExpectRefused(config, ErrorCode::kUnsupported,
                {"DSparkDraftModel expected, [Eagle3Speculator] found"});
  config["architectures"] = json::array();
  ExpectRefused(config, ErrorCode::kUnsupported, {"DSparkDraftModel expected, [] found"});
  config = TinyDrafter();
  config["speculators_config"]["algorithm"] = "eagle3";
  ExpectRefused(config, ErrorCode::kUnsupported, {"algorithm", "eagle3"});
  config = TinyDrafter();
  config["transformer_layer_config"]["model_type"] = "llama";
  ExpectRefused(config, ErrorCode::kUnsupported, {"model_type", "'qwen3' expected, 'llama' found"});

  const json dflash = {{"architectures", {"DFlashDraftModel"}}, {"model_type", "qwen3"}};
  ExpectRefused(dflash, ErrorCode::kUnsupported,
                {"architectures [DFlashDraftModel], model_type 'qwen3' found", "speculators",
                 "DSparkDraftModel", "Qwen3DSparkModel"});
  // The same name, but flat and with the layers in dflash_config.
  const json flat = {{"architectures", {"DSparkDraftModel"}},
                     {"dflash_config", {{"target_layer_ids", {1, 2}}}}};
  ExpectRefused(flat, ErrorCode::kUnsupported, {"[DSparkDraftModel], model_type 'none' found"});
  ExpectRefused(json::object(), ErrorCode::kUnsupported, {"architectures []"});
  ExpectRefused(json{{"architectures", 3}, {"model_type", {1}}}, ErrorCode::kUnsupported,
                {"architectures []"});
  ExpectRefused(json::parse(ReadFile(kData + "/golden/k3-tiny/config.json")),
                ErrorCode::kUnsupported, {"KimiK3ForConditionalGeneration", "kimi_k3"});

  config = DeepSpecDrafter();
  config["architectures"] = {"Gemma4DSparkModel"};
  ExpectRefused(config, ErrorCode::kUnsupported, {"Gemma4DSparkModel"});
  config = DeepSpecDrafter();
  config["dflash_config"] = json::object();
  ExpectRefused(config, ErrorCode::kUnsupported, {"dflash_config"});
  config = DeepSpecDrafter();
  config["kv_lora_rank"] = 512;
  ExpectRefused(config, ErrorCode::kUnsupported, {"kv_lora_rank", "latent attention"});
}

TEST(ReadDrafterConfig, OtherArithmeticIsRefused) {
  for (const bool deep_spec : {false, true}) {
    const json original = deep_spec ? DeepSpecDrafter() : TinyDrafter();
    const auto with = [&](const char* key, const json& value, bool in_layers) {
      json config = original;
      (in_layers && !deep_spec ? config["transformer_layer_config"] : config)[key] = value;
      return config;
    };
    ExpectRefused(with("markov_head_type", "lstm", false), ErrorCode::kUnsupported,
                  {"markov_head_type", "'vanilla', 'gated' or 'rnn' expected, 'lstm' found"});
    ExpectRefused(with("markov_head_type", 3, false), ErrorCode::kBadConfig, {"markov_head_type"});
    ExpectRefused(with("markov_head_type", nullptr, false), ErrorCode::kBadConfig,
                  {"markov_head_type"});
    ExpectRefused(with("hidden_act", "gelu", true), ErrorCode::kUnsupported,
                  {"hidden_act", "'silu' expected, 'gelu' found"});
    ExpectRefused(with("attention_bias", true, true), ErrorCode::kUnsupported, {"attention_bias"});
    ExpectRefused(with("mlp_bias", true, true), ErrorCode::kUnsupported, {"mlp_bias"});
    ExpectRefused(with("dtype", "float16", false), ErrorCode::kUnsupported, {"dtype", "float16"});
    ExpectRefused(with("quantization_config", {{"quant_method", "fp8"}}, false),
                  ErrorCode::kUnsupported, {"quantization_config"});
    ExpectRefused(with("rms_norm_eps", 0, true), ErrorCode::kBadConfig, {"rms_norm_eps"});
  }
}

TEST(ReadDrafterConfig, MarkovHeadIsTheNamedOneAndVanillaWithoutAName) {
  for (json config : {TinyDrafter(), DeepSpecDrafter()}) {
    for (const MarkovHead head : {MarkovHead::kVanilla, MarkovHead::kGated, MarkovHead::kRnn}) {
      config["markov_head_type"] = std::string(MarkovHeadName(head));
      EXPECT_EQ(Accepted(config).markov_head, head) << MarkovHeadName(head);
    }
    // Without a head its type means nothing.
    json none = config;
    none["markov_rank"] = 0;
    none["confidence_head_with_markov"] = false;
    EXPECT_EQ(Accepted(none).markov_rank, 0);
    config.erase("markov_head_type");
    EXPECT_EQ(Accepted(config).markov_head, MarkovHead::kVanilla);
  }
}

TEST(ReadDrafterConfig, EveryRequiredKeyIsMissed) {
  for (const char* key : {"architectures", "aux_hidden_state_layer_ids", "block_size",
                          "mask_token_id", "markov_rank", "draft_vocab_size"}) {
    json config = TinyDrafter();
    ASSERT_EQ(config.erase(key), 1u) << key;
    ExpectRefused(config, ErrorCode::kBadConfig, {key, "required key is missing"});
  }
  for (const char* key :
       {"model_type", "hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
        "sliding_window", "layer_types"}) {
    json config = TinyDrafter();
    ASSERT_EQ(config["transformer_layer_config"].erase(key), 1u) << key;
    ExpectRefused(config, ErrorCode::kBadConfig,
                  {std::string("transformer_layer_config.") + key, "required key is missing"});
  }
  for (const char* key : {"target_layer_ids", "block_size", "mask_token_id", "markov_rank",
                          "num_hidden_layers", "head_dim", "rope_theta", "rms_norm_eps"}) {
    json config = DeepSpecDrafter();
    ASSERT_EQ(config.erase(key), 1u) << key;
    ExpectRefused(config, ErrorCode::kBadConfig, {key, "required key is missing"});
  }
}

TEST(ReadDrafterConfig, UnknownKeysAreListedAtEveryLevel) {
  json config = TinyDrafter();
  config["new_head"] = true;
  config["transformer_layer_config"]["new_norm"] = 1;
  config["speculators_config"]["new_method"] = 1;
  const auto result = ParseDrafterConfig(config.dump(), TinyTarget(), "here");
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->warnings, (std::vector<std::string>{
                                  "here: speculators_config.new_method: unknown key, ignored",
                                  "here: transformer_layer_config.new_norm: unknown key, ignored",
                                  "here: new_head: unknown key, ignored"}));
}

TEST(ReadDrafterConfig, MalformedTextsAndAbsentFilesAreRefused) {
  const std::string text = TinyDrafter().dump();
  for (std::size_t length = 0; length < text.size(); length += 7) {
    EXPECT_FALSE(ParseDrafterConfig(std::string_view(text).substr(0, length), TinyTarget()));
  }
  std::string twice = text;
  twice.insert(1, "\"block_size\": 8,");
  const auto result = ParseDrafterConfig(twice, TinyTarget());
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("block_size: the key occurs twice"), std::string::npos);
  const auto absent = ReadDrafterConfig("/nonexistent", TinyTarget());
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_NE(absent.error().message.find("/nonexistent"), std::string::npos);
}

TEST(ReadDrafterConfig, MutatedConfigsGiveAnErrorOrASoundDrafter) {
  std::mt19937 random(20250214);
  const std::string alphabet = "0123456789-+.eE\"{}[],:truefalsn \\u";
  int accepted = 0;
  for (int round = 0; round < 10000; ++round) {
    std::string text = round % 2 == 0 ? TinyDrafter().dump() : DeepSpecDrafter().dump();
    for (int edits = static_cast<int>(random() % 2); edits >= 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = alphabet[random() % alphabet.size()];
      } else {
        text.erase(at, 1 + random() % 20);
      }
    }
    const auto result = ParseDrafterConfig(text, TinyTarget());
    if (!result) {
      EXPECT_FALSE(result.error().message.empty());
      continue;
    }
    ++accepted;
    const Drafter& d = result->drafter;
    EXPECT_GE(d.MaxDrafts(), 1);
    EXPECT_EQ(d.num_attention_heads % d.num_key_value_heads, 0);
    EXPECT_LT(d.mask_token_id, d.vocab_size);
    EXPECT_FALSE(d.layers.empty());
    EXPECT_FALSE(d.aux_layers.empty());
    EXPECT_LT(d.aux_layers.back(), static_cast<std::int64_t>(TinyTarget().layers.size()));
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace megalith::model
