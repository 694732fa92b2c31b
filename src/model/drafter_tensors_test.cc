#include "model/drafter_tensors.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace megalith::model {
namespace {

/// The published drafter of Kimi K3, spec (DSpark) section 2.1.
Drafter PublishedDrafter() {
  Drafter drafter;
  drafter.format = "speculators";
  drafter.hidden_size = 7168;
  drafter.vocab_size = 163840;
  drafter.intermediate_size = 14336;
  drafter.num_attention_heads = 96;
  drafter.num_key_value_heads = 16;
  drafter.head_dim = 64;
  drafter.aux_layers = {24, 48, 72, 88, 92};
  drafter.block_size = 8;
  drafter.markov_rank = 256;
  drafter.confidence_head = true;
  drafter.confidence_with_markov = true;
  drafter.sample_from_anchor = true;
  drafter.layers.assign(5, {2048, true});
  return drafter;
}

/// Name -> shape; kMatrix with `.weight`.
std::map<std::string, std::vector<std::int64_t>> Shapes(const Drafter& drafter) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  ForEachTensor(MakeDrafterTensorRules(drafter),
                [&](const TensorRule& rule, std::int64_t, std::int64_t, std::string_view name) {
                  std::string full(name);
                  if (rule.kind == TensorKind::kMatrix) full += ".weight";
                  EXPECT_EQ(rule.dtype, DType::kBf16) << full;
                  EXPECT_TRUE(shapes.emplace(full, rule.shape).second) << full << " occurs twice";
                });
  return shapes;
}

// The number on the card of the published drafter.
TEST(DrafterTensorRules, PublishedDrafterHasTheParametersOfItsCard) {
  const auto parts = CountTensors(MakeDrafterTensorRules(PublishedDrafter()), false);
  const StoredSize total = Total(parts);
  EXPECT_EQ(total.num_parameters, 4'744'900'481u);
  EXPECT_EQ(total.num_bytes, 2u * 4'744'900'481u);
  EXPECT_EQ(total.num_tensors, 9u + 5u * 11u);
  const auto of = [&](Part part) { return parts[static_cast<std::size_t>(part)].num_parameters; };
  EXPECT_EQ(of(Part::kFusion), 7168u * 35840u);
  EXPECT_EQ(of(Part::kEmbedding), 163840u * (7168u + 256u));
  EXPECT_EQ(of(Part::kHead), 163840u * (7168u + 256u) + 7168u + 256u + 1u);
  EXPECT_EQ(of(Part::kDenseFfn), 5u * 3u * 7168u * 14336u);
  EXPECT_EQ(of(Part::kAttention), 5u * (2u * 6144u * 7168u + 2u * 1024u * 7168u + 2u * 64u));
}

TEST(DrafterTensorRules, ShapesAreThoseOfTheSpecification) {
  const auto shapes = Shapes(PublishedDrafter());
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shapes.at("embed_tokens.weight"), (Shape{163840, 7168}));
  EXPECT_EQ(shapes.at("fc.weight"), (Shape{7168, 35840}));
  EXPECT_EQ(shapes.at("hidden_norm.weight"), (Shape{7168}));
  EXPECT_EQ(shapes.at("norm.weight"), (Shape{7168}));
  EXPECT_EQ(shapes.at("lm_head.weight"), (Shape{163840, 7168}));
  EXPECT_EQ(shapes.at("layers.4.self_attn.q_proj.weight"), (Shape{6144, 7168}));
  EXPECT_EQ(shapes.at("layers.0.self_attn.k_proj.weight"), (Shape{1024, 7168}));
  EXPECT_EQ(shapes.at("layers.0.self_attn.v_proj.weight"), (Shape{1024, 7168}));
  EXPECT_EQ(shapes.at("layers.0.self_attn.q_norm.weight"), (Shape{64}));
  EXPECT_EQ(shapes.at("layers.0.self_attn.o_proj.weight"), (Shape{7168, 6144}));
  EXPECT_EQ(shapes.at("layers.0.mlp.down_proj.weight"), (Shape{7168, 14336}));
  EXPECT_EQ(shapes.at("markov_head.markov_w1.weight"), (Shape{163840, 256}));
  EXPECT_EQ(shapes.at("markov_head.markov_w2.weight"), (Shape{163840, 256}));
  EXPECT_EQ(shapes.at("confidence_head.proj.weight"), (Shape{1, 7424}));
  EXPECT_EQ(shapes.at("confidence_head.proj.bias"), (Shape{1}));
  EXPECT_EQ(shapes.count("layers.5.input_layernorm.weight"), 0u);
}

TEST(DrafterTensorRules, OptionalHeadsChangeExactlyTheirTensors) {
  const std::size_t all = Shapes(PublishedDrafter()).size();
  Drafter drafter = PublishedDrafter();
  drafter.confidence_with_markov = false;
  EXPECT_EQ(Shapes(drafter).size(), all);
  EXPECT_EQ(Shapes(drafter).at("confidence_head.proj.weight"),
            (std::vector<std::int64_t>{1, 7168}));
  drafter.markov_rank = 0;
  EXPECT_EQ(Shapes(drafter).size(), all - 2);
  EXPECT_EQ(Shapes(drafter).count("markov_head.markov_w1.weight"), 0u);
  drafter.confidence_head = false;
  EXPECT_EQ(Shapes(drafter).size(), all - 4);
  drafter.tie_word_embeddings = true;
  EXPECT_EQ(Shapes(drafter).size(), all - 5);
  EXPECT_EQ(Shapes(drafter).count("lm_head.weight"), 0u);
}

TEST(DrafterTensorRules, MarkovHeadsHaveTheMatricesOfTheirType) {
  using Shape = std::vector<std::int64_t>;
  const auto vanilla = Shapes(PublishedDrafter());
  Drafter drafter = PublishedDrafter();
  drafter.markov_head = MarkovHead::kGated;
  const auto gated = Shapes(drafter);
  EXPECT_EQ(gated.size(), vanilla.size() + 2);
  EXPECT_EQ(gated.at("markov_head.gate_proj.weight"), (Shape{256, 7168 + 256}));
  EXPECT_EQ(gated.at("markov_head.gate_proj.bias"), (Shape{256}));
  drafter.markov_head = MarkovHead::kRnn;
  const auto rnn = Shapes(drafter);
  EXPECT_EQ(rnn.size(), vanilla.size() + 2);
  EXPECT_EQ(rnn.at("markov_head.joint_proj.weight"), (Shape{768, 7168 + 512}));
  EXPECT_EQ(rnn.at("markov_head.joint_proj.bias"), (Shape{768}));
  drafter.markov_rank = 0;
  EXPECT_EQ(Shapes(drafter).count("markov_head.joint_proj.weight"), 0u);
}

TEST(DrafterTensorRules, FamilyHoldsTheRulesOfEveryDrafterAndOfThoseThatAreRefused) {
  std::set<std::string> family;
  for (const TensorRule& rule : DrafterFamilyTensorRules()) family.insert(rule.name);
  const TensorRules rules = MakeDrafterTensorRules(PublishedDrafter());
  for (const TensorRule& rule : rules.model_rules) EXPECT_TRUE(family.contains(rule.name));
  for (const TensorRule& rule : rules.layer_kinds[0]) EXPECT_TRUE(family.contains(rule.name));
  for (const char* name : {"markov_head.gate_proj", "markov_head.joint_proj.bias", "d2t",
                           "layers.{layer}.self_attn.q_proj.bias"}) {
    EXPECT_TRUE(family.contains(name)) << name;
  }
}

TEST(Drafter, ProposesABlockOrOneLessWithoutTheAnchorsSlot) {
  Drafter drafter = PublishedDrafter();
  EXPECT_EQ(drafter.MaxDrafts(), 8);
  drafter.sample_from_anchor = false;
  EXPECT_EQ(drafter.MaxDrafts(), 7);
}

}  // namespace
}  // namespace megalith::model
