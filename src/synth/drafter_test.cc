#include "synth/drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/bf16.h"
#include "model/config.h"
#include "model/drafter_tensors.h"
#include "model/dspark.h"
#include "synth/plan.h"
#include "synth/presets.h"
#include "synth/write.h"
#include "tools/temp_dir.h"
#include "weights/checkpoint.h"

namespace megalith::synth {
namespace {

namespace fs = std::filesystem;

model::Model Target(const std::string& preset) {
  const auto config = model::ParseConfig(PresetConfig(preset).value_or(""));
  EXPECT_TRUE(config.has_value());
  return config ? config->model : model::Model();
}

model::Drafter Read(const std::string& config, const model::Model& target) {
  const auto drafter = model::ParseDrafterConfig(config, target);
  if (!drafter) {
    ADD_FAILURE() << drafter.error().message;
    return {};
  }
  EXPECT_TRUE(drafter->warnings.empty()) << drafter->warnings.front();
  return drafter->drafter;
}

model::Drafter DrafterOf(const std::string& preset,
                         const std::vector<std::string>& assignments = {}) {
  const model::Model target = Target(preset);
  const auto config = MakeDrafterConfig(target, assignments);
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().message);
  return Read(config.value_or("{}"), target);
}

CheckpointPlan Plan(const PlanOptions& options = {}) {
  return PlanCheckpoint(PresetConfig("k3-tiny").value_or(""), options).value_or(CheckpointPlan());
}

CheckpointPlan DrafterPlan(const PlanOptions& options = {},
                           const std::vector<std::string>& assignments = {}) {
  const model::Model target = Target("k3-tiny");
  auto plan = PlanDrafter(MakeDrafterConfig(target, assignments).value_or(""), target, options);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan ? *std::move(plan) : CheckpointPlan();
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Spec (DSpark) section 2.1 and the card of the published drafter.
TEST(MakeDrafterConfig, OfTheWholeModelIsThePublishedOne) {
  const model::Drafter d = DrafterOf("k3");
  EXPECT_EQ(d.hidden_size, 7168);
  EXPECT_EQ(d.num_attention_heads, 96);
  EXPECT_EQ(d.num_key_value_heads, 16);
  EXPECT_EQ(d.head_dim, 64);
  EXPECT_EQ(d.intermediate_size, 14336);
  EXPECT_EQ(d.aux_layers, (std::vector<std::int64_t>{24, 48, 72, 88, 92}));
  EXPECT_EQ(d.block_size, 8);
  EXPECT_EQ(d.mask_token_id, 163837);
  EXPECT_EQ(d.markov_rank, 256);
  EXPECT_TRUE(d.confidence_with_markov);
  EXPECT_TRUE(d.sample_from_anchor);
  EXPECT_EQ(d.rms_norm_eps, 1e-5f);
  EXPECT_EQ(d.rope_theta, 10000.0);
  ASSERT_EQ(d.layers.size(), 5U);
  EXPECT_EQ(d.layers[0].sliding_window, 2048);
  EXPECT_TRUE(d.layers[0].causal_in_block);
  const auto total = model::Total(model::CountTensors(model::MakeDrafterTensorRules(d), false));
  EXPECT_EQ(total.num_parameters, 4'744'900'481U);
}

TEST(MakeDrafterConfig, SmallerModelsGetSmallerDrafters) {
  const model::Drafter slice = DrafterOf("k3-slice");
  EXPECT_EQ(slice.layers.size(), 5U);
  EXPECT_EQ(slice.num_key_value_heads, 16);
  EXPECT_EQ(slice.aux_layers, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  const model::Drafter mini = DrafterOf("k3-mini");
  EXPECT_EQ(mini.layers.size(), 3U);
  EXPECT_EQ(mini.num_key_value_heads, 2);
  EXPECT_EQ(mini.aux_layers.size(), 5U);
  EXPECT_EQ(mini.markov_rank, 256);
  const model::Drafter tiny = DrafterOf("k3-tiny");
  EXPECT_EQ(tiny.layers.size(), 2U);
  EXPECT_EQ(tiny.num_key_value_heads, 2);
  EXPECT_EQ(tiny.markov_rank, 16);
  EXPECT_EQ(tiny.aux_layers, (std::vector<std::int64_t>{2, 4, 6, 7, 8}));
}

TEST(MakeDrafterConfig, EveryNumberOfTargetLayersAndHeadsGivesAValidDrafter) {
  model::Model target = Target("k3-tiny");
  const model::Layer layer = target.layers.front();
  for (std::size_t layers = 1; layers < 40; ++layers) {
    target.layers.assign(layers, layer);
    target.mla.num_attention_heads = static_cast<std::int64_t>(layers);
    const auto config = MakeDrafterConfig(target);
    ASSERT_TRUE(config.has_value()) << layers << ": " << config.error().message;
    const model::Drafter drafter = Read(*config, target);
    EXPECT_EQ(drafter.aux_layers.size(), std::min<std::size_t>(5, layers));
    EXPECT_EQ(drafter.aux_layers.back(), static_cast<std::int64_t>(layers) - 1);
  }
}

TEST(MakeDrafterConfig, KeysAreReplacedAtTheTopAndInTheLayers) {
  const model::Drafter d = DrafterOf(
      "k3-tiny", {"block_size=4", "num_hidden_layers=3", "sliding_window=32",
                  "rope_parameters.rope_theta=500", "transformer_layer_config.head_dim=16",
                  "aux_hidden_state_layer_ids=[0, 3]", "sample_from_anchor=false"});
  EXPECT_EQ(d.block_size, 4);
  EXPECT_EQ(d.MaxDrafts(), 3);
  ASSERT_EQ(d.layers.size(), 3U);
  EXPECT_EQ(d.layers[2].sliding_window, 32);
  EXPECT_EQ(d.rope_theta, 500.0);
  EXPECT_EQ(d.head_dim, 16);
  EXPECT_EQ(d.aux_layers, (std::vector<std::int64_t>{0, 3}));
  const model::Drafter full =
      DrafterOf("k3-tiny", {"layer_types=[\"full_attention\", \"sliding_attention\"]"});
  EXPECT_EQ(full.layers[0].sliding_window, 0);
  EXPECT_EQ(full.layers[1].sliding_window, 2048);
}

TEST(MakeDrafterConfig, AssignmentsThatCannotBeAreWrongUse) {
  for (const char* assignment :
       {"block_size", "=4", "block_size=", "block_size=0", "no_such_key=1", "nowhere.key=1",
        "hidden_size=64", "transformer_layer_config=3", "num_hidden_layers=\"two\"",
        "num_hidden_layers=-1", "num_hidden_layers=99999999999", "markov_head_type=\"lstm\"",
        "aux_hidden_state_layer_ids=[9]", "architectures=[\"Other\"]"}) {
    const std::vector<std::string> assignments = {assignment};
    const auto config = MakeDrafterConfig(Target("k3-tiny"), assignments);
    ASSERT_FALSE(config.has_value()) << assignment;
    EXPECT_EQ(config.error().code, ErrorCode::kUsage) << assignment;
    EXPECT_NE(config.error().message.find("--draft-set"), std::string::npos)
        << config.error().message;
  }
}

TEST(WriteDrafter, OpensBesideItsModelWithNothingUnknown) {
  const tools::TempDir temp;
  const CheckpointPlan plan = Plan();
  for (const char* assignment :
       {"block_size=8", "tie_word_embeddings=true", "enable_confidence_head=false",
        "confidence_head_with_markov=false", "markov_head_type=\"gated\"",
        "markov_head_type=\"rnn\""}) {
    const CheckpointPlan drafter = DrafterPlan({}, {assignment});
    WriteOptions options;
    options.replace = true;
    ASSERT_TRUE(WriteCheckpoint(plan, temp.path(), options, &drafter).has_value());
    const auto checkpoint = weights::Checkpoint::Open(temp.path(), temp.File("dspark"));
    ASSERT_TRUE(checkpoint.has_value()) << assignment << ": " << checkpoint.error().message;
    EXPECT_TRUE(checkpoint->census().warnings.empty());
    EXPECT_EQ(checkpoint->drafter_census().num_expected, drafter.num_tensors);
    const auto total = model::Total(checkpoint->drafter_census().parts);
    EXPECT_EQ(total.num_parameters, drafter.num_parameters);
    EXPECT_EQ(total.num_bytes, drafter.tensor_bytes);
    EXPECT_FALSE(fs::exists(temp.File("dspark/model.safetensors.index.json")));
    EXPECT_EQ(fs::file_size(temp.File("dspark/model.safetensors")), drafter.file_bytes);
  }
}

TEST(WriteDrafter, ShardsAreCutAtTheWantedSizeAndReplacedByOneFile) {
  const tools::TempDir temp;
  PlanOptions cut;
  cut.shard_bytes = 100000;
  const CheckpointPlan plan = Plan();
  const CheckpointPlan shards = DrafterPlan(cut);
  ASSERT_GT(shards.shards.size(), 2U);
  ASSERT_TRUE(WriteCheckpoint(plan, temp.File("model"), {}, &shards).has_value());
  const std::string folder = temp.File("model/dspark");
  EXPECT_TRUE(fs::exists(folder + "/model.safetensors.index.json"));
  const auto checkpoint = weights::Checkpoint::Open(temp.File("model"), folder);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;

  const CheckpointPlan one = DrafterPlan();
  EXPECT_FALSE(WriteCheckpoint(plan, temp.File("model"), {}, &one).has_value());
  WriteOptions replace;
  replace.replace = true;
  std::ofstream(folder + "/notes.txt") << "mine";
  ASSERT_TRUE(WriteCheckpoint(plan, temp.File("model"), replace, &one).has_value());
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) files += entry.exists() ? 1 : 0;
  EXPECT_EQ(files, 3U) << "config, one shard, notes";
  // A new model without one leaves no drafter of the old model behind.
  ASSERT_TRUE(WriteCheckpoint(plan, temp.File("model"), replace).has_value());
  EXPECT_FALSE(fs::exists(folder + "/config.json"));
  EXPECT_FALSE(fs::exists(folder + "/model.safetensors"));
  EXPECT_EQ(ReadAll(folder + "/notes.txt"), "mine");
  fs::remove(folder + "/notes.txt");
  ASSERT_TRUE(WriteCheckpoint(plan, temp.File("model"), replace, &one).has_value());
  ASSERT_TRUE(WriteCheckpoint(plan, temp.File("model"), replace).has_value());
  EXPECT_FALSE(fs::exists(folder));
}

TEST(WriteDrafter, BytesFollowTheSeedAndNotTheThreads) {
  const tools::TempDir temp;
  const auto bytes = [&](const char* name, std::uint64_t seed, int threads) {
    PlanOptions options;
    options.seed = seed;
    WriteOptions write;
    write.num_threads = threads;
    const CheckpointPlan drafter = DrafterPlan(options);
    EXPECT_TRUE(WriteCheckpoint(Plan(options), temp.File(name), write, &drafter).has_value());
    return ReadAll(temp.File(name) + "/dspark/model.safetensors");
  };
  const std::string first = bytes("a", 5, 1);
  EXPECT_EQ(bytes("b", 5, 3), first);
  const std::string other = bytes("c", 6, 1);
  EXPECT_EQ(other.size(), first.size());
  EXPECT_NE(other, first);
}

TEST(WriteDrafter, StoppedRunLeavesNothing) {
  const tools::TempDir temp;
  const CheckpointPlan plan = Plan();
  const CheckpointPlan drafter = DrafterPlan();
  CancelFlag cancel;
  WriteOptions options;
  options.cancel = &cancel;
  options.progress = [&cancel](const Progress& progress) {
    EXPECT_LE(progress.done, progress.total);
    if (progress.stage == "flush to disk") cancel.Cancel();
  };
  const Status status = WriteCheckpoint(plan, temp.File("model"), options, &drafter);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(fs::exists(temp.File("model")));
}

// Values keep their scale: a head that is a thousand times too loud would still be a valid file.
TEST(WriteDrafter, ValuesHaveTheScaleOfTheirUse) {
  const tools::TempDir temp;
  const CheckpointPlan plan = Plan();
  const CheckpointPlan drafter = DrafterPlan();
  ASSERT_TRUE(WriteCheckpoint(plan, temp.File("model"), {}, &drafter).has_value());
  const auto checkpoint = weights::Checkpoint::Open(temp.File("model"), temp.File("model/dspark"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const double per_hidden = 1.0 / std::sqrt(128.0);
  const std::map<std::string, std::pair<double, double>> expected = {
      // mean, deviation
      {"embed_tokens.weight", {0.0, 1.0}},
      {"fc.weight", {0.0, 1.0 / std::sqrt(640.0)}},
      {"lm_head.weight", {0.0, 2.5 * per_hidden}},
      {"markov_head.markov_w1.weight", {0.0, 1.0}},
      {"markov_head.markov_w2.weight", {0.0, 1.0 / std::sqrt(16.0)}},
      {"layers.1.self_attn.q_proj.weight", {0.0, per_hidden}},
      {"layers.1.self_attn.q_norm.weight", {2.0, 0.07}},
      {"layers.1.self_attn.k_norm.weight", {1.0, 0.07}},
      {"layers.0.mlp.up_proj.weight", {0.0, per_hidden}},
      {"norm.weight", {1.0, 0.07}},
  };
  for (const auto& [name, want] : expected) {
    const auto view = checkpoint->Find("draft." + name);
    ASSERT_TRUE(view.has_value()) << name;
    std::vector<Bf16> values(view->num_bytes / sizeof(Bf16));
    ASSERT_TRUE(checkpoint->ReadTensor(*view, std::as_writable_bytes(std::span(values))));
    double sum = 0.0;
    double squares = 0.0;
    for (const Bf16 value : values) {
      const auto v = static_cast<double>(ToFloat(value));
      sum += v;
      squares += v * v;
    }
    const auto count = static_cast<double>(values.size());
    const double mean = sum / count;
    const double tolerance = 5.0 * want.second / std::sqrt(count) + 0.004 * want.first;
    EXPECT_NEAR(mean, want.first, tolerance) << name;
    EXPECT_NEAR(std::sqrt(squares / count - mean * mean), want.second, tolerance) << name;
  }
}

}  // namespace
}  // namespace megalith::synth
