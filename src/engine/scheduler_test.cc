#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "engine/generate.h"
#include "exec/device_memory.h"
#include "tools/temp_dir.h"

namespace megalith::engine {
namespace {

constexpr char kNano[] = MEGALITH_SOURCE_DIR "/models/k3-nano";
constexpr char kDrafter[] = MEGALITH_SOURCE_DIR "/models/k3-nano/dspark";
constexpr std::int64_t kCacheBytes = 64 << 20;

std::unique_ptr<Engine> Load(std::int32_t num_sequences, std::int32_t max_drafts = 0,
                             std::int64_t cache_bytes = kCacheBytes,
                             std::int32_t max_positions = 512) {
  EngineOptions options;
  options.num_workers = 2;
  options.num_sequences = num_sequences;
  options.max_positions = max_positions;
  options.rows_per_step = 64;
  options.logit_rows_per_step = num_sequences * (max_drafts + 1) + 16;
  options.prefix_cache_bytes = cache_bytes;
  options.max_drafts = max_drafts;
  if (max_drafts > 0) options.drafter = kDrafter;
  auto engine = Engine::Load(kNano, options);
  if (!engine) ADD_FAILURE() << engine.error().message;
  return std::move(*engine);
}

/// Keeps all it hears; anybody may wait for it.
class Recorder : public GenerationListener {
 public:
  void OnPromptProgress(const PromptProgress& progress) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(tokens_.empty());
    EXPECT_GE(progress.done, progress_.done);
    progress_ = progress;
    ++num_progress_;
    changed_.notify_all();
  }
  void OnPromptToken(const GeneratedToken& token) override {
    const std::lock_guard lock(mutex_);
    prompt_tokens_.push_back(token);
  }
  bool OnToken(const GeneratedToken& token) override {
    std::unique_lock lock(mutex_);
    EXPECT_FALSE(finished_);
    EXPECT_EQ(progress_.done, progress_.total);
    tokens_.push_back(token);
    if (on_token) on_token(tokens_.size());
    changed_.notify_all();
    changed_.wait(lock, [this] { return tokens_.size() < hold_at_; });
    return tokens_.size() < stop_after;
  }
  void OnFinish(const Result<GenerationSummary>& summary) override {
    std::unique_lock lock(mutex_);
    EXPECT_FALSE(finished_) << "finished twice";
    finished_ = true;
    summary_ = summary;
    changed_.notify_all();
    changed_.wait(lock, [this] { return hold_at_ != kItsEnd; });
  }

  const Result<GenerationSummary>& Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finished_; });
    return summary_;
  }
  void WaitForTokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, count] { return finished_ || tokens_.size() >= count; });
  }
  void WaitForProgress(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, count] { return finished_ || num_progress_ >= count; });
  }
  std::vector<std::int32_t> Ids() {
    const std::lock_guard lock(mutex_);
    std::vector<std::int32_t> ids;
    for (const GeneratedToken& token : tokens_) ids.push_back(token.token);
    return ids;
  }
  bool IsFinished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }
  /// The scheduler's thread stays in the callback of this token, of later ones, or of kItsEnd.
  void HoldAt(std::size_t token) {
    const std::lock_guard lock(mutex_);
    hold_at_ = token;
    changed_.notify_all();
  }
  const std::vector<GeneratedToken>& tokens() const { return tokens_; }
  const std::vector<GeneratedToken>& prompt_tokens() const { return prompt_tokens_; }

  std::function<void(std::size_t)> on_token;  // set before it is submitted
  std::size_t stop_after = SIZE_MAX;
  static constexpr std::size_t kNever = SIZE_MAX;
  static constexpr std::size_t kItsEnd = SIZE_MAX - 1;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t hold_at_ = kNever;
  std::vector<GeneratedToken> tokens_;
  std::vector<GeneratedToken> prompt_tokens_;
  PromptProgress progress_;
  int num_progress_ = 0;
  bool finished_ = false;
  Result<GenerationSummary> summary_;
};

/// Stops the scheduler, which all sequences share, in a callback of one of them: until the test
/// lets it go on, what runs is running and what waits is waiting, however fast or slow any thread
/// is. Made after the scheduler, so that a test which ends early lets its thread end, too.
class Hold {
 public:
  /// `token`: as HoldAt. Before the recorder is submitted.
  Hold(std::shared_ptr<Recorder> recorder, std::size_t token) : recorder_(std::move(recorder)) {
    recorder_->HoldAt(token);
  }
  ~Hold() { Release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void MoveTo(std::size_t token) { recorder_->HoldAt(token); }
  void Release() { recorder_->HoldAt(Recorder::kNever); }

 private:
  std::shared_ptr<Recorder> recorder_;
};

std::vector<std::int32_t> RandomTokens(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 3840);
  return tokens;
}

GenerationRequest Ask(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

std::shared_ptr<Recorder> MustSubmit(Scheduler& scheduler, GenerationRequest request,
                                     GenerationId* id = nullptr) {
  auto recorder = std::make_shared<Recorder>();
  const auto submitted = scheduler.Submit(std::move(request), recorder);
  if (!submitted) {
    ADD_FAILURE() << submitted.error().message;
    recorder->OnFinish(tl::unexpected(submitted.error()));  // nobody waits for ever
  }
  if (id != nullptr) *id = submitted.value_or(0);
  return recorder;
}

/// What one sequence alone gives, without cache and drafts.
std::vector<std::int32_t> Alone(Engine& engine, const GenerationRequest& request) {
  Sequence sequence(engine, 0);
  GenerateOptions options;
  options.max_tokens = request.max_tokens;
  options.sampling = request.sampling;
  options.stop_ids = request.stop_ids;
  return Generate(sequence, request.prompt, options, {}).value().ids;
}

std::unique_ptr<Scheduler> Start(Engine& engine, SchedulerOptions options = {}) {
  options.prefix_cache_bytes = kCacheBytes;
  return Scheduler::Start(engine, options).value();
}

struct Variant {
  std::string name;
  std::int32_t max_drafts = 0;
  bool ngram = false;
  std::int64_t cache_bytes = 0;
  /// Otherwise measured times say how many are verified, maybe none.
  std::optional<std::int32_t> always_drafts;
  bool drafter = true;
};

class SchedulerLoad : public ::testing::TestWithParam<Variant> {};

TEST_P(SchedulerLoad, EveryAnswerIsWhatItIsAlone) {
  const auto engine = Load(5, GetParam().max_drafts, GetParam().cache_bytes);
  const auto oracle = Load(1, 0, 0);
  SchedulerOptions options;
  options.max_drafts = GetParam().max_drafts;
  options.drafter = GetParam().drafter;
  options.ngram = GetParam().ngram;
  options.always = GetParam().always_drafts;
  options.prefix_cache_bytes = GetParam().cache_bytes;
  options.snapshot_spacing = 48;
  options.prompt_rows_beside_answers = 16;
  options.max_queued = 100;
  const auto scheduler = Scheduler::Start(*engine, options).value();
  std::mt19937_64 random(11);
  const std::vector<std::vector<std::int32_t>> beginnings = {RandomTokens(1, 70),
                                                             RandomTokens(2, 130)};
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<GenerationId> ids;
  std::vector<bool> is_cancelled;
  for (int i = 0; i < 40; ++i) {
    std::vector<std::int32_t> prompt = beginnings[random() % 2];
    if (random() % 4 == 0) prompt.clear();
    const auto rest = RandomTokens(random() % 6, 1 + random() % 150);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    GenerationRequest request = Ask(std::move(prompt), 1 + static_cast<int>(random() % 40));
    if (random() % 2 == 0) request.sampling = {.temperature = 1.0f, .top_p = 0.9f, .seed = 5};
    if (random() % 3 == 0) request.boundaries = {request.prompt.size() / 2};
    requests.push_back(request);
    recorders.push_back(MustSubmit(*scheduler, request, &ids.emplace_back()));
    is_cancelled.push_back(random() % 5 == 0);
    if (is_cancelled.back() && random() % 2 == 0) recorders.back()->WaitForTokens(1);
    if (is_cancelled.back()) scheduler->Cancel(ids.back());
    if (random() % 4 == 0) recorders[random() % recorders.size()]->Wait();
  }
  std::size_t cached = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& summary = recorders[i]->Wait();
    ASSERT_TRUE(summary) << summary.error().message;
    cached += summary->prompt.cached;
    const auto expected = Alone(*oracle, requests[i]);
    const auto have = recorders[i]->Ids();
    EXPECT_EQ(static_cast<std::size_t>(summary->generated_tokens), have.size());
    if (summary->finish_reason == FinishReason::kCancelled) {
      EXPECT_TRUE(is_cancelled[i]);
      ASSERT_LE(have.size(), expected.size());
      EXPECT_TRUE(std::equal(have.begin(), have.end(), expected.begin())) << i;
    } else {
      EXPECT_EQ(have, expected) << i;
    }
  }
  EXPECT_EQ(cached > 0, GetParam().cache_bytes > 0);
  const GeneratorStatus status = scheduler->GetStatus();
  EXPECT_TRUE(status.generations.empty());
  EXPECT_EQ(status.num_finished + status.num_cancelled, 40U);
  EXPECT_EQ(status.cached_tokens, cached);
  EXPECT_LE(status.cache_bytes, GetParam().cache_bytes);
  if (GetParam().max_drafts == 0) {
    EXPECT_EQ(status.drafted_tokens, 0U);
  }
  if (GetParam().always_drafts) {
    EXPECT_GT(status.drafted_tokens, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, SchedulerLoad,
                         ::testing::Values(Variant{"plain"},
                                           Variant{"cache", 0, false, kCacheBytes},
                                           Variant{"small_cache", 0, false, 2 << 20},
                                           Variant{"drafter_cache", 3, false, kCacheBytes, 3},
                                           Variant{"adaptive_cache", 3, false, kCacheBytes},
                                           Variant{"ngram_cache", 3, true, kCacheBytes, {}, false},
                                           Variant{"both_cache", 3, true, kCacheBytes}),
                         [](const auto& test) { return test.param.name; });

TEST(Scheduler, ANextTurnRunsOnlyWhatIsNew) {
  const auto engine = Load(2, 3);
  const auto scheduler = Start(*engine, {.max_drafts = 3});
  const auto oracle = Load(1, 0, 0);
  std::vector<std::int32_t> history = RandomTokens(3, 90);
  std::size_t expected_cached = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const auto request = Ask(history, 24);
    const auto recorder = MustSubmit(*scheduler, request);
    const auto& summary = recorder->Wait();
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_EQ(summary->prompt.cached, expected_cached) << "turn " << turn;
    EXPECT_EQ(recorder->Ids(), Alone(*oracle, request)) << "turn " << turn;
    const auto answer = recorder->Ids();
    history.insert(history.end(), answer.begin(), answer.end());
    // The last token of an answer is never run.
    expected_cached = history.size() - 1;
    const auto question = RandomTokens(static_cast<std::uint64_t>(100 + turn), 12);
    history.insert(history.end(), question.begin(), question.end());
  }
}

TEST(Scheduler, TheSamePromptAgainRunsItsLastTokenOnly) {
  const auto engine = Load(1);
  const auto scheduler = Start(*engine);
  const auto request = Ask(RandomTokens(3, 128), 5);  // two pages exactly
  const auto first = MustSubmit(*scheduler, request);
  EXPECT_EQ(first->Wait()->prompt.cached, 0U);
  const auto second = MustSubmit(*scheduler, request);
  EXPECT_EQ(second->Wait()->prompt.cached, 127U);
  EXPECT_EQ(first->Ids(), second->Ids());
  auto uncached = request;
  uncached.use_prefix_cache = false;
  const auto third = MustSubmit(*scheduler, uncached);
  EXPECT_EQ(third->Wait()->prompt.cached, 0U);
  EXPECT_EQ(first->Ids(), third->Ids());
}

TEST(Scheduler, AConversationGoesOnAfterARestart) {
  const tools::TempDir temp;
  const auto oracle = Load(1, 0, 0);
  std::vector<std::int32_t> history = RandomTokens(3, 90);
  std::size_t expected_cached = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const auto engine = Load(2, 3);
    SchedulerOptions options{.max_drafts = 3};
    options.prefix_store = temp.path();
    const auto scheduler = Start(*engine, options);
    const auto request = Ask(history, 24);
    const auto recorder = MustSubmit(*scheduler, request);
    const auto& summary = recorder->Wait();
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_EQ(summary->prompt.cached, expected_cached) << "turn " << turn;
    EXPECT_EQ(recorder->Ids(), Alone(*oracle, request)) << "turn " << turn;
    const auto answer = recorder->Ids();
    history.insert(history.end(), answer.begin(), answer.end());
    expected_cached = history.size() - 1;
    history.insert(history.end(), {7, 8, 9});
  }
}

TEST(Scheduler, PromptsThatPartAtABoundaryShareWhatIsBeforeIt) {
  const auto engine = Load(1);
  const auto scheduler = Start(*engine);
  const auto system = RandomTokens(3, 100);
  auto first = system;
  first.insert(first.end(), {1, 2, 3, 4, 5});
  auto second = system;
  second.insert(second.end(), {9, 8, 7});
  auto request = Ask(first, 3);
  request.boundaries = {100, 104};
  MustSubmit(*scheduler, request)->Wait();
  const auto recorder = MustSubmit(*scheduler, Ask(second, 3));
  EXPECT_EQ(recorder->Wait()->prompt.cached, 100U);
}

TEST(Scheduler, ALongPromptStopsRunningAnswersForOneSliceAtMost) {
  const auto engine = Load(2);
  SchedulerOptions options;
  options.prompt_rows_beside_answers = 8;
  options.prompt_share = 1.0;
  // Tokens of the answer between the slices of the prompt: counted by the scheduler's own thread,
  // which may still be counting when this test ends, so the scheduler must end first.
  std::atomic<std::size_t> num_tokens = 0;
  const auto answer = std::make_shared<Recorder>();
  const auto scheduler = Start(*engine, options);
  answer->on_token = [&](std::size_t count) { num_tokens = count; };
  class Slices : public Recorder {
   public:
    explicit Slices(std::atomic<std::size_t>& num_tokens) : num_tokens_(num_tokens) {}
    void OnPromptProgress(const PromptProgress& progress) override {
      Recorder::OnPromptProgress(progress);
      slices.emplace_back(progress.done, num_tokens_.load());
    }
    std::vector<std::pair<std::size_t, std::size_t>> slices;

   private:
    std::atomic<std::size_t>& num_tokens_;
  };
  Hold running(answer, 2);
  ASSERT_TRUE(scheduler->Submit(Ask(RandomTokens(1, 5), 400), answer));
  answer->WaitForTokens(2);
  const auto prompt = std::make_shared<Slices>(num_tokens);
  const Hold ended(prompt, Recorder::kItsEnd);
  ASSERT_TRUE(scheduler->Submit(Ask(RandomTokens(2, 200), 1), prompt));
  running.Release();
  prompt->Wait();
  ASSERT_FALSE(answer->IsFinished()) << "the answer was too short for this test";
  ASSERT_GE(prompt->slices.size(), 25U);
  for (std::size_t i = 1; i < prompt->slices.size(); ++i) {
    EXPECT_LE(prompt->slices[i].first - prompt->slices[i - 1].first, 8U);
    if (i > 1) {
      EXPECT_GT(prompt->slices[i].second, prompt->slices[i - 1].second);
    }
  }
}

TEST(Scheduler, RequestsBeyondTheQueueAreRefused) {
  const auto engine = Load(1);
  const auto scheduler = Start(*engine, {.max_queued = 2});
  const auto running = std::make_shared<Recorder>();
  Hold hold(running, 1);
  ASSERT_TRUE(scheduler->Submit(Ask({1, 2, 3}, 10), running));
  running->WaitForTokens(1);
  GenerationId second_id = 0;
  const auto first = MustSubmit(*scheduler, Ask({1, 2, 3}, 3));
  const auto second = MustSubmit(*scheduler, Ask({4, 5, 6}, 3), &second_id);
  const auto refused = scheduler->Submit(Ask({1}, 1), std::make_shared<Recorder>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  const GeneratorStatus status = scheduler->GetStatus();
  ASSERT_EQ(status.generations.size(), 3U);
  EXPECT_EQ(status.generations[2].queue_position, 2U);
  EXPECT_EQ(status.num_refused, 1U);
  scheduler->Cancel(second_id);
  hold.MoveTo(2);  // a step in which the scheduler hears of it
  EXPECT_EQ(second->Wait()->finish_reason, FinishReason::kCancelled);
  EXPECT_FALSE(first->IsFinished());
}

TEST(Scheduler, WithoutAQueueRequestsStillGetFreePlaces) {
  const auto engine = Load(2);
  const auto scheduler = Start(*engine, {.max_queued = 0});
  const auto first = std::make_shared<Recorder>();
  Hold hold(first, 1);
  ASSERT_TRUE(scheduler->Submit(Ask({1, 2, 3}, 5), first));
  first->WaitForTokens(1);
  const auto second = MustSubmit(*scheduler, Ask({1, 2, 3}, 5));
  const auto refused = scheduler->Submit(Ask({1}, 1), std::make_shared<Recorder>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  hold.Release();
  EXPECT_TRUE(first->Wait());
  EXPECT_TRUE(second->Wait());
}

TEST(Scheduler, APlaceIsFreeForWhoeverHearsOfTheEnd) {
  const auto engine = Load(1);
  const auto scheduler = Start(*engine, {.max_queued = 0});
  const auto first = std::make_shared<Recorder>();
  // The scheduler has done nothing yet but tell of the end.
  Hold hold(first, Recorder::kItsEnd);
  ASSERT_TRUE(scheduler->Submit(Ask({1, 2, 3}, 5), first));
  EXPECT_TRUE(first->Wait());
  EXPECT_TRUE(scheduler->GetStatus().generations.empty());
  const auto second = MustSubmit(*scheduler, Ask({1, 2, 3}, 5));
  hold.Release();
  EXPECT_TRUE(second->Wait());
}

TEST(Scheduler, ARequestThatBeginsToRunIsSeenAllTheTime) {
  const auto engine = Load(1);
  const auto scheduler = Start(*engine, {.max_queued = 0});
  // It is told of its prompt when it has left the queue and before anything of it has run.
  class Beginning : public Recorder {
   public:
    explicit Beginning(const Scheduler& scheduler) : scheduler_(scheduler) {}
    void OnPromptProgress(const PromptProgress& progress) override {
      Recorder::OnPromptProgress(progress);
      nums_seen.push_back(scheduler_.GetStatus().generations.size());
    }
    std::vector<std::size_t> nums_seen;

   private:
    const Scheduler& scheduler_;
  };
  const auto beginning = std::make_shared<Beginning>(*scheduler);
  ASSERT_TRUE(scheduler->Submit(Ask({1, 2, 3}, 1), beginning));
  EXPECT_TRUE(beginning->Wait());
  EXPECT_EQ(beginning->nums_seen, (std::vector<std::size_t>{1, 1}));
}

TEST(Scheduler, WhatCannotRunIsRefusedAtOnce) {
  const auto engine = Load(1);
  const auto scheduler = Start(*engine);
  const auto refused = [&](GenerationRequest request, ErrorCode code, std::string_view what) {
    const auto result = scheduler->Submit(std::move(request), std::make_shared<Recorder>());
    ASSERT_FALSE(result) << what;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(what), std::string::npos) << result.error().message;
  };
  refused(Ask({}, 1), ErrorCode::kUsage, "prompt");
  refused(Ask({1}, 0), ErrorCode::kUsage, "max tokens");
  refused(Ask({4096}, 1), ErrorCode::kOutOfRange, "4096");
  refused(Ask(RandomTokens(1, 513), 1), ErrorCode::kOutOfRange, "513 tokens do not fit");
  auto request = Ask({1}, 1);
  request.sampling.temperature = NAN;
  refused(request, ErrorCode::kUsage, "temperature");
  request = Ask({1}, 1);
  request.logits.bias = {{1, 0.5f}, {1, 0.5f}};
  refused(request, ErrorCode::kUsage, "logit_bias");
  request.logits.bias = {{5000, 0.5f}};
  refused(request, ErrorCode::kOutOfRange, "logit_bias");
  request = Ask({1}, 1);
  request.logits.repetition_penalty = 0.0f;
  refused(request, ErrorCode::kUsage, "repetition_penalty");
}

TEST(Scheduler, TheEndOfTheSchedulerCancelsEverything) {
  const auto engine = Load(1);
  auto scheduler = Start(*engine, {.max_queued = 1});
  const auto running = std::make_shared<Recorder>();
  Hold hold(running, 1);
  ASSERT_TRUE(scheduler->Submit(Ask({1, 2, 3}, 3), running));
  running->WaitForTokens(1);
  const auto waiting = MustSubmit(*scheduler, Ask({1, 2, 3}, 3));
  std::thread end([&] { scheduler->Stop(); });
  // The queue is full, so nothing is accepted; once the end has come, for another reason.
  const auto refusal = [&] {
    const auto refused = scheduler->Submit(Ask({1}, 1), std::make_shared<Recorder>());
    return refused ? ErrorCode::kInternal : refused.error().code;
  };
  while (refusal() == ErrorCode::kBusy) std::this_thread::yield();
  EXPECT_EQ(refusal(), ErrorCode::kCancelled);
  hold.Release();
  end.join();
  scheduler.reset();
  EXPECT_EQ(running->Wait()->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting->Wait()->finish_reason, FinishReason::kCancelled);
  const auto& sequences = engine->executor().memory().sequences();
  EXPECT_EQ(sequences.num_free_pages(), engine->executor().memory().program(0)->state.num_pages);
}

TEST(Scheduler, AListenerCanStopAndCancel) {
  const auto engine = Load(1);
  const auto scheduler = Start(*engine);
  const auto stopping = std::make_shared<Recorder>();
  stopping->stop_after = 7;
  ASSERT_TRUE(scheduler->Submit(Ask({1, 2, 3}, 100), stopping));
  EXPECT_EQ(stopping->Wait()->finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopping->Ids().size(), 7U);
}

/// Lets no token come from the third on.
class DeadEnd : public TokenConstraint {
 public:
  bool Restrict(std::span<std::uint64_t> allowed) override {
    if (count_ < 2) return false;
    std::ranges::fill(allowed, 0);
    return true;
  }
  bool Push(std::int32_t /*token*/) override {
    ++count_;
    return true;
  }
  void Pop(std::size_t count) override { count_ -= count; }

 private:
  std::size_t count_ = 0;
};

TEST(Scheduler, AFailedSequenceEndsAloneAndLeavesNothingBehind) {
  const auto engine = Load(2);
  const auto scheduler = Start(*engine);
  const auto oracle = Load(1, 0, 0);
  auto failing = Ask(RandomTokens(5, 100), 10);
  failing.constraint = std::make_shared<DeadEnd>();
  const auto good_request = Ask(RandomTokens(6, 20), 40);
  const auto good = MustSubmit(*scheduler, good_request);
  const auto failed = MustSubmit(*scheduler, failing);
  const auto& summary = failed->Wait();
  ASSERT_FALSE(summary);
  EXPECT_EQ(summary.error().code, ErrorCode::kUsage) << "the model is not to blame";
  EXPECT_EQ(failed->Ids().size(), 2U);
  ASSERT_TRUE(good->Wait());
  EXPECT_EQ(good->Ids(), Alone(*oracle, good_request));
  const auto again = Ask(RandomTokens(5, 100), 10);
  const auto recorder = MustSubmit(*scheduler, again);
  EXPECT_EQ(recorder->Wait()->prompt.cached, 0U) << "a failed sequence must not be reused";
  EXPECT_EQ(recorder->Ids(), Alone(*oracle, again));
  EXPECT_EQ(scheduler->GetStatus().num_failed, 1U);
}

/// Only tokens of one residue, another one at each place.
class Residues : public TokenConstraint {
 public:
  bool Restrict(std::span<std::uint64_t> allowed) override {
    if (count_ % 5 == 4) return false;
    for (std::size_t i = 0; i < allowed.size() * 64; ++i) {
      if (!IsAllowed(static_cast<std::int32_t>(i))) {
        allowed[i / 64] &= ~(std::uint64_t{1} << i % 64);
      }
    }
    return true;
  }
  bool Push(std::int32_t token) override {
    if (count_ % 5 != 4 && !IsAllowed(token)) return false;
    ++count_;
    return true;
  }
  void Pop(std::size_t count) override { count_ -= count; }

 private:
  bool IsAllowed(std::int32_t token) const {
    return static_cast<std::size_t>(token) % 3 == count_ % 3;
  }
  std::size_t count_ = 0;
};

TEST(Scheduler, PenaltiesBiasesAndConstraintsWorkTheSameWithDrafts) {
  std::map<int, std::vector<std::int32_t>> plain;
  for (const int mode : {0, 1, 2, 3}) {  // no drafts, the drafter's, n-grams, both
    const std::int32_t drafts = mode == 0 ? 0 : 3;
    const auto engine = Load(2, drafts);
    const auto scheduler =
        Start(*engine,
              {.max_drafts = drafts, .always = drafts, .drafter = mode != 2, .ngram = mode >= 2});
    for (int kind = 0; kind < 6; ++kind) {
      std::vector<std::int32_t> prompt = RandomTokens(7, 12);
      const auto repeated = prompt;
      prompt.insert(prompt.end(), repeated.begin(), repeated.end());
      auto request = Ask(prompt, 60);
      if (kind % 2 == 1) request.sampling = {.temperature = 0.9f, .seed = 3};
      switch (kind) {
        case 0:
          request.logits.presence_penalty = 1.5f;
          break;
        case 1:
          request.logits.frequency_penalty = 0.7f;
          request.logits.bias = {{17, 3.0f}, {100, -INFINITY}};
          break;
        case 2:
          request.logits.repetition_penalty = 1.3f;
          break;
        case 3:
          request.constraint = std::make_shared<Residues>();
          break;
        case 4:
          request.constraint = std::make_shared<Residues>();
          request.logits.frequency_penalty = 0.5f;
          break;
        default:
          break;
      }
      const auto recorder = MustSubmit(*scheduler, request);
      const auto& summary = recorder->Wait();
      ASSERT_TRUE(summary) << summary.error().message;
      EXPECT_EQ(recorder->Ids().size(), 60U);
      if (mode == 0) plain[kind] = recorder->Ids();
      EXPECT_EQ(recorder->Ids(), plain[kind]) << "mode " << mode << " kind " << kind;
      if (kind == 3) {
        for (std::size_t i = 0; i < 60; ++i) {
          if (i % 5 == 4) continue;
          EXPECT_EQ(static_cast<std::size_t>(recorder->Ids()[i]) % 3, i % 3);
        }
      }
    }
  }
  EXPECT_NE(plain[0], plain[2]);
}

TEST(Scheduler, LogProbabilitiesAreThoseOfTheLogits) {
  const auto engine = Load(2, 3);
  const auto scheduler = Start(*engine, {.max_drafts = 3, .always = 3});
  auto request = Ask(RandomTokens(8, 40), 10);
  request.num_logprobs = 4;
  request.prompt_logprobs = true;
  const auto recorder = MustSubmit(*scheduler, request);
  const auto& summary = recorder->Wait();
  ASSERT_TRUE(summary) << summary.error().message;
  auto text = request.prompt;
  for (const std::int32_t id : recorder->Ids()) text.push_back(id);
  ASSERT_EQ(recorder->prompt_tokens().size(), 40U);
  ASSERT_EQ(recorder->tokens().size(), 10U);
  EXPECT_FALSE(recorder->prompt_tokens()[0].logprob);

  const auto oracle = Load(1, 0, 0);
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const exec::Run run{0, static_cast<std::int32_t>(i), 1};
    const std::int32_t row = 0;
    const auto step =
        oracle->executor().Step({{&run, 1}, std::span(text).subspan(i, 1), {&row, 1}}).value();
    const auto logits = step.Row(0);
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    const GeneratedToken& token =
        i + 1 < 40 ? recorder->prompt_tokens()[i + 1] : recorder->tokens()[i + 1 - 40];
    EXPECT_EQ(token.token, text[i + 1]);
    ASSERT_TRUE(token.logprob);
    const auto of = [&](std::int32_t id) {
      return static_cast<double>(logits[static_cast<std::size_t>(id)]) - std::log(sum);
    };
    EXPECT_NEAR(*token.logprob, of(token.token), 1e-4);
    ASSERT_EQ(token.top.size(), 4U);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(token.top[0].token, best);
    for (std::size_t k = 0; k < 4; ++k) {
      EXPECT_NEAR(token.top[k].logprob, of(token.top[k].token), 1e-4);
      if (k == 0) continue;
      EXPECT_GE(token.top[k - 1].logprob, token.top[k].logprob);
    }
  }
}

}  // namespace
}  // namespace megalith::engine
