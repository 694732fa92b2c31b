#include "program/compile/dense_formats.h"

#include <gtest/gtest.h>

namespace megalith::program {
namespace {

TEST(DensePartOf, EveryMatrixOfTheModelHasItsPart) {
  EXPECT_EQ(DensePartOf("layers.{layer}.self_attn.q_proj"), DensePart::kAttention);
  EXPECT_EQ(DensePartOf("layers.{layer}.self_attn.kv_a_proj_with_mqa"), DensePart::kAttention);
  EXPECT_EQ(DensePartOf("layers.{layer}.self_attn.kv_b_proj"), std::nullopt);
  EXPECT_EQ(DensePartOf("layers.{layer}.mlp.gate_proj"), DensePart::kMlp);
  EXPECT_EQ(DensePartOf("layers.{layer}.block_sparse_moe.shared_experts.down_proj"),
            DensePart::kMlp);
  EXPECT_EQ(DensePartOf("layers.{layer}.block_sparse_moe.routed_expert_up_proj"),
            DensePart::kLatent);
  EXPECT_EQ(DensePartOf("layers.{layer}.block_sparse_moe.gate"), DensePart::kRouter);
  EXPECT_EQ(DensePartOf("layers.{layer}.block_sparse_moe.experts.{expert}.w1"), std::nullopt);
  EXPECT_EQ(DensePartOf("lm_head"), DensePart::kHead);
  EXPECT_EQ(DensePartOf("draft.layers.0.mlp.gate_proj"), DensePart::kDraft);
  EXPECT_EQ(DensePartOf("draft.markov_head.markov_w2"), DensePart::kDraft);
  EXPECT_EQ(DensePartOf("draft.markov_head.gate_proj"), std::nullopt);
  EXPECT_EQ(DensePartOf("draft.markov_head.joint_proj"), std::nullopt);
}

TEST(ParseDenseFormats, BaseAndOverrides) {
  EXPECT_EQ(*ParseDenseFormats("bf16"), DenseFormats{});
  const DenseFormats int8 = *ParseDenseFormats("int8");
  EXPECT_EQ(int8[DensePart::kAttention], WeightFormat::kInt8);
  EXPECT_EQ(int8[DensePart::kHead], WeightFormat::kInt8);
  EXPECT_EQ(int8[DensePart::kRouter], WeightFormat::kBf16);
  const DenseFormats mixed = *ParseDenseFormats("int8,head=bf16,router=int8");
  EXPECT_EQ(mixed[DensePart::kHead], WeightFormat::kBf16);
  EXPECT_EQ(mixed[DensePart::kRouter], WeightFormat::kInt8);
  EXPECT_EQ(mixed[DensePart::kMlp], WeightFormat::kInt8);
  EXPECT_EQ((*ParseDenseFormats("mlp=int8"))[DensePart::kMlp], WeightFormat::kInt8);
}

TEST(ParseDenseFormats, TextRoundTrips) {
  for (const char* text : {"bf16", "int8", "int8,head=bf16", "bf16,mlp=int8"}) {
    EXPECT_EQ(DenseFormatsText(*ParseDenseFormats(text)), text);
  }
}

TEST(ParseDenseFormats, WrongPiecesAreNamed) {
  for (const char* text : {"", "int4", "int8,", "int8,head", "int8,heads=bf16", "int8,head=mxfp4",
                           "head=int8,bf16", "int8,head=bf16,bf16"}) {
    const auto formats = ParseDenseFormats(text);
    ASSERT_FALSE(formats.has_value()) << text;
    EXPECT_EQ(formats.error().code, ErrorCode::kUsage) << text;
  }
  EXPECT_NE(ParseDenseFormats("int8,heads=bf16").error().message.find("'heads'"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::program
