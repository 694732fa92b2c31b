#include "model/tensors.h"

#include <gtest/gtest.h>

#include <set>

#include "model/config.h"

namespace megalith::model {
namespace {

Model Load(const std::string& path) {
  auto config = ReadConfig(std::string(MEGALITH_TEST_DATA) + "/" + path);
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return config->model;
}

const StoredSize& Of(const std::array<StoredSize, kNumParts>& parts, Part part) {
  return parts[static_cast<std::size_t>(part)];
}

std::set<std::string> Names(const Model& model) {
  std::set<std::string> names;
  ForEachTensor(MakeTensorRules(model),
                [&](const TensorRule&, std::int64_t, std::int64_t, std::string_view name) {
                  EXPECT_TRUE(names.insert(std::string(name)).second) << name << " occurs twice";
                });
  return names;
}

// Numbers of the specification, sections 3 and 8.
TEST(TensorRules, ReleasedModelHasTheCountsAndBytesOfTheSpecification) {
  const Model model = Load("kimi-k3-config.json");
  const TensorRules rules = MakeTensorRules(model);
  const auto parts = CountTensors(rules, true);
  const StoredSize total = Total(parts);
  EXPECT_EQ(total.num_tensors, 497'220u - 168u);
  EXPECT_EQ(total.num_bytes, 1'560'860'324'864u - 2ull * 447'358'976u);
  EXPECT_EQ(total.num_parameters, 2'779'931'837'184u - 447'358'976u);
  EXPECT_EQ(Of(parts, Part::kExperts).num_tensors, 494'592u);
  EXPECT_EQ(Of(parts, Part::kExperts).num_bytes, 82'432ull * 17'547'264u);
  EXPECT_EQ(Of(parts, Part::kExperts).num_parameters, 82'432ull * 33'030'144u);
  EXPECT_EQ(Of(parts, Part::kKda).num_bytes, 69ull * 887'800'832u);
  EXPECT_EQ(Of(parts, Part::kMla).num_bytes, 24ull * 464'392'192u);
  EXPECT_EQ(Of(parts, Part::kDenseFfn).num_parameters, 726'663'168u);
  EXPECT_EQ(Of(parts, Part::kRouter).num_parameters, 92ull * (6'422'528u + 896u));
  EXPECT_EQ(Of(parts, Part::kLatent).num_parameters, 92ull * 51'383'808u);
  EXPECT_EQ(Of(parts, Part::kSharedExperts).num_parameters, 92ull * 132'120'576u);
  EXPECT_EQ(Of(parts, Part::kNorms).num_parameters, 93ull * 43'008u + 21'504u);
  EXPECT_EQ(Of(parts, Part::kHead).num_parameters, 1'174'405'120u);
  EXPECT_EQ(Of(parts, Part::kEmbedding).num_parameters, 1'174'405'120u);
  EXPECT_EQ(rules.layer_kinds.size(), 3u);

  std::uint64_t num_f32 = 0;
  std::uint64_t num_bf16 = 0;
  std::uint64_t num_u8 = 0;
  ForEachTensor(rules, [&](const TensorRule& rule, std::int64_t, std::int64_t, std::string_view) {
    if (rule.part == Part::kExperts) {
      num_u8 += 2;
    } else {
      ++(rule.dtype == DType::kF32 ? num_f32 : num_bf16);
    }
  });
  EXPECT_EQ(num_f32, 506u);
  EXPECT_EQ(num_bf16, 2122u - 168u);
  EXPECT_EQ(num_u8, 494'592u);
}

TEST(TensorRules, NamesOfTheReleasedModelAreDistinctAndComplete) {
  const auto names = Names(Load("golden/k3-tiny/config.json"));
  for (const char* name :
       {"embed_tokens.weight", "lm_head", "norm.weight", "output_attn_res_proj.weight",
        "layers.0.self_attn.A_log", "layers.0.mlp.down_proj", "layers.3.self_attn.q_b_proj",
        "layers.12.block_sparse_moe.experts.15.w2", "layers.1.self_attn.q_conv1d.weight",
        "layers.1.block_sparse_moe.gate.e_score_correction_bias"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  EXPECT_EQ(names.count("layers.13.input_layernorm.weight"), 0u);
  EXPECT_EQ(names.count("layers.0.block_sparse_moe.gate"), 0u);
  EXPECT_EQ(names.count("layers.3.self_attn.A_log"), 0u);
}

TEST(TensorRules, DecayStoresMoreEntriesThanHeads) {
  const TensorRules rules = MakeTensorRules(Load("kimi-k3-config.json"));
  bool seen = false;
  for (const TensorRule& rule : rules.layer_kinds[0]) {
    if (rule.kind != TensorKind::kPerHead) continue;
    seen = true;
    EXPECT_EQ(rule.name, "layers.{layer}.self_attn.A_log");
    EXPECT_EQ(rule.shape, std::vector<std::int64_t>{96});
    EXPECT_EQ(rule.stored_length, 128);
  }
  EXPECT_TRUE(seen);
}

TEST(TensorRules, VariantsOfTheConfigChangeExactlyTheirTensors) {
  const Model base = Load("golden/k3-tiny/config.json");
  const auto names = Names(base);
  const auto has = [](const std::set<std::string>& set, const char* name) {
    return set.count(name) == 1;
  };

  Model model = base;
  model.tie_word_embeddings = true;
  EXPECT_FALSE(has(Names(model), "lm_head"));
  EXPECT_EQ(Names(model).size(), names.size() - 1);

  model = base;
  model.mla.q_lora_rank.reset();
  EXPECT_TRUE(has(Names(model), "layers.3.self_attn.q_proj"));
  EXPECT_FALSE(has(Names(model), "layers.3.self_attn.q_a_proj"));
  EXPECT_FALSE(has(Names(model), "layers.3.self_attn.q_a_layernorm.weight"));
  EXPECT_EQ(Names(model).size(), names.size() - 2 * 4);

  model = base;
  model.mla.use_output_gate = false;
  EXPECT_FALSE(has(Names(model), "layers.3.self_attn.g_proj"));
  EXPECT_TRUE(has(Names(model), "layers.0.self_attn.g_proj"));

  model = base;
  model.kda.use_full_rank_gate = false;
  EXPECT_FALSE(has(Names(model), "layers.0.self_attn.g_proj"));
  EXPECT_TRUE(has(Names(model), "layers.0.self_attn.g_a_proj"));
  EXPECT_TRUE(has(Names(model), "layers.0.self_attn.g_b_proj"));
  EXPECT_TRUE(has(Names(model), "layers.3.self_attn.g_proj"));

  model = base;
  model.moe.num_shared_experts = 0;
  EXPECT_FALSE(has(Names(model), "layers.1.block_sparse_moe.shared_experts.up_proj"));

  model = base;
  model.moe.routed_expert_hidden_size.reset();
  EXPECT_FALSE(has(Names(model), "layers.1.block_sparse_moe.routed_expert_norm.weight"));
  EXPECT_FALSE(has(Names(model), "layers.1.block_sparse_moe.routed_expert_down_proj"));
  bool width_is_hidden = false;
  ForEachTensor(MakeTensorRules(model),
                [&](const TensorRule& rule, std::int64_t, std::int64_t, std::string_view name) {
                  if (name == "layers.1.block_sparse_moe.experts.0.w1") {
                    width_is_hidden = rule.shape == std::vector<std::int64_t>{64, 128};
                  }
                });
  EXPECT_TRUE(width_is_hidden);

  model = base;
  model.attn_res_block_size = 0;
  for (Layer& layer : model.layers) layer.residual = ResidualRule::kPlain;
  EXPECT_FALSE(has(Names(model), "output_attn_res_norm.weight"));
  EXPECT_FALSE(has(Names(model), "layers.0.mlp_res_proj.weight"));
  EXPECT_EQ(Names(model).size(), names.size() - 2 - 4 * 13);
}

TEST(TensorRules, SizesOfOneMatrixInBothForms) {
  TensorRule rule;
  rule.kind = TensorKind::kMatrix;
  rule.shape = {3072, 3584};
  EXPECT_EQ(SizeOf(rule, false).num_bytes, 2ull * 3072ull * 3584u);
  EXPECT_EQ(SizeOf(rule, true).num_bytes, 5'505'024u + 344'064u);
  EXPECT_EQ(SizeOf(rule, true).num_tensors, 2u);
}

TEST(ExpandTensorName, ReplacesLayerAndExpert) {
  TensorRule rule;
  rule.name = "layers.{layer}.block_sparse_moe.experts.{expert}.w1";
  std::string name = "left over";
  ExpandTensorName(rule, 92, 895, &name);
  EXPECT_EQ(name, "layers.92.block_sparse_moe.experts.895.w1");
  rule.name = "norm.weight";
  ExpandTensorName(rule, -1, -1, &name);
  EXPECT_EQ(name, "norm.weight");
}

TEST(FamilyTensorRules, HoldTheRulesOfEveryConfig) {
  const auto config = ReadConfig(std::string(MEGALITH_TEST_DATA) + "/golden/k3-tiny");
  ASSERT_TRUE(config) << config.error().message;
  std::set<std::string> family;
  for (const TensorRule& rule : FamilyTensorRules(config->model)) family.insert(rule.name);
  for (int bits = 0; bits < 64; ++bits) {
    Model model = config->model;
    model.attn_res_block_size = bits & 1 ? 4 : 0;
    model.mla.use_output_gate = bits & 2;
    model.moe.num_shared_experts = bits & 4 ? 1 : 0;
    model.moe.latent_moe_use_norm = bits & 8;
    if (bits & 8 || bits & 1) model.moe.routed_expert_hidden_size = 64;
    model.kda.use_full_rank_gate = bits & 16;
    if (bits & 32) model.mla.q_lora_rank = std::nullopt;
    for (Layer& layer : model.layers) {
      layer.residual = bits & 1 ? ResidualRule::kAttnRes : ResidualRule::kPlain;
    }
    const TensorRules rules = MakeTensorRules(model);
    for (const TensorRule& rule : rules.model_rules) EXPECT_TRUE(family.contains(rule.name));
    for (const auto& kind : rules.layer_kinds) {
      for (const TensorRule& rule : kind) EXPECT_TRUE(family.contains(rule.name)) << rule.name;
    }
  }
}

}  // namespace
}  // namespace megalith::model
