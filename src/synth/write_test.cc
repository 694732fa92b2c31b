#include "synth/write.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>

#include "synth/config_edit.h"
#include "synth/presets.h"
#include "tools/temp_dir.h"
#include "weights/checkpoint.h"

namespace megalith::synth {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;

CheckpointPlan Plan(const ConfigEdits& edits = {}, const PlanOptions& options = {}) {
  const auto preset = PresetConfig("k3-tiny");
  const auto config = EditConfig(preset.value_or(""), "k3-tiny", edits);
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().message);
  auto plan = PlanCheckpoint(config.value_or(""), options);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan ? *std::move(plan) : CheckpointPlan();
}

Status Write(const CheckpointPlan& plan, const std::string& directory, int threads = 1,
             bool replace = false) {
  WriteOptions options;
  options.num_threads = threads;
  options.replace = replace;
  return WriteCheckpoint(plan, directory, options);
}

Files Contents(const std::string& directory) {
  Files files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

/// Runs `body` in a process of its own and returns its exit status.
template <typename Body>
int InChild(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(WriteCheckpoint, EveryTensorOfTheModelIsThereAndNoOther) {
  const tools::TempDir temp;
  const CheckpointPlan plan = Plan();
  ASSERT_TRUE(Write(plan, temp.File("model")).has_value());
  const auto checkpoint = weights::Checkpoint::Open(temp.File("model"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->census().num_expected, plan.num_tensors);
  EXPECT_EQ(checkpoint->census().num_unknown, 0U);
  EXPECT_EQ(checkpoint->census().num_skipped, 0U);
  EXPECT_TRUE(checkpoint->census().warnings.empty());
  EXPECT_EQ(checkpoint->prefix(), "language_model.model.");
  const auto total = model::Total(checkpoint->census().parts);
  EXPECT_EQ(total.num_bytes, plan.tensor_bytes);
  EXPECT_EQ(total.num_parameters, plan.num_parameters);
  EXPECT_EQ(plan.shards.size(), 10U) << "nine layers and the rest";
}

TEST(WriteCheckpoint, EveryKindOfModelIsAccepted) {
  for (const char* assignment :
       {"attn_res_block_size=null", "q_lora_rank=null", "mla_use_output_gate=false",
        "num_shared_experts=null", "latent_moe_use_norm=false",
        "linear_attn_config.use_full_rank_gate=false", "tie_word_embeddings=true",
        "quantization_config=null", "linear_attn_config.gate_lower_bound=null"}) {
    const tools::TempDir temp;
    ConfigEdits edits;
    edits.assignments = {assignment};
    ASSERT_TRUE(Write(Plan(edits), temp.File("model")).has_value()) << assignment;
    const auto checkpoint = weights::Checkpoint::Open(temp.File("model"));
    EXPECT_TRUE(checkpoint.has_value())
        << assignment << ": " << (checkpoint ? "" : checkpoint.error().message);
  }
}

TEST(WriteCheckpoint, BytesDoNotDependOnThreads) {
  const tools::TempDir temp;
  ConfigEdits edits;
  edits.vocab_size = 9000;  // several chunks in a shard
  const CheckpointPlan plan = Plan(edits);
  for (const int threads : {1, 3}) {
    ASSERT_TRUE(Write(plan, temp.File(std::to_string(threads)), threads).has_value());
  }
  EXPECT_EQ(Contents(temp.File("1")), Contents(temp.File("3")));
}

TEST(WriteCheckpoint, SeedsGiveOtherWeightsInTheSameFiles) {
  const tools::TempDir temp;
  PlanOptions options;
  for (const std::uint64_t seed : {0U, 1U}) {
    options.seed = seed;
    ASSERT_TRUE(Write(Plan({}, options), temp.File(std::to_string(seed))).has_value());
  }
  const Files zero = Contents(temp.File("0"));
  const Files one = Contents(temp.File("1"));
  ASSERT_EQ(zero.size(), one.size());
  for (const auto& [name, content] : zero) {
    ASSERT_TRUE(one.contains(name));
    EXPECT_EQ(content.size(), one.at(name).size());
    EXPECT_EQ(content == one.at(name), !name.ends_with(".safetensors")) << name;
  }
}

TEST(WriteCheckpoint, ShardsAreCutAtTheWantedSize) {
  const tools::TempDir temp;
  PlanOptions options;
  options.shard_bytes = 300000;
  const CheckpointPlan plan = Plan({}, options);
  std::size_t single = 0;
  for (const PlannedShard& shard : plan.shards) {
    EXPECT_TRUE(shard.data_bytes <= options.shard_bytes || shard.tensors.size() == 1);
    single += shard.tensors.size() == 1 ? 1 : 0;
  }
  EXPECT_GT(plan.shards.size(), 12U);
  EXPECT_LT(single, plan.shards.size());
  ASSERT_TRUE(Write(plan, temp.File("cut"), 2).has_value());
  ASSERT_TRUE(Write(Plan(), temp.File("whole")).has_value());
  const auto cut = weights::Checkpoint::Open(temp.File("cut"));
  const auto whole = weights::Checkpoint::Open(temp.File("whole"));
  ASSERT_TRUE(cut && whole);
  // The weights are those of the names, wherever they lie.
  for (const char* name : {"embed_tokens.weight", "layers.0.self_attn.A_log",
                           "layers.8.block_sparse_moe.experts.15.w2.weight_scale"}) {
    std::vector<std::byte> a(cut->Find(name)->num_bytes);
    std::vector<std::byte> b(whole->Find(name)->num_bytes);
    ASSERT_TRUE(cut->ReadTensor(*cut->Find(name), a) && whole->ReadTensor(*whole->Find(name), b));
    EXPECT_EQ(a, b) << name;
  }
}

TEST(WriteCheckpoint, FolderInUseIsLeftAlone) {
  const tools::TempDir temp;
  temp.Write("notes.txt", "mine");
  const Status status = Write(Plan(), temp.path());
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kUsage);
  EXPECT_NE(status.error().message.find("--force"), std::string::npos);
  EXPECT_EQ(Contents(temp.path()).size(), 1U);
  const Status file = Write(Plan(), temp.File("notes.txt"));
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, ErrorCode::kUsage);
  const Status nowhere = Write(Plan(), temp.File("no/such/place"));
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_EQ(nowhere.error().code, ErrorCode::kIo);
  EXPECT_NE(nowhere.error().message.find("no/such/place"), std::string::npos);
}

TEST(WriteCheckpoint, ReplacingTakesTheOldCheckpointAwayAndNothingElse) {
  const tools::TempDir temp;
  PlanOptions many;
  many.shard_bytes = 100000;
  ASSERT_TRUE(Write(Plan({}, many), temp.path()).has_value());
  temp.Write("tiktoken.model", "mine");
  const CheckpointPlan plan = Plan();
  ASSERT_TRUE(Write(plan, temp.path(), 1, true).has_value());
  const Files files = Contents(temp.path());
  EXPECT_EQ(files.size(), plan.shards.size() + 3);
  EXPECT_EQ(files.at("tiktoken.model"), "mine");
  EXPECT_TRUE(weights::Checkpoint::Open(temp.path()).has_value());
}

TEST(WriteCheckpoint, StoppedRunLeavesNothing) {
  const tools::TempDir temp;
  CancelFlag cancel;
  WriteOptions options;
  options.cancel = &cancel;
  options.progress = [&cancel](const Progress& progress) {
    EXPECT_LE(progress.done, progress.total);
    if (progress.done > 0) cancel.Cancel();
  };
  const Status status = WriteCheckpoint(Plan(), temp.File("model"), options);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(fs::exists(temp.File("model")));
}

TEST(WriteCheckpoint, KilledRunIsNoCheckpointAndCanBeReplaced) {
  const tools::TempDir temp;
  const CheckpointPlan plan = Plan();
  // Ends the process without any clean-up, while weights are written and when all are.
  for (const char* stage : {"write weights", "flush to disk"}) {
    EXPECT_EQ(InChild([&] {
                WriteOptions options;
                options.replace = true;
                options.progress = [&](const Progress& progress) {
                  if (progress.stage == stage && progress.done > 0) ::_exit(7);
                };
                return WriteCheckpoint(plan, temp.path(), options) ? 0 : 1;
              }),
              7);
    EXPECT_FALSE(fs::is_empty(temp.path()));
    EXPECT_FALSE(weights::Checkpoint::Open(temp.path()).has_value()) << stage;
    EXPECT_FALSE(Write(plan, temp.path()).has_value());
  }
  ASSERT_TRUE(Write(plan, temp.path(), 1, true).has_value());
  EXPECT_TRUE(weights::Checkpoint::Open(temp.path()).has_value());
  EXPECT_EQ(Contents(temp.path()).size(), plan.shards.size() + 2);
}

TEST(WriteCheckpoint, TooLittleSpaceIsFoundBeforeWriting) {
  const tools::TempDir temp;
  ConfigEdits edits;
  edits.hidden_size = 1 << 20;
  edits.vocab_size = 1 << 24;
  edits.num_layers = 1;
  const Status status = Write(Plan(edits), temp.File("model"));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_NE(status.error().message.find("free there"), std::string::npos);
  EXPECT_NE(status.error().message.find(temp.File("model")), std::string::npos);
  EXPECT_FALSE(fs::exists(temp.File("model")));
}

TEST(WriteCheckpoint, FileThatCannotGrowIsAnErrorAndNothingStays) {
  const tools::TempDir temp;
  const CheckpointPlan plan = Plan();
  EXPECT_EQ(InChild([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{200000, 200000};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              const Status status = Write(plan, temp.File("model"));
              if (status) return 2;
              if (status.error().code != ErrorCode::kIo) return 3;
              return status.error().message.find("model-00001") == std::string::npos ? 4 : 0;
            }),
            0);
  EXPECT_FALSE(fs::exists(temp.File("model")));
}

}  // namespace
}  // namespace megalith::synth
