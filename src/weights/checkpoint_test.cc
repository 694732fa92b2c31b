#include "weights/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/bf16.h"
#include "base/file.h"
#include "base/npy.h"
#include "model/config.h"
#include "tools/fake_checkpoint.h"
#include "tools/temp_dir.h"

namespace megalith::weights {
namespace {

using nlohmann::json;
using tools::FakeLayout;
using tools::FakeTensor;

const std::string kData = MEGALITH_TEST_DATA;

class GoldenCheckpoint : public testing::TestWithParam<std::string> {};

TEST_P(GoldenCheckpoint, OpensWithNothingUnknown) {
  const auto checkpoint = Checkpoint::Open(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const Census& census = checkpoint->census();
  EXPECT_EQ(census.num_unknown, 0u);
  EXPECT_EQ(census.warnings, std::vector<std::string>());
  // The golden sets hold two tensors of a vision part.
  const bool golden = GetParam().find("golden") != std::string::npos;
  EXPECT_EQ(census.num_skipped, golden ? 2u : 0u);
  EXPECT_EQ(census.num_expected + census.num_skipped, checkpoint->shards().num_tensors());
  EXPECT_EQ(checkpoint->prefix(), "language_model.model.");
  const auto& model = checkpoint->model();
  EXPECT_EQ(census.num_mxfp4_matrices,
            static_cast<std::uint64_t>(3 * model.moe.num_experts *
                                       model.CountLayers(model::FeedForward::kMoe)));
}

TEST_P(GoldenCheckpoint, EveryTensorOfTheRulesIsFoundByName) {
  const auto checkpoint = Checkpoint::Open(GetParam());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  model::ForEachTensor(checkpoint->rules(), [&](const model::TensorRule& rule, std::int64_t,
                                                std::int64_t, std::string_view name) {
    if (rule.kind != model::TensorKind::kMatrix) {
      EXPECT_TRUE(checkpoint->Find(name)) << name;
      return;
    }
    const auto matrix = checkpoint->FindMatrix(name);
    ASSERT_TRUE(matrix) << name;
    EXPECT_EQ(matrix->rows, rule.shape[0]);
    EXPECT_EQ(matrix->columns, rule.shape[1]);
    EXPECT_EQ(matrix->format,
              rule.part == model::Part::kExperts ? MatrixFormat::kMxfp4 : MatrixFormat::kBf16);
    if (matrix->format == MatrixFormat::kMxfp4) {
      const auto scales = checkpoint->MapTensor(matrix->scale);
      ASSERT_TRUE(scales);
      EXPECT_FALSE(FindBadMxfp4Scale(*scales)) << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, GoldenCheckpoint,
                         testing::Values(kData + "/golden/k3-odd", kData + "/golden/k3-realdims",
                                         kData + "/golden/k3-tiny", kData + "/golden/k3-unit",
                                         MEGALITH_SOURCE_DIR "/models/k3-nano"));

TEST(Checkpoint, EmbeddingRowsEqualTheGoldenTrace) {
  const auto checkpoint = Checkpoint::Open(kData + "/golden/k3-unit");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const std::string trace = kData + "/golden/k3-unit/golden/trace/";
  const auto index_text = ReadTextFile(trace + "index.json", 1 << 20);
  ASSERT_TRUE(index_text);
  const json tokens = json::parse(*index_text)["tokens"];
  const auto embed = ReadNpy(trace + "embed.npy");
  ASSERT_TRUE(embed) << embed.error().message;
  const auto view = checkpoint->Find("embed_tokens.weight");
  ASSERT_TRUE(view) << view.error().message;
  std::vector<Bf16> table(view->num_bytes / sizeof(Bf16));
  ASSERT_TRUE(checkpoint->ReadTensor(*view, std::as_writable_bytes(std::span(table))));
  const auto hidden = static_cast<std::size_t>(checkpoint->model().hidden_size);
  ASSERT_EQ(embed->As<float>().size(), tokens.size() * hidden);
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto token = tokens[row].get<std::size_t>();
    for (std::size_t c = 0; c < hidden; ++c) {
      ASSERT_EQ(ToFloat(table[token * hidden + c]), embed->As<float>()[row * hidden + c]);
    }
  }
}

TEST(Checkpoint, TruncatedShardIsRefused) {
  const std::string shard = "model-00001-of-000001.safetensors";
  for (const std::uint64_t cut : {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{3205408}}) {
    const tools::TempDir temp;
    temp.CopyFrom(kData + "/golden/k3-unit");
    ASSERT_TRUE(Checkpoint::Open(temp.path()));
    temp.Resize(shard, temp.SizeOf(shard) - cut);
    const auto checkpoint = Checkpoint::Open(temp.path());
    ASSERT_FALSE(checkpoint) << cut;
    EXPECT_NE(checkpoint.error().message.find(shard), std::string::npos);
    EXPECT_NE(checkpoint.error().message.find(fmt::format("{} bytes are missing", cut)),
              std::string::npos)
        << checkpoint.error().message;
  }
}

/// A header-only checkpoint of the k3-tiny config whose tensors a test may change before it is
/// written.
class FakeCheckpoint : public testing::Test {
 protected:
  FakeCheckpoint() {
    config_ = json::parse(*ReadTextFile(kData + "/golden/k3-tiny/config.json", 1 << 20));
    List({});
  }
  void List(const FakeLayout& layout) {
    const auto config = model::ParseConfig(config_.dump());
    ASSERT_TRUE(config) << config.error().message;
    tensors_ = tools::ListFakeTensors(config->model, layout);
  }
  FakeTensor& Tensor(std::string_view ending) {
    for (FakeTensor& tensor : tensors_) {
      if (tensor.name.ends_with(ending)) return tensor;
    }
    ADD_FAILURE() << "no tensor " << ending;
    return tensors_.front();
  }
  void Erase(std::string_view ending) {
    const auto erased = std::erase_if(
        tensors_, [&](const FakeTensor& tensor) { return tensor.name.ends_with(ending); });
    EXPECT_GT(erased, 0u) << ending;
  }
  Result<Checkpoint> Open() {
    const Status written = tools::WriteFakeCheckpoint(temp_.path(), config_.dump(), tensors_);
    if (!written) return tl::unexpected<Error>(written.error());
    return Checkpoint::Open(temp_.path());
  }
  void ExpectOpens() {
    const auto checkpoint = Open();
    EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  }
  void ExpectRefused(const std::vector<std::string>& texts) {
    const auto checkpoint = Open();
    ASSERT_FALSE(checkpoint);
    EXPECT_EQ(checkpoint.error().code, ErrorCode::kBadTensor);
    for (const std::string& text : texts) {
      EXPECT_NE(checkpoint.error().message.find(text), std::string::npos)
          << text << " is not in: " << checkpoint.error().message;
    }
  }

  json config_;
  std::vector<FakeTensor> tensors_;
  tools::TempDir temp_;
};

TEST_F(FakeCheckpoint, DefaultLayoutOpens) {
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->census().num_expected, tensors_.size());
  EXPECT_EQ(checkpoint->census().warnings, std::vector<std::string>());
  EXPECT_EQ(checkpoint->shards().num_shards(), 14u);
}

TEST_F(FakeCheckpoint, NamesWithoutLanguageModelOpen) {
  List({.nested_names = false});
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->prefix(), "model.");
  const auto head = checkpoint->Find("lm_head.weight");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->name, "lm_head.weight");
  EXPECT_TRUE(checkpoint->FindMatrix("layers.12.block_sparse_moe.experts.15.w3"));
}

TEST_F(FakeCheckpoint, MixedPrefixesAreRefused) {
  Tensor("layers.3.input_layernorm.weight").name = "model.layers.3.input_layernorm.weight";
  ExpectRefused({"mixed", "model.layers.3.input_layernorm.weight", "model-00004-of-000014"});
}

TEST_F(FakeCheckpoint, HeadOfTheOtherFormIsRefused) {
  Tensor("lm_head.weight").name = "lm_head.weight";
  ExpectRefused({"mixed"});
}

TEST_F(FakeCheckpoint, NoKnownPrefixIsRefused) {
  for (FakeTensor& tensor : tensors_) tensor.name = "transformer." + tensor.name;
  ExpectRefused({"language_model.model.", "model."});
}

TEST_F(FakeCheckpoint, EveryAbsentTensorIsRefusedAndNamed) {
  // One of each rule, not each of the thousand.
  for (const char* name :
       {"embed_tokens.weight", "model.norm.weight", "output_attn_res_proj.weight", "lm_head.weight",
        "layers.0.mlp.up_proj.weight", "layers.0.self_attn.A_log", "layers.1.self_attn.dt_bias",
        "layers.1.self_attn.o_norm.weight", "layers.2.self_attn.k_conv1d.weight",
        "layers.3.self_attn.kv_a_layernorm.weight", "layers.3.self_attn.kv_b_proj.weight",
        "layers.12.self_attn.g_proj.weight", "layers.5.mlp_res_norm.weight",
        "layers.5.block_sparse_moe.gate.weight",
        "layers.5.block_sparse_moe.routed_expert_norm.weight",
        "layers.5.block_sparse_moe.gate.e_score_correction_bias",
        "layers.5.block_sparse_moe.shared_experts.down_proj.weight"}) {
    List({});
    Erase(name);
    SCOPED_TRACE(name);
    ExpectRefused({"1 tensors are absent", name});
  }
  List({});
  Erase("layers.7.block_sparse_moe.experts.3.w2.weight_packed");
  ExpectRefused({"experts.3.w2.weight_packed"});
  List({});
  Erase("layers.7.block_sparse_moe.experts.3.w2.weight_scale");
  ExpectRefused({"experts.3.w2.weight_scale"});
  Erase("layers.7.block_sparse_moe.experts.3.w2.weight_packed");
  ExpectRefused({"experts.3.w2.weight"});
}

TEST_F(FakeCheckpoint, ManyAbsentTensorsAreCountedAndSomeListed) {
  std::erase_if(tensors_, [](const FakeTensor& tensor) {
    return tensor.name.find("experts.") != std::string::npos;
  });
  const auto checkpoint = Open();
  ASSERT_FALSE(checkpoint);
  EXPECT_NE(
      checkpoint.error().message.find(fmt::format("{} tensors are absent", 12 * (3 * 16 + 3))),
      std::string::npos)
      << checkpoint.error().message;
  EXPECT_LT(checkpoint.error().message.size(), 1500u);
}

TEST_F(FakeCheckpoint, WrongShapeIsRefusedWithItsShard) {
  Tensor("layers.4.self_attn.q_proj.weight").shape = {128, 127};
  Tensor("layers.6.block_sparse_moe.experts.1.w1.weight_scale").shape = {64, 1};
  ExpectRefused({"2 tensors are wrong", "layers.4.self_attn.q_proj.weight in model-00005-of-000014",
                 "BF16 [128, 128] expected, BF16 [128, 127] found",
                 "U8 [64, 2] expected, U8 [64, 1] found"});
}

TEST_F(FakeCheckpoint, WrongDtypeIsRefused) {
  Tensor("layers.4.self_attn.o_norm.weight").dtype = DType::kBf16;
  ExpectRefused({"o_norm.weight", "F32 [32] expected, BF16 [32] found"});
  List({});
  Tensor("layers.4.input_layernorm.weight").dtype = DType::kF32;
  ExpectRefused({"BF16 [128] expected, F32 [128] found"});
  List({});
  Tensor("layers.4.self_attn.q_proj.weight").dtype = DType::kF16;
  ExpectRefused({"F16"});
}

TEST_F(FakeCheckpoint, MatrixInBothFormsIsRefused) {
  tensors_.push_back({"language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight",
                      DType::kBf16,
                      {64, 64},
                      1});
  ExpectRefused({"experts.0.w1 is stored both"});
}

TEST_F(FakeCheckpoint, FormOfAMatrixIsDecidedByItsTensors) {
  config_["text_config"].erase("quantization_config");
  List({.mxfp4_experts = false});
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto matrix = checkpoint->FindMatrix("layers.1.block_sparse_moe.experts.0.w1");
  ASSERT_TRUE(matrix);
  EXPECT_EQ(matrix->format, MatrixFormat::kBf16);
  EXPECT_EQ(checkpoint->census().num_mxfp4_matrices, 0u);

  // A dense matrix in MXFP4 although no config says so.
  const std::string stem = "language_model.model.layers.0.mlp.down_proj.";
  Erase("layers.0.mlp.down_proj.weight");
  tensors_.push_back({stem + "weight_packed", DType::kU8, {128, 128}, 0});
  tensors_.push_back({stem + "weight_scale", DType::kU8, {128, 8}, 0});
  const auto mixed = Open();
  ASSERT_TRUE(mixed) << mixed.error().message;
  const auto down = mixed->FindMatrix("layers.0.mlp.down_proj");
  ASSERT_TRUE(down);
  EXPECT_EQ(down->format, MatrixFormat::kMxfp4);
  EXPECT_EQ(down->columns, 256);
}

TEST_F(FakeCheckpoint, Mxfp4ColumnsMustBeWholeGroups) {
  config_["text_config"]["intermediate_size"] = 200;
  List({});
  const std::string stem = "language_model.model.layers.0.mlp.down_proj.";
  Erase("layers.0.mlp.down_proj.weight");
  tensors_.push_back({stem + "weight_packed", DType::kU8, {128, 100}, 0});
  tensors_.push_back({stem + "weight_scale", DType::kU8, {128, 6}, 0});
  ExpectRefused({"200 columns"});
}

// One exporter saves the depthwise kernel as [channels, 1, width], another as [channels, width].
TEST_F(FakeCheckpoint, ConvolutionTapsMayHaveRankTwoOrThree) {
  List({.conv_rank_2 = true});
  ExpectOpens();
  Tensor("layers.0.self_attn.q_conv1d.weight").shape = {4, 128};
  ExpectRefused({"layers.0.self_attn.q_conv1d.weight", "[128, 4] expected, F32 [4, 128] found"});
  Tensor("layers.0.self_attn.q_conv1d.weight").shape = {128, 4, 1};
  ExpectRefused({"[128, 1, 4] expected, F32 [128, 4, 1] found"});
  Tensor("layers.0.self_attn.q_conv1d.weight").shape = {512};
  ExpectRefused({"F32 [512] found"});
}

TEST_F(FakeCheckpoint, DecayMayBeLongerThanTheHeadsButNotShorter) {
  for (const std::int64_t length : {4, 5, 32, 500}) {
    Tensor("layers.0.self_attn.A_log").shape = {length};
    ExpectOpens();
  }
  Tensor("layers.0.self_attn.A_log").shape = {3};
  ExpectRefused({"A_log", "[4] expected, F32 [3] found"});
  Tensor("layers.0.self_attn.A_log").shape = {1, 1, 4, 1};
  ExpectRefused({"A_log"});
}

// A config with one setting changed computes another model from the same tensors.
TEST_F(FakeCheckpoint, TensorsThatTheConfigDoesNotUseAreRefused) {
  struct Case {
    const char* key;
    json value;
    std::vector<std::string> texts;
  };
  const std::vector<Case> cases = {
      {"num_shared_experts", 0, {"shared_experts.gate_proj.weight", "num_shared_experts is 0"}},
      {"latent_moe_use_norm", false, {"routed_expert_norm.weight", "latent_moe_use_norm is false"}},
      {"mla_use_output_gate", false, {"self_attn.g_proj.weight", "mla_use_output_gate is false"}},
      {"attn_res_block_size",
       nullptr,
       {"layers.0.self_attention_res_norm.weight", "54 tensors", "attn_res_block_size is null"}},
      {"q_lora_rank", nullptr, {"absent", "q_a_proj.weight", "q_lora_rank is null"}},
      {"num_experts", 15, {"experts.15.w1.weight_packed", "num_experts is 15"}},
      {"first_k_dense_replace", 2, {"absent", "layer dense", "layers.1.block_sparse_moe"}},
      {"first_k_dense_replace", 0, {"absent", "layer a mixture of experts", "layers.0.mlp"}},
  };
  const json original = config_;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.key);
    config_ = original;
    ASSERT_TRUE(config_["text_config"].contains(c.key));
    config_["text_config"][c.key] = c.value;
    std::vector<std::string> texts = c.texts;
    texts.push_back("contradict config.json");
    ExpectRefused(texts);
  }
  config_ = original;
  config_["text_config"]["linear_attn_config"]["use_full_rank_gate"] = false;
  ExpectRefused({"absent", "layers.0.self_attn.g_proj.weight", "use_full_rank_gate is false"});
}

TEST_F(FakeCheckpoint, LayersAndExpertsPastTheEndAreRefused) {
  const std::vector<FakeTensor> original = tensors_;
  const std::string body = "language_model.model.";
  for (const auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
           {"layers.13.input_layernorm.weight", "num_hidden_layers is 13"},
           {"layers.99999999999999999999.self_attn.o_proj.weight", "num_hidden_layers is 13"},
           {"layers.1.block_sparse_moe.experts.16.w2.weight_scale", "num_experts is 16"},
           {"layers.0.self_attn.q_a_layernorm.weight", "makes the layer KDA"},
           {"layers.3.self_attn.q_conv1d.weight", "makes the layer MLA"},
           {"layers.3.self_attn.A_log", "makes the layer MLA"},
           {"layers.0.self_attn.g_a_proj.weight", "use_full_rank_gate is true"}}) {
    tensors_ = original;
    tensors_.push_back({body + name, DType::kBf16, {4}, 2});
    ExpectRefused({"1 tensors contradict", body + name, "model-00003-of-000014", reason});
  }
}

TEST_F(FakeCheckpoint, KnownForeignPrefixesAreSkippedAndOtherTensorsListed) {
  for (int i = 0; i < 20; ++i) {
    tensors_.push_back({fmt::format("vision_tower.encoder.{}.weight", i), DType::kF16, {3, 5}, 2});
  }
  tensors_.push_back(
      {"language_model.model.layers.2.self_attn.rotary_emb.inv_freq", DType::kF32, {8}, 2});
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->census().num_skipped, 20u);
  EXPECT_EQ(checkpoint->census().skipped_bytes, 20u * 30u);
  EXPECT_EQ(checkpoint->census().num_unknown, 1u);
  ASSERT_EQ(checkpoint->census().warnings.size(), 1u);
  EXPECT_NE(checkpoint->census().warnings[0].find("rotary_emb.inv_freq"), std::string::npos);
}

TEST_F(FakeCheckpoint, ListOfUnknownTensorsIsCapped) {
  for (int i = 0; i < 1000; ++i) {
    tensors_.push_back({fmt::format("language_model.other.{}", i), DType::kU8, {1}, 0});
  }
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->census().num_unknown, 1000u);
  EXPECT_LT(checkpoint->census().warnings.size(), 20u);
}

// A loader once reported a tie but left the output projection dead.
TEST_F(FakeCheckpoint, TiedHeadIsTheEmbedding) {
  config_["tie_word_embeddings"] = true;
  config_["text_config"]["tie_word_embeddings"] = true;
  List({});
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto head = checkpoint->FindMatrix("lm_head");
  const auto embedding = checkpoint->Find("embed_tokens.weight");
  ASSERT_TRUE(head) << head.error().message;
  ASSERT_TRUE(embedding);
  EXPECT_EQ(head->weight.name, embedding->name);
  EXPECT_EQ(head->weight.file_offset, embedding->file_offset);
  EXPECT_EQ(head->rows, 512);

  // A stored head beside the flag: the embedding still is the head, and that is said.
  tensors_.push_back({"language_model.lm_head.weight", DType::kBf16, {512, 128}, 13});
  const auto both = Open();
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_EQ(both->FindMatrix("lm_head")->weight.name, embedding->name);
  EXPECT_EQ(both->census().num_unknown, 0u);
  ASSERT_EQ(both->census().warnings.size(), 1u);
  EXPECT_NE(both->census().warnings[0].find("tie_word_embeddings"), std::string::npos);
  tensors_.back().shape = {512, 127};
  ExpectRefused({"lm_head.weight"});
}

TEST_F(FakeCheckpoint, TensorThatTheIndexDoesNotListIsAbsent) {
  ASSERT_TRUE(Open());
  std::string index = temp_.Read("model.safetensors.index.json");
  const std::string entry =
      "\"language_model.model.norm.weight\":\"model-00014-of-000014.safetensors\",\n";
  const std::size_t at = index.find(entry);
  ASSERT_NE(at, std::string::npos);
  index.erase(at, entry.size());
  temp_.Write("model.safetensors.index.json", index);
  const auto checkpoint = Checkpoint::Open(temp_.path());
  ASSERT_FALSE(checkpoint);
  EXPECT_NE(checkpoint.error().message.find("language_model.model.norm.weight"), std::string::npos);
  EXPECT_NE(checkpoint.error().message.find("index does not list"), std::string::npos)
      << checkpoint.error().message;
  EXPECT_NE(checkpoint.error().message.find("1 tensors are absent"), std::string::npos);
}

TEST_F(FakeCheckpoint, LayerListsShiftedByOneAreCaughtByTheTensors) {
  // The lists still partition 1..13, but name other layers than those the tensors were made for.
  List({});
  json& lists = config_["text_config"]["linear_attn_config"];
  lists["full_attn_layers"] = {3, 7, 11, 12};
  lists["kda_layers"] = {1, 2, 4, 5, 6, 8, 9, 10, 13};
  ExpectRefused({"absent"});
}

TEST_F(FakeCheckpoint, UnknownNameIsAnErrorThatNamesIt) {
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint);
  for (const char* name : {"layers.13.input_layernorm.weight", "", "lm_head", "norm"}) {
    const auto view = checkpoint->Find(name);
    ASSERT_FALSE(view) << name;
    EXPECT_EQ(view.error().code, ErrorCode::kBadTensor);
    EXPECT_NE(view.error().message.find(name), std::string::npos);
  }
  EXPECT_FALSE(checkpoint->FindMatrix("layers.0.self_attn.A_log"));
  EXPECT_FALSE(checkpoint->FindMatrix("norm"));
  EXPECT_TRUE(checkpoint->FindMatrix("embed_tokens"));
}

TEST(FindBadMxfp4Scale, ZeroAndNanAreFoundWhereverTheyStand) {
  for (std::size_t size = 0; size < 40; ++size) {
    std::vector<std::byte> scales(size, std::byte{127});
    EXPECT_EQ(FindBadMxfp4Scale(scales), std::nullopt);
    for (std::size_t at = 0; at < size; ++at) {
      for (const int value : {0, 255}) {
        scales[at] = static_cast<std::byte>(value);
        EXPECT_EQ(FindBadMxfp4Scale(scales), at) << size << " " << value;
      }
      scales[at] = std::byte{127};
    }
  }
}

TEST(FindBadMxfp4Scale, EveryOtherByteIsAcceptedNextToEveryOther) {
  std::mt19937 random(7);
  std::vector<std::byte> scales(4096);
  for (int round = 0; round < 50; ++round) {
    for (std::byte& scale : scales) scale = static_cast<std::byte>(1 + random() % 254);
    EXPECT_EQ(FindBadMxfp4Scale(scales), std::nullopt);
  }
}

}  // namespace
}  // namespace megalith::weights
