#include "model/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

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

json TinyConfig() { return json::parse(ReadFile(kData + "/golden/k3-tiny/config.json")); }

/// The error of a config that must be refused.
Error Refusal(const json& config) {
  const auto result = ParseConfig(config.dump());
  if (result) {
    ADD_FAILURE() << "accepted: " << config.dump(1);
    return {};
  }
  return result.error();
}

/// Refused with `key` in the message.
void ExpectRefused(const json& config, std::string_view key) {
  EXPECT_NE(Refusal(config).message.find(key), std::string::npos)
      << key << " is not in: " << Refusal(config).message;
}

/// A key by path, e.g. {"text_config", "hidden_size"}.
json& At(json& root, const std::vector<std::string>& path) {
  json* node = &root;
  for (const std::string& key : path) node = &(*node)[key];
  return *node;
}

std::string Label(const std::vector<std::string>& path) {
  std::string text;
  for (const std::string& key : path) text += (text.empty() ? "" : ".") + key;
  return text;
}

TEST(ReadConfig, ReleasedConfigGivesTheModelOfTheSpecification) {
  const auto config = ReadConfig(kData + "/kimi-k3-config.json");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->warnings, std::vector<std::string>());
  const Model& m = config->model;
  EXPECT_EQ(m.family, "kimi_k3");
  EXPECT_EQ(m.hidden_size, 7168);
  EXPECT_EQ(m.vocab_size, 163840);
  EXPECT_EQ(m.intermediate_size, 33792);
  EXPECT_EQ(m.max_position_embeddings, 1048576);
  EXPECT_EQ(m.rms_norm_eps, 1e-5f);
  EXPECT_EQ(m.lora_norm_eps, 1e-6f);
  EXPECT_EQ(m.attn_res_block_size, 12);
  EXPECT_FALSE(m.tie_word_embeddings);
  EXPECT_TRUE(m.declares_mxfp4_experts);
  EXPECT_EQ(m.bos_token_id, 163584);
  EXPECT_EQ(m.eos_token_ids, std::vector<std::int64_t>{163586});
  EXPECT_EQ(m.pad_token_id, 163839);
  EXPECT_EQ(m.activation.kind, HiddenAct::kSitu);
  EXPECT_EQ(m.activation.situ_beta, 4.0f);
  EXPECT_EQ(m.activation.situ_linear_beta, 25.0f);
  EXPECT_EQ(m.kda.num_heads, 96);
  EXPECT_EQ(m.kda.head_dim, 128);
  EXPECT_EQ(m.kda.short_conv_kernel_size, 4);
  EXPECT_EQ(m.kda.gate_lower_bound, -5.0f);
  EXPECT_TRUE(m.kda.use_full_rank_gate);
  EXPECT_EQ(m.mla.num_attention_heads, 96);
  EXPECT_EQ(m.mla.q_lora_rank, 1536);
  EXPECT_EQ(m.mla.kv_lora_rank, 512);
  EXPECT_EQ(m.mla.qk_nope_head_dim, 128);
  EXPECT_EQ(m.mla.qk_rope_head_dim, 64);
  EXPECT_EQ(m.mla.v_head_dim, 128);
  EXPECT_TRUE(m.mla.use_output_gate);
  EXPECT_EQ(m.moe.num_experts, 896);
  EXPECT_EQ(m.moe.num_experts_per_token, 16);
  EXPECT_EQ(m.moe.num_shared_experts, 2);
  EXPECT_EQ(m.moe.moe_intermediate_size, 3072);
  EXPECT_EQ(m.moe.routed_expert_hidden_size, 3584);
  EXPECT_TRUE(m.moe.latent_moe_use_norm);
  EXPECT_EQ(m.moe.router_activation, RouterActivation::kSigmoid);
  EXPECT_TRUE(m.moe.renormalize);
  EXPECT_EQ(m.moe.routed_scaling_factor, 1.0f);
  EXPECT_EQ(m.moe.num_expert_group, 1);
  EXPECT_EQ(m.moe.topk_group, 1);
  EXPECT_EQ(m.ExpertWidth(), 3584);

  ASSERT_EQ(m.layers.size(), 93u);
  EXPECT_EQ(m.CountLayers(Mixer::kKda), 69);
  EXPECT_EQ(m.CountLayers(Mixer::kMla), 24);
  EXPECT_EQ(m.CountLayers(FeedForward::kDense), 1);
  EXPECT_EQ(m.CountLayers(FeedForward::kMoe), 92);
  EXPECT_EQ(m.MaxBlocks(), 8);
  for (std::size_t l = 0; l < m.layers.size(); ++l) {
    EXPECT_EQ(m.layers[l].mixer, l % 4 == 3 || l == 92 ? Mixer::kMla : Mixer::kKda) << l;
    EXPECT_EQ(m.layers[l].feed_forward, l == 0 ? FeedForward::kDense : FeedForward::kMoe) << l;
    EXPECT_EQ(m.layers[l].residual, ResidualRule::kAttnRes) << l;
    EXPECT_EQ(m.layers[l].pushes_block, l % 12 == 0) << l;
  }
}

TEST(ReadConfig, EveryCheckpointOfTheTestDataIsReadWithoutWarnings) {
  for (const std::string& directory :
       {kData + "/golden/k3-odd", kData + "/golden/k3-realdims", kData + "/golden/k3-tiny",
        kData + "/golden/k3-unit", std::string(MEGALITH_SOURCE_DIR "/models/k3-nano")}) {
    const auto config = ReadConfig(directory);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->warnings, std::vector<std::string>()) << directory;
  }
}

TEST(ReadConfig, AbsentFileIsNotFound) {
  const auto config = ReadConfig("/nonexistent");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
  EXPECT_NE(config.error().message.find("/nonexistent"), std::string::npos);
}

/// Every structural key with what it accepts besides its own type.
struct Key {
  std::vector<std::string> path;
  bool null_is_legal = false;
};
const std::vector<Key> kRequired = {
    {{"model_type"}},
    {{"text_config"}},
    {{"text_config", "model_type"}},
    {{"text_config", "vocab_size"}},
    {{"text_config", "hidden_size"}},
    {{"text_config", "num_hidden_layers"}},
    {{"text_config", "intermediate_size"}},
    {{"text_config", "hidden_act"}},
    {{"text_config", "activation_situ_beta"}, true},
    {{"text_config", "activation_situ_linear_beta"}, true},
    {{"text_config", "rms_norm_eps"}},
    {{"text_config", "max_position_embeddings"}},
    {{"text_config", "num_attention_heads"}},
    {{"text_config", "num_key_value_heads"}},
    {{"text_config", "q_lora_rank"}, true},
    {{"text_config", "kv_lora_rank"}},
    {{"text_config", "qk_nope_head_dim"}},
    {{"text_config", "qk_rope_head_dim"}},
    {{"text_config", "v_head_dim"}},
    {{"text_config", "mla_use_nope"}},
    {{"text_config", "mla_use_output_gate"}},
    {{"text_config", "linear_attn_config"}},
    {{"text_config", "linear_attn_config", "full_attn_layers"}},
    {{"text_config", "linear_attn_config", "kda_layers"}},
    {{"text_config", "linear_attn_config", "num_heads"}},
    {{"text_config", "linear_attn_config", "head_dim"}},
    {{"text_config", "linear_attn_config", "short_conv_kernel_size"}},
    {{"text_config", "linear_attn_config", "gate_lower_bound"}, true},
    {{"text_config", "attn_res_block_size"}, true},
    {{"text_config", "first_k_dense_replace"}},
    {{"text_config", "moe_layer_freq"}},
    {{"text_config", "num_experts"}},
    {{"text_config", "num_experts_per_token"}},
    {{"text_config", "num_shared_experts"}, true},
    {{"text_config", "moe_intermediate_size"}},
    {{"text_config", "routed_expert_hidden_size"}, true},
    {{"text_config", "latent_moe_use_norm"}},
    {{"text_config", "moe_router_activation_func"}},
    {{"text_config", "moe_renormalize"}},
    {{"text_config", "routed_scaling_factor"}},
    {{"text_config", "num_expert_group"}},
    {{"text_config", "topk_group"}},
    {{"text_config", "num_nextn_predict_layers"}},
    {{"text_config", "quantization_config", "quant_method"}},
    {{"text_config", "quantization_config", "format"}},
    {{"text_config", "quantization_config", "config_groups"}},
    {{"text_config", "quantization_config", "config_groups", "group_0"}},
    {{"text_config", "quantization_config", "config_groups", "group_0", "weights"}},
    {{"text_config", "quantization_config", "config_groups", "group_0", "weights", "num_bits"}},
    {{"text_config", "quantization_config", "config_groups", "group_0", "weights", "group_size"}},
    {{"text_config", "quantization_config", "config_groups", "group_0", "weights", "type"}},
    {{"text_config", "quantization_config", "config_groups", "group_0", "weights", "strategy"}},
    {{"text_config", "quantization_config", "config_groups", "group_0", "weights", "symmetric"}},
    {{"text_config", "quantization_config", "config_groups", "group_0", "weights", "dynamic"}},
};

// A K3 file whose key for the SiTU caps, latent width or block size was missing once loaded with
// caps of 1 and 0 and produced garbage: every number of the architecture is required.
TEST(ParseConfig, MissingStructuralKeyIsRefusedAndNamed) {
  for (const Key& key : kRequired) {
    json config = TinyConfig();
    auto parent = key.path;
    parent.pop_back();
    ASSERT_EQ(At(config, parent).erase(key.path.back()), 1u) << Label(key.path);
    const Error error = Refusal(config);
    EXPECT_EQ(error.code, ErrorCode::kBadConfig) << Label(key.path);
    EXPECT_NE(error.message.find(Label(key.path)), std::string::npos) << error.message;
  }
}

TEST(ParseConfig, NullIsLegalOnlyWhereItHasAMeaning) {
  for (const Key& key : kRequired) {
    json config = TinyConfig();
    At(config, key.path) = nullptr;
    // Without a latent there is nothing to norm.
    if (key.path.back() == "routed_expert_hidden_size") {
      config["text_config"]["latent_moe_use_norm"] = false;
    }
    const auto result = ParseConfig(config.dump());
    EXPECT_EQ(result.has_value(), key.null_is_legal) << Label(key.path);
  }
}

TEST(ParseConfig, NullsMeanWhatTheTableSays) {
  json config = TinyConfig();
  json& text = config["text_config"];
  text["activation_situ_beta"] = nullptr;
  text["activation_situ_linear_beta"] = nullptr;
  text["q_lora_rank"] = nullptr;
  text["attn_res_block_size"] = nullptr;
  text["num_shared_experts"] = nullptr;
  text["routed_expert_hidden_size"] = nullptr;
  text["latent_moe_use_norm"] = false;
  text["quantization_config"] = nullptr;
  text["linear_attn_config"]["gate_lower_bound"] = nullptr;
  text["linear_attn_config"].erase("use_full_rank_gate");
  const auto result = ParseConfig(config.dump());
  ASSERT_TRUE(result) << result.error().message;
  const Model& m = result->model;
  EXPECT_EQ(m.activation.situ_beta, 1.0f);
  EXPECT_EQ(m.activation.situ_linear_beta, std::nullopt);
  EXPECT_EQ(m.mla.q_lora_rank, std::nullopt);
  EXPECT_EQ(m.attn_res_block_size, 0);
  EXPECT_EQ(m.MaxBlocks(), 0);
  EXPECT_EQ(m.layers[0].residual, ResidualRule::kPlain);
  EXPECT_EQ(m.moe.num_shared_experts, 0);
  EXPECT_EQ(m.moe.routed_expert_hidden_size, std::nullopt);
  EXPECT_EQ(m.ExpertWidth(), m.hidden_size);
  EXPECT_EQ(m.kda.gate_lower_bound, std::nullopt);
  EXPECT_FALSE(m.kda.use_full_rank_gate);
  EXPECT_FALSE(m.declares_mxfp4_experts);
}

TEST(ParseConfig, ValueOfAnotherTypeIsRefusedAndNamed) {
  for (const Key& key : kRequired) {
    const json original = TinyConfig();
    json copy = original;
    const json value = At(copy, key.path);
    std::vector<json> wrong = {json("text"), json::array({json("x")}), json::object({{"a", 1}})};
    if (value.is_number_integer()) {
      wrong.push_back(value.get<double>());  // 128.0
      wrong.push_back(true);
      wrong.push_back(-1);
      wrong.push_back(std::uint64_t{1} << 63);
      wrong.push_back(json(1e30));
    } else if (value.is_boolean()) {
      wrong.push_back(1);
      wrong.push_back(0);
    } else if (value.is_number_float()) {
      wrong.push_back(true);
      wrong.push_back(1e39);   // infinity as a float
      wrong.push_back(1e-60);  // zero as a float
    } else if (value.is_string()) {
      wrong = {json(1), json(false), json("nothing known"), json::array({value})};
    } else if (value.is_object()) {
      wrong = {json(1), json("text"), json::array({value})};
    } else {
      wrong = {json(1),
               json("text"),
               json::object(),
               json::array({json("1")}),
               json::array({json(1.0)}),
               json::array({json(true)})};
    }
    for (const json& candidate : wrong) {
      json config = original;
      At(config, key.path) = candidate;
      const Error error = Refusal(config);
      EXPECT_NE(error.message.find(key.path.back()), std::string::npos)
          << Label(key.path) << " = " << candidate.dump() << ": " << error.message;
    }
  }
}

struct Contradiction {
  std::string label;
  std::function<void(json&)> edit;  // gets text_config
  std::string key;                  // named in the message
};

TEST(ParseConfig, ContradictionsAreRefusedAndNamed) {
  const std::vector<Contradiction> cases = {
      {"heads", [](json& t) { t["num_key_value_heads"] = 2; }, "num_key_value_heads"},
      // Rope dimensions exist in the family but are never rotated; a config that asks for rotation
      // is another model.
      {"rotary", [](json& t) { t["mla_use_nope"] = false; }, "mla_use_nope"},
      {"top_k", [](json& t) { t["num_experts_per_token"] = 17; }, "num_experts_per_token"},
      {"hidden", [](json& t) { t["hidden_size"] = 120; }, "hidden_size"},
      {"mxfp4 w2", [](json& t) { t["moe_intermediate_size"] = 48; }, "moe_intermediate_size"},
      {"mxfp4 w1", [](json& t) { t["routed_expert_hidden_size"] = 80; },
       "routed_expert_hidden_size"},
      {"groups divide", [](json& t) { t["num_expert_group"] = 3; }, "num_expert_group"},
      {"groups used", [](json& t) { t["topk_group"] = 2; }, "topk_group"},
      {"groups too small",
       [](json& t) {
         t["num_expert_group"] = 16;
         t["topk_group"] = 8;
       },
       "num_expert_group"},
      {"groups too few",
       [](json& t) {
         t["num_expert_group"] = 8;
         t["topk_group"] = 1;
       },
       "topk_group"},
      {"groups off",
       [](json& t) {
         t["num_expert_group"] = 4;
         t["topk_group"] = 2;
         t["use_grouped_topk"] = false;
       },
       "use_grouped_topk"},
      {"selection", [](json& t) { t["topk_method"] = "greedy"; }, "topk_method"},
      {"gate above", [](json& t) { t["linear_attn_config"]["gate_lower_bound"] = 0.0; },
       "gate_lower_bound"},
      {"gate below", [](json& t) { t["linear_attn_config"]["gate_lower_bound"] = -5.5; },
       "gate_lower_bound"},
      {"latent norm", [](json& t) { t["routed_expert_hidden_size"] = nullptr; },
       "latent_moe_use_norm"},
      {"eps zero", [](json& t) { t["rms_norm_eps"] = 0.0; }, "rms_norm_eps"},
      {"eps large", [](json& t) { t["rms_norm_eps"] = 1.0; }, "rms_norm_eps"},
      {"scaling zero", [](json& t) { t["routed_scaling_factor"] = 0.0; }, "routed_scaling_factor"},
      {"beta zero", [](json& t) { t["activation_situ_beta"] = 0; }, "activation_situ_beta"},
      {"beta negative", [](json& t) { t["activation_situ_linear_beta"] = -25.0; },
       "activation_situ_linear_beta"},
      {"activation", [](json& t) { t["hidden_act"] = "gelu"; }, "hidden_act"},
      {"router", [](json& t) { t["moe_router_activation_func"] = "tanh"; },
       "moe_router_activation_func"},
      {"draft layers", [](json& t) { t["num_nextn_predict_layers"] = 1; },
       "num_nextn_predict_layers"},
      {"taps", [](json& t) { t["linear_attn_config"]["short_conv_kernel_size"] = 9; },
       "short_conv_kernel_size"},
      {"no block", [](json& t) { t["attn_res_block_size"] = 0; }, "attn_res_block_size"},
      {"text type", [](json& t) { t["model_type"] = "llama"; }, "model_type"},
      {"text class", [](json& t) { t["architectures"] = {"LlamaForCausalLM"}; }, "architectures"},
      {"dtype", [](json& t) { t["dtype"] = "float16"; }, "dtype"},
      {"tied once", [](json& t) { t["tie_word_embeddings"] = true; }, "tie_word_embeddings"},
      {"bos differs", [](json& t) { t["bos_token_id"] = 1; }, "bos_token_id"},
      {"eos differs",
       [](json& t) {
         t["eos_token_id"] = {1, 509};
       },
       "eos_token_id"},
      {"pad differs", [](json& t) { t["pad_token_id"] = nullptr; }, "pad_token_id"},
      {"vocabulary", [](json& t) { t["vocab_size"] = 500; }, "token_id"},
      // the layer lists
      {"layer twice", [](json& t) { t["linear_attn_config"]["kda_layers"].push_back(4); },
       "kda_layers"},
      {"layer absent", [](json& t) { t["linear_attn_config"]["kda_layers"].erase(0); },
       "kda_layers"},
      {"layer past the end",
       [](json& t) { t["linear_attn_config"]["full_attn_layers"].push_back(14); },
       "full_attn_layers"},
      {"layer zero", [](json& t) { t["linear_attn_config"]["full_attn_layers"].push_back(0); },
       "full_attn_layers"},
      {"lists shifted by one",
       [](json& t) {
         for (const char* list : {"full_attn_layers", "kda_layers"}) {
           for (json& layer : t["linear_attn_config"][list]) layer = layer.get<int>() - 1;
         }
       },
       "layers"},
      {"more layers", [](json& t) { t["num_hidden_layers"] = 14; }, "kda_layers"},
      {"fewer layers", [](json& t) { t["num_hidden_layers"] = 12; }, "layers"},
  };
  for (const Contradiction& contradiction : cases) {
    json config = TinyConfig();
    contradiction.edit(config["text_config"]);
    SCOPED_TRACE(contradiction.label);
    ExpectRefused(config, contradiction.key);
  }
}

TEST(ParseConfig, OtherQuantizationIsRefusedAndNamed) {
  const std::vector<Contradiction> cases = {
      {"method", [](json& q) { q["quant_method"] = "gptq"; }, "quant_method"},
      {"format", [](json& q) { q["format"] = "nvfp4-pack-quantized"; }, "format"},
      {"status", [](json& q) { q["quantization_status"] = "frozen"; }, "quantization_status"},
      {"cache",
       [](json& q) {
         q["kv_cache_scheme"] = {{"num_bits", 8}};
       },
       "kv_cache_scheme"},
      {"second group",
       [](json& q) { q["config_groups"]["group_1"] = q["config_groups"]["group_0"]; },
       "config_groups"},
      {"activations",
       [](json& q) {
         q["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}};
       },
       "input_activations"},
      {"bits", [](json& q) { q["config_groups"]["group_0"]["weights"]["num_bits"] = 8; },
       "num_bits"},
      {"group", [](json& q) { q["config_groups"]["group_0"]["weights"]["group_size"] = 16; },
       "group_size"},
      {"type", [](json& q) { q["config_groups"]["group_0"]["weights"]["type"] = "int"; }, "type"},
      {"order", [](json& q) { q["config_groups"]["group_0"]["weights"]["actorder"] = "weight"; },
       "actorder"},
      {"dynamic", [](json& q) { q["config_groups"]["group_0"]["weights"]["dynamic"] = true; },
       "dynamic"},
      {"symmetric", [](json& q) { q["config_groups"]["group_0"]["weights"]["symmetric"] = false; },
       "symmetric"},
  };
  for (const Contradiction& contradiction : cases) {
    json config = TinyConfig();
    contradiction.edit(config["text_config"]["quantization_config"]);
    SCOPED_TRACE(contradiction.label);
    ExpectRefused(config, contradiction.key);
  }
}

TEST(ParseConfig, QuantizationMayStandAtTheOuterLevelButNotAtBoth) {
  json config = TinyConfig();
  config["quantization_config"] = config["text_config"]["quantization_config"];
  ExpectRefused(config, "quantization_config");
  config["text_config"].erase("quantization_config");
  const auto result = ParseConfig(config.dump());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_TRUE(result->model.declares_mxfp4_experts);
}

TEST(ParseConfig, WithoutQuantizationWidthsNeedNotBeWholeGroups) {
  json config = TinyConfig();
  config["text_config"].erase("quantization_config");
  config["text_config"]["moe_intermediate_size"] = 48;
  const auto result = ParseConfig(config.dump());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(result->model.declares_mxfp4_experts);
}

TEST(ParseConfig, OtherFamilyIsUnsupported) {
  json config = TinyConfig();
  config["model_type"] = "deepseek_v3";
  EXPECT_EQ(Refusal(config).code, ErrorCode::kUnsupported);
  ExpectRefused(config, "deepseek_v3");
  config = TinyConfig();
  config["architectures"] = {"OtherForCausalLM"};
  EXPECT_EQ(Refusal(config).code, ErrorCode::kUnsupported);
}

TEST(ParseConfig, BareTextConfigGivesTheSameModel) {
  const auto nested = ParseConfig(TinyConfig().dump());
  const auto bare = ParseConfig(TinyConfig()["text_config"].dump());
  ASSERT_TRUE(nested);
  ASSERT_TRUE(bare) << bare.error().message;
  EXPECT_EQ(bare->warnings, std::vector<std::string>());
  EXPECT_EQ(bare->model.hidden_size, nested->model.hidden_size);
  EXPECT_EQ(bare->model.eos_token_ids, nested->model.eos_token_ids);
  EXPECT_EQ(bare->model.pad_token_id, nested->model.pad_token_id);
  EXPECT_EQ(bare->model.layers.size(), nested->model.layers.size());
  EXPECT_EQ(bare->model.moe.num_experts, nested->model.moe.num_experts);
}

TEST(ParseConfig, TokenIdsMayStandAtOneLevelOnly) {
  json config = TinyConfig();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"}) {
    config.erase(key);
  }
  ASSERT_TRUE(ParseConfig(config.dump()));
  for (const char* key : {"bos_token_id", "eos_token_id", "tie_word_embeddings"}) {
    json neither = config;
    neither["text_config"].erase(key);
    ExpectRefused(neither, key);
  }
  config["text_config"].erase("pad_token_id");
  const auto without_pad = ParseConfig(config.dump());
  ASSERT_TRUE(without_pad) << without_pad.error().message;
  EXPECT_EQ(without_pad->model.pad_token_id, -1);
}

TEST(ParseConfig, SeveralEndTokensAreKept) {
  json config = TinyConfig();
  config["eos_token_id"] = {509, 510};
  config["text_config"]["eos_token_id"] = {509, 510};
  const auto result = ParseConfig(config.dump());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->model.eos_token_ids, (std::vector<std::int64_t>{509, 510}));
  config["eos_token_id"] = json::array();
  config["text_config"].erase("eos_token_id");
  ExpectRefused(config, "eos_token_id");
}

TEST(ParseConfig, GroupLimitedRoutingIsRepresented) {
  json config = TinyConfig();
  config["text_config"]["num_expert_group"] = 4;
  config["text_config"]["topk_group"] = 2;
  config["text_config"]["moe_router_activation_func"] = "softmax";
  config["text_config"]["moe_layer_freq"] = 2;
  config["text_config"]["hidden_act"] = "silu";
  config["text_config"].erase("activation_situ_beta");
  const auto result = ParseConfig(config.dump());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->model.moe.num_expert_group, 4);
  EXPECT_EQ(result->model.moe.topk_group, 2);
  EXPECT_EQ(result->model.moe.router_activation, RouterActivation::kSoftmax);
  EXPECT_EQ(result->model.activation.kind, HiddenAct::kSilu);
  EXPECT_EQ(result->model.layers[1].feed_forward, FeedForward::kDense);
  EXPECT_EQ(result->model.layers[2].feed_forward, FeedForward::kMoe);
}

TEST(ParseConfig, UnknownKeysAreListedAndDefaultsOfThePublishersLibraryAreNot) {
  json config = TinyConfig();
  config["text_config"]["rope_theta"] = 10000.0;
  config["text_config"]["linear_attn_config"]["new_switch"] = true;
  config["something"] = 1;
  config["text_config"]["quantization_config"]["sparsity_config"] = json::object();
  config["text_config"]["temperature"] = 1.0;
  config["text_config"]["top_k"] = 50;
  config["text_config"]["id2label"] = {{"0", "LABEL_0"}};
  const auto result = ParseConfig(config.dump());
  ASSERT_TRUE(result) << result.error().message;
  ASSERT_EQ(result->warnings.size(), 4u);
  std::string all;
  for (const std::string& warning : result->warnings) all += warning + "\n";
  EXPECT_NE(all.find("text_config.rope_theta"), std::string::npos) << all;
  EXPECT_NE(all.find("text_config.linear_attn_config.new_switch"), std::string::npos) << all;
  EXPECT_NE(all.find("config.json: something"), std::string::npos) << all;
  EXPECT_NE(all.find("quantization_config.sparsity_config"), std::string::npos) << all;
}

TEST(ParseConfig, DuplicateKeysAreRefusedAtEveryLevel) {
  const std::string text = TinyConfig().dump();
  for (const std::string& key : {std::string("\"hidden_size\":128"), std::string("\"num_heads\":4"),
                                 std::string("\"model_type\":\"kimi_k3\""),
                                 std::string("\"patch_size\":14"), std::string("\"num_bits\":4")}) {
    std::string twice = text;
    const std::size_t at = twice.find(key);
    ASSERT_NE(at, std::string::npos) << key;
    twice.insert(at, key + ",");
    const auto result = ParseConfig(twice);
    ASSERT_FALSE(result) << key;
    EXPECT_NE(result.error().message.find("twice"), std::string::npos) << result.error().message;
  }
}

TEST(ParseConfig, DeepNestingIsRefused) {
  json config = TinyConfig();
  for (const int depth : {100, 2000, 200000}) {
    std::string text = config.dump();
    text.insert(1, "\"deep\":" + std::string(static_cast<std::size_t>(depth), '[') +
                       std::string(static_cast<std::size_t>(depth), ']') + ",");
    EXPECT_FALSE(ParseConfig(text)) << depth;
  }
}

TEST(ParseConfig, NotANumberAndMalformedJsonAreRefused) {
  const std::string text = TinyConfig().dump();
  for (const char* value :
       {"NaN", "Infinity", "-Infinity", "1e999", "0x10", "01", "+1", "99999999999999999999999"}) {
    std::string changed = text;
    const std::string key = "\"hidden_size\":128";
    changed.replace(changed.find(key), key.size(), std::string("\"hidden_size\":") + value);
    EXPECT_FALSE(ParseConfig(changed)) << value;
  }
  EXPECT_FALSE(ParseConfig(""));
  EXPECT_FALSE(ParseConfig("[]"));
  EXPECT_FALSE(ParseConfig("null"));
  EXPECT_FALSE(ParseConfig("{}"));
  EXPECT_FALSE(ParseConfig(text + "x"));
  EXPECT_FALSE(ParseConfig("{\"model_type\": 3}"));
}

TEST(ParseConfig, SizesWhoseProductOverflowsAreRefused) {
  json config = TinyConfig();
  json& text = config["text_config"];
  text["num_experts"] = 65536;
  text["hidden_size"] = 1 << 20;
  text["moe_intermediate_size"] = 1 << 20;
  text["routed_expert_hidden_size"] = 1 << 20;
  ExpectRefused(config, "bytes");
  text["hidden_size"] = std::int64_t{1} << 40;
  ExpectRefused(config, "hidden_size");
}

TEST(ParseConfig, EveryPrefixOfAConfigIsRefused) {
  const std::string text = TinyConfig().dump();
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(ParseConfig(std::string_view(text).substr(0, length))) << length;
  }
  EXPECT_TRUE(ParseConfig(text));
}

/// What every later stage relies on.
void ExpectSound(const Model& m) {
  EXPECT_GT(m.hidden_size, 0);
  EXPECT_EQ(m.hidden_size % 32, 0);
  EXPECT_FALSE(m.layers.empty());
  EXPECT_LE(m.moe.num_experts_per_token, m.moe.num_experts);
  EXPECT_EQ(m.moe.num_experts % m.moe.num_expert_group, 0);
  EXPECT_FALSE(m.eos_token_ids.empty());
  for (const std::int64_t id : m.eos_token_ids) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, m.vocab_size);
  }
  EXPECT_EQ(m.CountLayers(Mixer::kKda) + m.CountLayers(Mixer::kMla),
            static_cast<std::int64_t>(m.layers.size()));
}

TEST(ParseConfig, MutatedConfigsGiveAnErrorOrASoundModel) {
  const std::string text = TinyConfig().dump();
  std::mt19937 random(20240607);
  const std::string alphabet = "0123456789-+.eE\"{}[],:truefalsn \\u";
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string changed = text;
    for (int edits = static_cast<int>(random() % 3); edits >= 0; --edits) {
      const std::size_t at = random() % changed.size();
      switch (random() % 4) {
        case 0:
          changed[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          changed.erase(at, 1 + random() % 20);
          break;
        case 2:
          changed.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          changed.insert(at, changed.substr(random() % changed.size(), random() % 40));
      }
      if (changed.empty()) changed = "{";
    }
    const auto result = ParseConfig(changed);
    if (!result) continue;
    ++accepted;
    ExpectSound(result->model);
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace megalith::model
