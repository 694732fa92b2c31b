// The whole promise at length: 200 prompts, 256 tokens each, every way of drafting, greedy and
// drawn.

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/generate.h"
#include "engine/scheduler.h"

namespace megalith::engine {
namespace {

constexpr char kNano[] = MEGALITH_SOURCE_DIR "/models/k3-nano";
constexpr std::size_t kNumPrompts = 200;
constexpr std::int64_t kNewTokens = 256;

/// Beginnings of verses, novels and chats, cut anywhere, and tokens in no order at all.
std::vector<std::vector<std::int32_t>> Prompts() {
  const nlohmann::json texts =
      nlohmann::json::parse(std::ifstream(MEGALITH_TEST_DATA "/draft-prompts.json"));
  std::mt19937 random(11);
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::size_t i = 0; i < kNumPrompts; ++i) {
    std::vector<std::int32_t> ids;
    if (i % 8 == 7) {
      ids.resize(1 + random() % 30);
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 3840);
    } else {
      ids = texts[i % texts.size()]["ids"].get<std::vector<std::int32_t>>();
      ids.resize(std::max<std::size_t>(1, ids.size() - random() % (ids.size() / 2)));
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

TEST(Lossless, EveryWayOfDraftingGivesTheTokensOfPlainDecoding) {
  EngineOptions load;
  load.num_workers = 2;
  load.drafter = std::string(kNano) + "/dspark";
  load.max_drafts = 7;
  load.max_positions = 512;
  const auto engine = Engine::Load(kNano, load);
  ASSERT_TRUE(engine) << engine.error().message;
  Sequence sequence(**engine, 0);
  std::size_t index = 0;
  std::int64_t accepted = 0;
  for (const std::vector<std::int32_t>& prompt : Prompts()) {
    GenerateOptions options;
    options.max_tokens = kNewTokens;
    if (index % 2 == 1) {
      options.sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = index};
    }
    const auto generated = [&](const std::string& what) {
      // Not extended by accident: every run begins afresh.
      EXPECT_TRUE(sequence.Reset());
      auto result = Generate(sequence, prompt, options, {});
      EXPECT_TRUE(result) << what << ": " << result.error().message;
      if (result) accepted += result->drafting.accepted;
      return result ? result->ids : std::vector<std::int32_t>();
    };
    const std::vector<std::int32_t> plain = generated("plain");
    ASSERT_EQ(plain.size(), static_cast<std::size_t>(kNewTokens));
    options.drafting = {.max_drafts = 7};
    for (std::int32_t rows = 2; rows <= 8; ++rows) {
      options.drafting.always = rows - 1;
      ASSERT_EQ(generated("fixed"), plain) << "prompt " << index << ", " << rows << " rows";
    }
    options.drafting.always.reset();
    ASSERT_EQ(generated("auto"), plain) << "prompt " << index << ", auto";
    options.drafting.proposer = MakeNgramProposer();
    ASSERT_EQ(generated("both"), plain) << "prompt " << index << ", drafter and ngram";
    options.drafting.drafter = false;
    ASSERT_EQ(generated("ngram"), plain) << "prompt " << index << ", ngram";
    ++index;
  }
  EXPECT_GT(accepted, 10'000);
}

/// Keeps the tokens; anybody may wait for the end.
class Answer : public GenerationListener {
 public:
  bool OnToken(const GeneratedToken& token) override {
    ids_.push_back(token.token);
    return true;
  }
  void OnFinish(const Result<GenerationSummary>& summary) override { done_.set_value(summary); }
  Result<GenerationSummary> Wait() { return done_.get_future().get(); }
  const std::vector<std::int32_t>& ids() const { return ids_; }

 private:
  std::vector<std::int32_t> ids_;
  std::promise<Result<GenerationSummary>> done_;
};

/// Each in two requests, the second of which goes on from a snapshot of the first, eight at a time.
TEST(Lossless, RestoredPrefixesAndNeighboursGiveTheTokensOfPlainDecoding) {
  constexpr std::int64_t kFirstTokens = 100;
  EngineOptions load;
  load.num_workers = 2;
  load.drafter = std::string(kNano) + "/dspark";
  load.max_drafts = 7;
  load.max_positions = 512;
  load.num_sequences = 8;
  load.prefix_cache_bytes = std::int64_t{2} << 30;
  const auto engine = Engine::Load(kNano, load).value();
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<std::int32_t>> plain;
  for (const std::vector<std::int32_t>& prompt : Prompts()) {
    GenerationRequest request;
    request.prompt = prompt;
    if (requests.size() % 2 == 1) {
      request.sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = requests.size()};
    }
    Sequence sequence(*engine, 0);
    GenerateOptions options;
    options.max_tokens = kNewTokens;
    options.sampling = request.sampling;
    plain.push_back(Generate(sequence, prompt, options, {}).value().ids);
    requests.push_back(std::move(request));
  }
  for (const std::string sources : {"drafter", "ngram", "drafter,ngram"}) {
    SchedulerOptions options;
    options.max_drafts = 7;
    options.drafter = sources != "ngram";
    options.ngram = sources != "drafter";
    options.max_queued = kNumPrompts;
    options.prefix_cache_bytes = load.prefix_cache_bytes;
    const auto scheduler = Scheduler::Start(*engine, options).value();
    const auto run = [&](const std::vector<GenerationRequest>& all) {
      std::vector<std::shared_ptr<Answer>> answers;
      for (const GenerationRequest& request : all) {
        answers.push_back(std::make_shared<Answer>());
        EXPECT_TRUE(scheduler->Submit(request, answers.back()));
      }
      return answers;
    };
    std::vector<GenerationRequest> parts = requests;
    for (GenerationRequest& part : parts) part.max_tokens = kFirstTokens;
    for (const auto& answer : run(parts)) ASSERT_TRUE(answer->Wait());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].prompt.insert(parts[i].prompt.end(), plain[i].begin(),
                             plain[i].begin() + kFirstTokens);
      parts[i].max_tokens = kNewTokens - kFirstTokens;
    }
    const auto answers = run(parts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto summary = answers[i]->Wait();
      ASSERT_TRUE(summary) << summary.error().message;
      EXPECT_EQ(summary->prompt.cached, parts[i].prompt.size() - 1) << "prompt " << i;
      const std::vector<std::int32_t> rest(plain[i].begin() + kFirstTokens, plain[i].end());
      ASSERT_EQ(answers[i]->ids(), rest) << "prompt " << i << ", " << sources;
    }
    EXPECT_GT(scheduler->GetStatus().accepted_tokens, 3'000U);
  }
}

}  // namespace
}  // namespace megalith::engine
