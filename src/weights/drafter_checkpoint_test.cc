// Checkpoints with a drafter beside the model.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/file.h"
#include "model/drafter_tensors.h"
#include "model/dspark.h"
#include "tools/fake_checkpoint.h"
#include "tools/temp_dir.h"
#include "weights/checkpoint.h"
#include "weights/packing.h"

namespace megalith::weights {
namespace {

using nlohmann::json;
using tools::FakeTensor;

const std::string kData = MEGALITH_TEST_DATA;
const std::string kTiny = kData + "/golden/k3-tiny";
const std::string kTinyDrafter = kData + "/golden/k3-tiny-dspark";
const std::string kNano = MEGALITH_SOURCE_DIR "/models/k3-nano";

class DrafterCheckpoint : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(DrafterCheckpoint, OpensWithEveryTensorOfBothAndNothingUnknown) {
  const auto& [directory, drafter_directory] = GetParam();
  const auto alone = Checkpoint::Open(directory);
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_EQ(alone->drafter(), nullptr);
  EXPECT_FALSE(alone->Find("draft.fc.weight"));
  const auto checkpoint = Checkpoint::Open(directory, drafter_directory);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->drafter_directory(), drafter_directory);
  EXPECT_EQ(checkpoint->census().warnings, std::vector<std::string>());
  EXPECT_EQ(checkpoint->census().num_expected, alone->census().num_expected);
  EXPECT_EQ(checkpoint->census().num_skipped, alone->census().num_skipped);
  EXPECT_EQ(checkpoint->drafter_census().num_unknown, 0u);
  EXPECT_EQ(checkpoint->drafter_census().num_expected,
            checkpoint->shards().num_tensors() - alone->shards().num_tensors());
  ASSERT_NE(checkpoint->drafter(), nullptr);
  model::ForEachTensor(checkpoint->drafter_rules(), [&](const model::TensorRule& rule, std::int64_t,
                                                        std::int64_t, std::string_view name) {
    const std::string full = "draft." + std::string(name);
    if (rule.kind != model::TensorKind::kMatrix) {
      EXPECT_TRUE(checkpoint->Find(full)) << full;
      return;
    }
    const auto matrix = checkpoint->FindMatrix(full);
    ASSERT_TRUE(matrix) << full;
    EXPECT_EQ(matrix->rows, rule.shape[0]);
    EXPECT_EQ(matrix->columns, rule.shape[1]);
  });
  // The model's own names still lead to the model's tensors.
  EXPECT_EQ(checkpoint->Find("norm.weight")->name, "language_model.model.norm.weight");
  EXPECT_EQ(checkpoint->Find("draft.norm.weight")->name, "draft.norm.weight");
  EXPECT_EQ(checkpoint->Find("embed_tokens.weight")->file_offset,
            alone->Find("embed_tokens.weight")->file_offset);
}

INSTANTIATE_TEST_SUITE_P(All, DrafterCheckpoint,
                         testing::Values(std::pair(kTiny, kTinyDrafter),
                                         std::pair(kNano, kNano + "/dspark")));

TEST(CheckpointWithDrafter, TensorsOfTheDrafterAreReadFromItsFile) {
  const auto checkpoint = Checkpoint::Open(kTiny, kTinyDrafter);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto direct = ShardSet::Open(kTinyDrafter);
  ASSERT_TRUE(direct);
  for (const std::string name : {"fc.weight", "layers.2.mlp.down_proj.weight"}) {
    const auto id = direct->Find(name);
    ASSERT_TRUE(id) << name;
    const auto want = direct->Map(direct->At(*id));
    const auto view = checkpoint->Find("draft." + name);
    ASSERT_TRUE(view) << name;
    const auto have = checkpoint->MapTensor(*view);
    ASSERT_TRUE(want && have);
    EXPECT_TRUE(std::equal(want->begin(), want->end(), have->begin(), have->end())) << name;
    std::vector<std::byte> copy(view->num_bytes);
    ASSERT_TRUE(checkpoint->ReadTensor(*view, copy));
    EXPECT_TRUE(std::equal(copy.begin(), copy.end(), want->begin(), want->end())) << name;
  }
  checkpoint->shards().ReleasePages();
}

TEST(CheckpointWithDrafter, MatricesOfTheDrafterArePackedByName) {
  const auto checkpoint = Checkpoint::Open(kTiny, kTinyDrafter);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  PanelJob job;
  job.tensor = "draft.layers.1.self_attn.k_proj";
  job.stored_rows = 64;
  job.stored_columns = 128;
  job.num_outputs = 64;
  job.num_inputs = 128;
  std::vector<std::byte> panels(static_cast<std::size_t>(PackedBytes(job)));
  const Status packed = PackPanels(*checkpoint, job, panels);
  ASSERT_TRUE(packed) << packed.error().message;
  const auto matrix = checkpoint->FindMatrix(job.tensor);
  ASSERT_TRUE(matrix);
  std::vector<Bf16> stored(64 * 128);
  ASSERT_TRUE(checkpoint->ReadTensor(matrix->weight, std::as_writable_bytes(std::span(stored))));
  std::vector<std::byte> want(panels.size());
  kernels::PackPanelBf16(stored.data() + 16 * 128, 128, 1, 16, 128, want.data());
  const auto panel_bytes = panels.size() / 4;
  EXPECT_TRUE(std::equal(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(panel_bytes),
                         panels.begin() + static_cast<std::ptrdiff_t>(panel_bytes)));
}

TEST(CheckpointWithDrafter, DraftersOfOtherModelsAreRefusedWithTheirDirectory) {
  const auto checkpoint = Checkpoint::Open(kTiny, kNano + "/dspark");
  ASSERT_FALSE(checkpoint);
  EXPECT_EQ(checkpoint.error().code, ErrorCode::kBadConfig);
  EXPECT_NE(checkpoint.error().message.find(kNano + "/dspark/config.json"), std::string::npos);
  const auto absent = Checkpoint::Open(kTiny, "/nonexistent");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_NE(absent.error().message.find("/nonexistent"), std::string::npos);
  // A model is no drafter.
  const auto model = Checkpoint::Open(kTiny, kTiny);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
}

/// k3-tiny with a header-only drafter whose config and tensors a test may change before it is
/// written.
class FakeDrafter : public testing::Test {
 protected:
  FakeDrafter() {
    config_ = json::parse(*ReadTextFile(kTinyDrafter + "/config.json", 1 << 20));
    List();
  }
  void List() {
    static const auto target = Checkpoint::Open(kTiny);
    const auto config = model::ParseDrafterConfig(config_.dump(), target->model());
    ASSERT_TRUE(config) << config.error().message;
    tensors_.clear();
    model::ForEachTensor(
        model::MakeDrafterTensorRules(config->drafter),
        [&](const model::TensorRule& rule, std::int64_t, std::int64_t, std::string_view name) {
          std::string full(name);
          if (rule.kind == model::TensorKind::kMatrix) full += ".weight";
          tensors_.push_back({std::move(full), rule.dtype, rule.shape, 0});
        });
  }
  FakeTensor& Tensor(std::string_view name) {
    for (FakeTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << "no tensor " << name;
    return tensors_.front();
  }
  void Erase(std::string_view name) {
    const auto erased =
        std::erase_if(tensors_, [&](const FakeTensor& tensor) { return tensor.name == name; });
    EXPECT_EQ(erased, 1u) << name;
  }
  Status Write() { return tools::WriteFakeCheckpoint(temp_.path(), config_.dump(), tensors_); }
  Result<Checkpoint> Open() {
    if (const Status written = Write(); !written) return tl::unexpected<Error>(written.error());
    return Checkpoint::Open(kTiny, temp_.path());
  }
  void ExpectRefused(const std::vector<std::string>& texts) {
    const auto checkpoint = Open();
    ASSERT_FALSE(checkpoint);
    EXPECT_EQ(checkpoint.error().code, ErrorCode::kBadTensor);
    std::vector<std::string> all = texts;
    all.push_back(temp_.path());
    for (const std::string& text : all) {
      EXPECT_NE(checkpoint.error().message.find(text), std::string::npos)
          << text << " is not in: " << checkpoint.error().message;
    }
    // The set's own prefix is nothing that a reader of the message could find in the file.
    EXPECT_EQ(checkpoint.error().message.find("draft."), std::string::npos)
        << checkpoint.error().message;
  }

  json config_;
  std::vector<FakeTensor> tensors_;
  tools::TempDir temp_;
};

TEST_F(FakeDrafter, OpensFromOneFileOrFromShards) {
  auto checkpoint = Open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->drafter_census().num_expected, tensors_.size());
  EXPECT_EQ(checkpoint->drafter_census().num_mxfp4_matrices, 0u);
  EXPECT_EQ(checkpoint->census().warnings, std::vector<std::string>());
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    tensors_[i].shard = static_cast<std::uint32_t>(i % 3);
  const auto sharded = Open();
  ASSERT_TRUE(sharded) << sharded.error().message;
  EXPECT_EQ(sharded->shards().num_shards(), checkpoint->shards().num_shards() + 2);

  for (FakeTensor& tensor : tensors_) tensor.shard = 0;
  ASSERT_TRUE(Write());
  std::filesystem::rename(temp_.File("model-00001-of-000001.safetensors"),
                          temp_.File("model.safetensors"));
  temp_.Remove("model.safetensors.index.json");
  const auto single = Checkpoint::Open(kTiny, temp_.path());
  ASSERT_TRUE(single) << single.error().message;
  EXPECT_EQ(single->drafter_census().num_expected, tensors_.size());
  temp_.Remove("model.safetensors");
  const auto none = Checkpoint::Open(kTiny, temp_.path());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_NE(none.error().message.find(temp_.path()), std::string::npos);
}

TEST_F(FakeDrafter, EveryAbsentTensorIsRefusedAndNamed) {
  const std::vector<FakeTensor> original = tensors_;
  for (const FakeTensor& tensor : original) {
    tensors_ = original;
    Erase(tensor.name);
    SCOPED_TRACE(tensor.name);
    ExpectRefused({"1 tensors are absent: " + tensor.name});
  }
}

TEST_F(FakeDrafter, WrongShapeOrDtypeIsRefused) {
  Tensor("fc.weight").shape = {128, 512};  // four of the five vectors
  Tensor("layers.1.self_attn.k_proj.weight").shape = {192, 128};
  ExpectRefused({"2 tensors are wrong", "fc.weight in model-00001-of-000001.safetensors",
                 "BF16 [128, 640] expected, BF16 [128, 512] found",
                 "BF16 [64, 128] expected, BF16 [192, 128] found"});
  List();
  Tensor("norm.weight").dtype = DType::kF32;
  Tensor("confidence_head.proj.weight").shape = {144};
  ExpectRefused({"BF16 [128] expected, F32 [128] found", "BF16 [1, 144] expected, BF16 [144]"});
}

TEST_F(FakeDrafter, QuantizedMatricesAreRefused) {
  Erase("layers.0.mlp.up_proj.weight");
  tensors_.push_back({"layers.0.mlp.up_proj.weight_packed", DType::kU8, {192, 64}, 0});
  tensors_.push_back({"layers.0.mlp.up_proj.weight_scale", DType::kU8, {192, 4}, 0});
  ExpectRefused({"layers.0.mlp.up_proj.weight_packed", "must be BF16"});
}

TEST_F(FakeDrafter, TensorsThatTheConfigDoesNotUseAreRefused) {
  const json original = config_;
  struct Case {
    const char* key;
    json value;
    std::vector<std::string> texts;
  };
  for (const Case& c : std::vector<Case>{
           {"enable_confidence_head",
            false,
            {"confidence_head.proj.bias", "enable_confidence_head is false"}},
           {"markov_rank", 0, {"markov_head.markov_w2.weight", "markov_rank is 0"}},
       }) {
    SCOPED_TRACE(c.key);
    config_ = original;
    config_[c.key] = c.value;
    config_["confidence_head_with_markov"] = false;
    List();
    const std::vector<FakeTensor> needed = tensors_;
    config_ = original;
    List();
    config_[c.key] = c.value;
    config_["confidence_head_with_markov"] = false;
    Tensor("confidence_head.proj.weight").shape = {1, 128};
    EXPECT_LT(needed.size(), tensors_.size());
    std::vector<std::string> texts = c.texts;
    texts.push_back("2 tensors contradict config.json");
    ExpectRefused(texts);
  }
  config_ = original;
  for (const auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
           {"layers.3.input_layernorm.weight", "num_hidden_layers is 3"},
           {"layers.0.self_attn.q_proj.bias", "attention_bias is false"},
           {"markov_head.gate_proj.weight", "markov_head_type is vanilla"},
           {"markov_head.joint_proj.bias", "markov_head_type is vanilla"},
           {"d2t", "the vocabulary is the target's"}}) {
    SCOPED_TRACE(name);
    List();
    tensors_.push_back({name, DType::kBf16, {4}, 0});
    ExpectRefused({"1 tensors contradict config.json", name, reason});
  }
}

TEST_F(FakeDrafter, MarkovHeadsNeedTheirOwnMatricesAndNoOthers) {
  struct Case {
    const char* type;
    std::string matrix, shape, other;
  };
  for (const Case& c :
       {Case{"gated", "markov_head.gate_proj", "BF16 [16, 144] expected", "markov_head.joint_proj"},
        Case{"rnn", "markov_head.joint_proj", "BF16 [48, 160] expected",
             "markov_head.gate_proj"}}) {
    SCOPED_TRACE(c.type);
    config_["markov_head_type"] = c.type;
    List();
    const auto checkpoint = Open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->drafter_census().num_expected, tensors_.size());
    for (const char* ending : {".weight", ".bias"}) {
      List();
      Erase(c.matrix + ending);
      ExpectRefused({"1 tensors are absent: " + c.matrix + ending});
    }
    List();
    std::swap(Tensor(c.matrix + ".weight").shape[0], Tensor(c.matrix + ".weight").shape[1]);
    ExpectRefused({c.matrix + ".weight", c.shape});
    List();
    Tensor(c.matrix + ".bias").shape = {17};
    ExpectRefused({c.matrix + ".bias", "[17] found"});
    List();
    tensors_.push_back({c.other + ".weight", DType::kBf16, {4}, 0});
    ExpectRefused({c.other + ".weight", std::string("markov_head_type is ") + c.type});
  }
}

TEST_F(FakeDrafter, UnknownTensorsAndKeysAreListedWithTheDirectory) {
  tensors_.push_back({"layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {16}, 0});
  config_["new_head"] = true;
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->drafter_census().num_unknown, 1u);
  EXPECT_EQ(checkpoint->census().num_unknown, 0u);
  ASSERT_EQ(checkpoint->census().warnings.size(), 2u);
  EXPECT_EQ(checkpoint->census().warnings[0],
            temp_.path() + "/config.json: new_head: unknown key, ignored");
  EXPECT_EQ(checkpoint->census().warnings[1],
            temp_.path() +
                ": layers.0.self_attn.rotary_emb.inv_freq in "
                "model-00001-of-000001.safetensors: unknown tensor, ignored");
}

// A drafter that relies on the target's embedding or head once dereferenced null at load.
TEST_F(FakeDrafter, SharingRulesAreExplicit) {
  Erase("embed_tokens.weight");
  Erase("lm_head.weight");
  ExpectRefused({"2 tensors are absent", "embed_tokens.weight", "lm_head.weight"});

  config_["tie_word_embeddings"] = true;
  List();
  const auto tied = Open();
  ASSERT_TRUE(tied) << tied.error().message;
  EXPECT_EQ(tied->FindMatrix("draft.lm_head")->weight.name, "draft.embed_tokens.weight");
  EXPECT_EQ(tied->FindMatrix("lm_head")->weight.name, "language_model.lm_head.weight");
  tensors_.push_back({"lm_head.weight", DType::kBf16, {512, 128}, 0});
  const auto both = Open();
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_EQ(both->FindMatrix("draft.lm_head")->weight.name, "draft.embed_tokens.weight");
  ASSERT_EQ(both->census().warnings.size(), 1u);
  EXPECT_EQ(both->census().warnings[0].find(temp_.path() + ": lm_head.weight: not used"), 0u);
}

TEST_F(FakeDrafter, IndexOfTheDrafterIsCheckedAgainstItsShards) {
  ASSERT_TRUE(Write());
  std::string index = temp_.Read("model.safetensors.index.json");
  const std::string entry = "\"norm.weight\":\"model-00001-of-000001.safetensors\",\n";
  const std::size_t at = index.find(entry);
  ASSERT_NE(at, std::string::npos);
  std::string shorter = index;
  temp_.Write("model.safetensors.index.json", shorter.erase(at, entry.size()));
  const auto unlisted = Checkpoint::Open(kTiny, temp_.path());
  ASSERT_FALSE(unlisted);
  EXPECT_NE(unlisted.error().message.find("absent: norm.weight (norm.weight lies in "),
            std::string::npos)
      << unlisted.error().message;
  std::string longer = index;
  longer.insert(at, "\"language_model.model.norm.weight\":\"model-00001-of-000001.safetensors\",");
  temp_.Write("model.safetensors.index.json", longer);
  const auto foreign = Checkpoint::Open(kTiny, temp_.path());
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().message.find(
                "1 entries of model.safetensors.index.json are wrong: "
                "language_model.model.norm.weight is not in model-00001-of-000001.safetensors"),
            std::string::npos)
      << foreign.error().message;
  EXPECT_NE(foreign.error().message.find(temp_.path()), std::string::npos);
}

}  // namespace
}  // namespace megalith::weights
