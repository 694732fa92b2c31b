// Engines on several ranks of this process: the same tokens as on one, and one clear end if a rank
// fails.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "engine/generate.h"
#include "engine/rank_follower.h"
#include "engine/rank_group.h"
#include "engine/rank_message.h"
#include "engine/scheduler.h"
#include "fabric/inproc.h"
#include "tools/temp_dir.h"

namespace megalith::engine {
namespace {

namespace fs = std::filesystem;

constexpr char kNano[] = MEGALITH_SOURCE_DIR "/models/k3-nano";
constexpr char kDrafter[] = MEGALITH_SOURCE_DIR "/models/k3-nano/dspark";
const std::vector<std::int32_t> kPrompt = {3840, 3077, 259, 2124, 483, 1979, 282};

EngineOptions Options(RankLeader* leader) {
  EngineOptions options;
  options.num_workers = 1;
  options.max_positions = 256;
  options.num_sequences = 3;
  options.rows_per_step = 32;
  options.logit_rows_per_step = 3 * 8 + 16;
  options.prefix_cache_bytes = 16 << 20;
  options.drafter = kDrafter;
  options.max_drafts = 7;
  options.leader = leader;
  return options;
}

std::unique_ptr<Engine> MustLoad(const EngineOptions& options) {
  auto engine = Engine::Load(kNano, options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    std::abort();
  }
  return std::move(*engine);
}

std::vector<std::int32_t> MustGenerate(Engine& engine, std::span<const std::int32_t> prompt,
                                       float temperature) {
  Sequence sequence(engine, 0);
  GenerateOptions options;
  options.max_tokens = 40;
  options.sampling = {.temperature = temperature, .seed = 7};
  options.drafting.max_drafts = 7;
  options.drafting.always = 7;
  const auto result = Generate(sequence, prompt, options, {});
  if (!result) {
    ADD_FAILURE() << result.error().message;
    return {};
  }
  return result->ids;
}

class Recorder : public GenerationListener {
 public:
  bool OnToken(const GeneratedToken& token) override {
    ids.push_back(token.token);
    if (on_token) on_token();
    return true;
  }
  void OnFinish(const Result<GenerationSummary>& summary) override { finished_.set_value(summary); }
  const Result<GenerationSummary>& Wait() const { return summary_.get(); }

  std::vector<std::int32_t> ids;
  std::function<void()> on_token;  // set before it is submitted

 private:
  std::promise<Result<GenerationSummary>> finished_;
  std::shared_future<Result<GenerationSummary>> summary_ = finished_.get_future();
};

GenerationRequest Ask(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling = {.temperature = 0.7f, .seed = 3};
  return request;
}

SchedulerOptions Scheduling() {
  SchedulerOptions options;
  options.max_drafts = 7;
  options.prefix_cache_bytes = 16 << 20;
  options.snapshot_spacing = 32;
  return options;
}

/// What many overlapping requests with common beginnings are answered, in their order.
std::vector<std::vector<std::int32_t>> Answers(Engine& engine) {
  const auto scheduler = Scheduler::Start(engine, Scheduling()).value();
  std::mt19937_64 random(5);
  std::vector<std::int32_t> prompt;
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 20; ++j) prompt.push_back(static_cast<std::int32_t>(random() % 3840));
    recorders.push_back(std::make_shared<Recorder>());
    const bool is_cancelled = i == 3;
    GenerationRequest request = Ask(prompt, is_cancelled ? 90 : 20);
    // Whether before or after it has begun.
    const auto id = scheduler->Submit(std::move(request), recorders.back()).value();
    if (is_cancelled) scheduler->Cancel(id);
    if (i % 3 == 2) static_cast<void>(recorders.back()->Wait());
  }
  std::vector<std::vector<std::int32_t>> answers;
  for (std::size_t i = 0; i < recorders.size(); ++i) {
    const auto& summary = recorders[i]->Wait();
    EXPECT_TRUE(summary) << summary.error().message;
    // How far a cancelled one came is a matter of time.
    if (i != 3) answers.push_back(recorders[i]->ids);
  }
  return answers;
}

/// The first failure that the scheduler reports by itself.
std::string AwaitFailure(const Scheduler& scheduler) {
  for (int i = 0; i < 12'000; ++i) {
    if (const auto failure = scheduler.failure()) return failure->message;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "none";
}

TEST(Ranks, GenerateTheTokensOfOneRank) {
  const auto alone = MustLoad(Options(nullptr));
  const auto greedy = MustGenerate(*alone, kPrompt, 0.0f);
  const auto sampled = MustGenerate(*alone, kPrompt, 1.0f);
  for (const std::uint32_t num_ranks : {2u, 4u}) {
    const auto group = RankGroup::Start(num_ranks).value();
    const auto engine = MustLoad(Options(&group->leader()));
    EXPECT_EQ(engine->num_ranks(), static_cast<std::int32_t>(num_ranks));
    EXPECT_EQ(MustGenerate(*engine, kPrompt, 0.0f), greedy);
    EXPECT_EQ(MustGenerate(*engine, kPrompt, 1.0f), sampled);
    EXPECT_TRUE(engine->JobStatus());
  }
}

TEST(Ranks, ServeManySequencesWithAPrefixCache) {
  const auto alone = MustLoad(Options(nullptr));
  const auto want = Answers(*alone);
  const auto group = RankGroup::Start(3).value();
  const auto engine = MustLoad(Options(&group->leader()));
  EXPECT_EQ(Answers(*engine), want);
  // Another scheduler on the same engine.
  EXPECT_EQ(Answers(*engine), want);
}

TEST(Ranks, HaveSeveralEnginesAndVariants) {
  const auto group = RankGroup::Start(2).value();
  auto first = MustLoad(Options(&group->leader()));
  const auto second = MustLoad(Options(&group->leader()));
  const auto want = MustGenerate(*first, kPrompt, 0.0f);
  VariantOptions options;
  options.row_buckets = {1, 8};
  options.max_positions = 64;
  options.isa = kernels::Isa::kPortable;
  auto variant = first->MakeVariant(options);
  ASSERT_TRUE(variant) << variant.error().message;
  const exec::Run run{0, 0, 7};
  const std::int32_t row = 6;
  const auto step = variant->executor->Step({{&run, 1}, kPrompt, {&row, 1}});
  ASSERT_TRUE(step) << step.error().message;
  const auto logits = step->Row(0);
  EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), want.front());
  EXPECT_EQ(MustGenerate(*second, kPrompt, 0.0f), want);
  variant->executor.reset();
  first.reset();
  EXPECT_EQ(MustGenerate(*second, kPrompt, 0.0f), want);
}

TEST(Ranks, ALoadThatFailsLeavesTheJobUsable) {
  const auto group = RankGroup::Start(2).value();
  EngineOptions options = Options(&group->leader());
  const auto nowhere = Engine::Load("/nowhere", options);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
  EXPECT_NE(nowhere.error().message.find("rank 0: "), std::string::npos);
  options.max_positions = 1'000'000;
  EXPECT_EQ(Engine::Load(kNano, options).error().code, ErrorCode::kOutOfRange);
  options.max_positions = 64;
  EXPECT_FALSE(MustGenerate(*MustLoad(options), kPrompt, 0.0f).empty());
}

TEST(Ranks, ACancelledLoadEndsTheJobAtOnce) {
  CancelFlag cancel;
  cancel.Cancel();
  const auto group = RankGroup::Start(2, &cancel).value();
  EngineOptions options = Options(&group->leader());
  options.cancel = &cancel;
  const auto engine = Engine::Load(kNano, options);
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message.find("stopped on request"), std::string::npos)
      << engine.error().message;
}

TEST(Ranks, OtherBuildsAreRefused) {
  auto fabrics = fabric::MakeInprocJob(2).value();
  Status followed;
  std::thread thread([&] { followed = FollowLeader(*fabrics[1], "0.1.0 bbbb"); });
  const auto leader = RankLeader::Start(*fabrics[0], "0.1.0 aaaa");
  thread.join();
  ASSERT_FALSE(leader);
  EXPECT_EQ(leader.error().message,
            "rank 1: build: '0.1.0 aaaa' expected as on rank 0, '0.1.0 bbbb' found");
  EXPECT_FALSE(followed);
}

/// Loads the folders as ranks 0 and 1, and returns the error of each.
std::vector<std::string> LoadErrors(const std::string& first, const std::string& second) {
  auto fabrics = fabric::MakeInprocJob(2).value();
  std::vector<std::string> messages(2);
  const auto load = [&](std::size_t rank, const std::string& directory) {
    const RankPlace place = FindRankPlace(*fabrics[rank], "same").value();
    EngineOptions options;
    options.num_workers = 1;
    options.max_positions = 64;
    const auto engine = Engine::LoadOnRank(directory, options, &place);
    if (!engine) messages[rank] = engine.error().message;
  };
  std::thread thread([&] { load(1, second); });
  load(0, first);
  thread.join();
  return messages;
}

TEST(Ranks, OtherFilesAreRefusedByName) {
  const tools::TempDir temp;
  const fs::path copy = fs::path(temp.path()) / "model";
  fs::copy(kNano, copy, fs::copy_options::recursive);
  for (const std::string& message : LoadErrors(kNano, copy.string())) EXPECT_EQ(message, "");
  // One byte of the weights, which changes neither size nor header. The beginning is sampled.
  const fs::path shard = copy / "model-00002-of-000002.safetensors";
  ASSERT_TRUE(fs::exists(shard));
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    std::uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    file.seekg(static_cast<std::streamoff>(sizeof header_bytes + header_bytes + 2));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(sizeof header_bytes + header_bytes + 2));
    file.put(static_cast<char>(byte ^ 1));
  }
  for (const std::string& message : LoadErrors(kNano, copy.string())) {
    EXPECT_EQ(message.find("rank 1: model-00002-of-000002.safetensors: '"), 0u) << message;
  }
  std::ofstream(copy / "config.json", std::ios::app) << "\n";
  for (const std::string& message : LoadErrors(kNano, copy.string())) {
    EXPECT_EQ(message.find("rank 1: config.json: '"), 0u) << message;
  }
  fs::remove(shard);
  for (const std::string& message : LoadErrors(kNano, copy.string())) {
    EXPECT_EQ(message.find("rank 1: "), 0u) << message;
    EXPECT_NE(message.find("model-00002"), std::string::npos) << message;
  }
}

TEST(Ranks, AFailureWhileIdleIsNoticed) {
  const auto group = RankGroup::Start(3).value();
  const auto engine = MustLoad(Options(&group->leader()));
  const auto scheduler = Scheduler::Start(*engine, Scheduling()).value();
  EXPECT_FALSE(scheduler->failure());
  group->fabric(2).Abort("its disk is on fire");
  EXPECT_EQ(AwaitFailure(*scheduler), "rank 2 gave up: its disk is on fire");
  const auto refused = scheduler->Submit(Ask(kPrompt, 5), std::make_shared<Recorder>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_EQ(refused.error().message, "rank 2 gave up: its disk is on fire");
}

TEST(Ranks, AFailureEndsRunningGenerations) {
  const auto group = RankGroup::Start(2).value();
  const auto engine = MustLoad(Options(&group->leader()));
  const auto scheduler = Scheduler::Start(*engine, Scheduling()).value();
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int i = 0; i < 5; ++i) {  // more than run at once
    recorders.push_back(std::make_shared<Recorder>());
    if (i == 0) {
      recorders[0]->on_token = [&group, &recorder = *recorders[0]] {
        if (recorder.ids.size() == 3) group->fabric(1).Abort("out of luck");
      };
    }
    // Should the failure come first, the last ones are refused.
    if (!scheduler->Submit(Ask(kPrompt, 240), recorders.back())) recorders.pop_back();
  }
  for (const auto& recorder : recorders) {
    const auto& summary = recorder->Wait();
    ASSERT_FALSE(summary);
    EXPECT_EQ(summary.error().message, "rank 1 gave up: out of luck");
  }
  EXPECT_EQ(AwaitFailure(*scheduler), "rank 1 gave up: out of luck");
  EXPECT_FALSE(engine->JobStatus());
}

TEST(Ranks, KeepNoPrefixesInAFolder) {
  const auto group = RankGroup::Start(2).value();
  const auto engine = MustLoad(Options(&group->leader()));
  const tools::TempDir temp;
  SchedulerOptions options = Scheduling();
  options.prefix_store = temp.path();
  EXPECT_EQ(Scheduler::Start(*engine, options).error().code, ErrorCode::kUnsupported);
}

TEST(RankMessages, OptionsComeBackAsTheyWere) {
  EngineOptions options = Options(nullptr);
  options.executor = ExecutorKind::kReference;
  options.isa = kernels::Isa::kAvx2;
  options.dense = program::ParseDenseFormats("int8,head=bf16").value();
  options.activation_dtype = DType::kF32;
  options.cache_positions = std::int64_t{1} << 40;
  options.packed_cache = "/a folder/with=signs";
  options.packed_cache_use = exec::CacheUse::kCopy;
  options.huge_pages = HugePages::kReserved;
  options.lora_norm_uses_rms_eps = true;
  options.tensor_parallel = 4;
  options.expert_parallel = 2;
  const fabric::Items items = LoadItems("some/where", options);
  std::string directory;
  EngineOptions parsed;
  ASSERT_TRUE(ParseLoadItems(items, &directory, &parsed));
  EXPECT_EQ(directory, "some/where");
  EXPECT_EQ(LoadItems(directory, parsed), items);
  EXPECT_EQ(parsed.isa, options.isa);
  EXPECT_EQ(parsed.dense, options.dense);
  EXPECT_EQ(parsed.cache_positions, options.cache_positions);
  EXPECT_EQ(parsed.packed_cache, options.packed_cache);

  VariantOptions variant;
  variant.row_buckets = {1, 8, 64};
  variant.prefetch = false;
  VariantOptions parsed_variant;
  ASSERT_TRUE(ParseVariantItems(VariantItems(variant), &parsed_variant));
  EXPECT_EQ(parsed_variant.row_buckets, variant.row_buckets);
  EXPECT_FALSE(parsed_variant.prefetch);
  EXPECT_FALSE(parsed_variant.isa);
}

TEST(RankMessages, WhatIsNotUnderstoodIsRefused) {
  fabric::Items items = LoadItems("x", {});
  std::string directory;
  EngineOptions options;
  items[1].second = "many";
  EXPECT_EQ(ParseLoadItems(items, &directory, &options).error().code, ErrorCode::kInternal);
  items = LoadItems("x", {});
  items.pop_back();
  EXPECT_FALSE(ParseLoadItems(items, &directory, &options));
  items = LoadItems("x", {});
  items.emplace_back("more", "1");
  EXPECT_FALSE(ParseLoadItems(items, &directory, &options));
  fabric::Bytes bytes;
  AppendControl({RankControl::Kind::kVariant, 7, 3}, &bytes);
  EXPECT_EQ(ParseControl(bytes)->target, 7u);
  EXPECT_EQ(ParseControl(bytes)->engine, 3u);
  bytes[0] = std::byte{9};
  EXPECT_FALSE(ParseControl(bytes));
  bytes.pop_back();
  EXPECT_FALSE(ParseControl(bytes));
}

}  // namespace
}  // namespace megalith::engine
