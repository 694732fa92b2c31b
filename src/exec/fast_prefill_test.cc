// Fast runs: chunked KDA and expanded MLA beside the forms that everything else uses.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"

namespace megalith::exec::testing {
namespace {

using kernels::Isa;

ExecutorSpec Spec(const std::string& model, bool fast) {
  ExecutorSpec spec;
  spec.directory = model == "k3-nano" ? std::string(MEGALITH_SOURCE_DIR) + "/models/k3-nano"
                                      : std::string(MEGALITH_TEST_DATA) + "/golden/" + model;
  spec.isa = kernels::SupportedIsas().back();
  spec.row_buckets = {1, 8, 64, 256};
  spec.fast_prefill = fast;
  return spec;
}

std::unique_ptr<Executor> Make(const ExecutorSpec& spec) {
  auto executor = MakeExecutor(spec);
  if (!executor) ADD_FAILURE() << Describe(spec) << ": " << executor.error().message;
  return executor ? *std::move(executor) : nullptr;
}

std::vector<std::int32_t> Tokens(const Executor& executor, std::size_t count) {
  return RandomTokens(count, executor.limits().vocab_size, 11);
}

/// Feeds the tokens in steps of these sizes.
LogitRows FeedInSteps(Executor& executor, std::int32_t slot, std::span<const std::int32_t> tokens,
                      const std::vector<std::int32_t>& steps) {
  LogitRows all;
  std::int32_t done = 0;
  for (const std::int32_t count : steps) {
    auto rows =
        Feed(executor, slot,
             tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)), count,
             done);
    if (!rows) {
      ADD_FAILURE() << rows.error().message;
      return all;
    }
    for (auto& row : *rows) all.push_back(std::move(row));
    done += count;
  }
  return all;
}

/// Largest difference of two sets of logits, and the spread of the first.
struct Distance {
  double largest = 0.0;
  double rms = 0.0;
  double spread = 0.0;
};
Distance Between(const LogitRows& want, const LogitRows& have) {
  Distance distance;
  double count = 0.0;
  for (std::size_t row = 0; row < want.size(); ++row) {
    for (std::size_t i = 0; i < want[row].size(); ++i) {
      const auto expected = static_cast<double>(want[row][i]);
      const double difference = static_cast<double>(have[row][i]) - expected;
      distance.largest = std::max(distance.largest, std::fabs(difference));
      distance.rms += difference * difference;
      distance.spread += expected * expected;
      count += 1.0;
    }
  }
  distance.rms = std::sqrt(distance.rms / count);
  distance.spread = std::sqrt(distance.spread / count);
  return distance;
}

class FastPrefill : public ::testing::TestWithParam<const char*> {};

TEST_P(FastPrefill, EngineEqualsTheInterpreterWithAnyWorkers) {
  const std::vector<std::int32_t> steps = {70, 1, 64, 3};
  for (const Isa isa : kernels::SupportedIsas()) {
    ExecutorSpec spec = Spec(GetParam(), true);
    spec.isa = isa;
    spec.reference = true;
    spec.numerics = kernels::NumericsOf(isa);
    const auto interpreter = Make(spec);
    ASSERT_NE(interpreter, nullptr);
    const auto tokens = Tokens(*interpreter, 138);
    static std::map<std::pair<std::string, kernels::DotNumerics>,
                    std::pair<LogitRows, SequenceState>>
        cache;
    auto [found, is_new] = cache.try_emplace({GetParam(), spec.numerics});
    auto& [want, want_state] = found->second;
    if (is_new) {
      want = FeedInSteps(*interpreter, 0, tokens, steps);
      want_state = ReadState(*interpreter, 0);
    }
    spec.reference = false;
    for (const std::int32_t workers : {1, 2, 3}) {
      spec.num_workers = workers;
      const auto engine = Make(spec);
      ASSERT_NE(engine, nullptr);
      EXPECT_EQ(FirstDifference(want, FeedInSteps(*engine, 0, tokens, steps)), "")
          << Describe(spec);
      EXPECT_TRUE(ReadState(*engine, 0) == want_state) << Describe(spec);
    }
  }
}

TEST_P(FastPrefill, StepsThatEndWhereChunksDoChangeNoBit) {
  const auto executor = Make(Spec(GetParam(), true));
  ASSERT_NE(executor, nullptr);
  const auto tokens = Tokens(*executor, 208);
  const LogitRows want = FeedInSteps(*executor, 0, tokens, {208});
  const SequenceState state = ReadState(*executor, 0);
  for (const std::vector<std::int32_t>& steps :
       {std::vector<std::int32_t>{64, 64, 80}, {128, 80}, {80, 128}, {144, 64}}) {
    ASSERT_TRUE(executor->ReleaseSlot(0));
    EXPECT_EQ(FirstDifference(want, FeedInSteps(*executor, 0, tokens, steps)), "");
    EXPECT_TRUE(ReadState(*executor, 0) == state);
  }
}

// What is fast follows from the run alone.
TEST_P(FastPrefill, ShortRunsHaveTheBitsOfTheExactForm) {
  const auto fast = Make(Spec(GetParam(), true));
  const auto exact = Make(Spec(GetParam(), false));
  ASSERT_TRUE(fast != nullptr && exact != nullptr);
  const auto tokens = Tokens(*fast, 126);
  const std::vector<std::int32_t> steps = {63, 63};
  EXPECT_EQ(
      FirstDifference(FeedInSteps(*exact, 0, tokens, steps), FeedInSteps(*fast, 0, tokens, steps)),
      "");
}

TEST_P(FastPrefill, RunsOfOneStepDoNotSeeEachOther) {
  ExecutorSpec spec = Spec(GetParam(), true);
  spec.num_slots = 4;
  spec.max_drafts = 3;
  const auto executor = Make(spec);
  spec.fast_prefill = false;
  const auto exact = Make(spec);
  ASSERT_TRUE(executor != nullptr && exact != nullptr);
  const auto tokens = Tokens(*executor, 90);
  const auto others = RandomTokens(100, executor->limits().vocab_size, 3);
  const LogitRows alone = FeedInSteps(*executor, 0, tokens, {90});
  const SequenceState state = ReadState(*executor, 0);
  const LogitRows two = FeedInSteps(*exact, 1, others, {20, 1});
  const LogitRows long_one = FeedInSteps(*executor, 2, others, {71});
  for (const std::int32_t slot : {0, 1, 2}) ASSERT_TRUE(executor->ReleaseSlot(slot));
  FeedInSteps(*executor, 1, others, {20});
  // A decoding row, a fast run, drafts of a third sequence, another fast run.
  std::vector<std::int32_t> step_tokens = {others[20]};
  step_tokens.insert(step_tokens.end(), tokens.begin(), tokens.end());
  step_tokens.insert(step_tokens.end(), others.begin(), others.begin() + 70);
  step_tokens.insert(step_tokens.end(), others.begin(), others.begin() + 71);
  std::vector<exec::Run> runs = {{1, 20, 1}, {0, 0, 90}, {3, 0, 70}, {2, 0, 71}};
  runs[2].num_drafts = 3;
  runs[2].wants_token = true;
  std::vector<std::int32_t> logit_rows = {0};
  for (std::int32_t i = 0; i < 90; ++i) logit_rows.push_back(1 + i);
  for (std::int32_t i = 0; i < 71; ++i) logit_rows.push_back(161 + i);
  const auto step = executor->Step({runs, step_tokens, logit_rows});
  ASSERT_TRUE(step) << step.error().message;
  LogitRows have;
  for (std::int64_t i = 0; i < 162; ++i) {
    have.emplace_back(step->Row(i).begin(), step->Row(i).end());
  }
  EXPECT_EQ(FirstDifference({two.back()}, {have[0]}), "");
  EXPECT_EQ(FirstDifference(alone, {have.begin() + 1, have.begin() + 91}), "");
  EXPECT_EQ(FirstDifference(long_one, {have.begin() + 91, have.end()}), "");
  EXPECT_TRUE(ReadState(*executor, 0) == state);
  // The drafted run is long enough, but took the exact form.
  const auto drafted = ReadState(*executor, 3);
  std::vector<exec::Run> same = {runs[2]};
  same[0].slot = 0;
  const auto reference = exact->Step({same, std::span(others).first(70), {}});
  ASSERT_TRUE(reference) << reference.error().message;
  EXPECT_TRUE(ReadState(*exact, 0) == drafted);
}

// Other bits, but the same numbers: what rounding activations to bf16 moves the logits by (a near
// tie between experts that falls the other way included) is what another form may move them by.
// Either form goes on from what the other left.
TEST_P(FastPrefill, IsAsNearToTheExactFormAsFloatActivations) {
  ExecutorSpec spec = Spec(GetParam(), false);
  const auto exact = Make(spec);
  spec.isa = Isa::kPortable;
  spec.activation_dtype = DType::kF32;
  const auto unrounded = Make(spec);
  const auto fast = Make(Spec(GetParam(), true));
  ASSERT_TRUE(fast != nullptr && exact != nullptr && unrounded != nullptr);
  const auto tokens = Tokens(*fast, 200);
  const LogitRows want = FeedInSteps(*exact, 0, tokens, {200});
  const Distance yardstick = Between(want, FeedInSteps(*unrounded, 0, tokens, {200}));
  // Exact rows, fast ones from an odd position, exact ones, fast ones, single rows.
  for (const std::vector<std::int32_t>& steps :
       {std::vector<std::int32_t>{200}, {37, 70, 9, 64, 1, 1, 8, 10}}) {
    ASSERT_TRUE(fast->ReleaseSlot(0));
    const Distance distance = Between(want, FeedInSteps(*fast, 0, tokens, steps));
    EXPECT_GT(distance.largest, 0.0) << "nothing took the fast form";
    EXPECT_LE(distance.rms, 2.0 * yardstick.rms) << "of " << yardstick.spread;
    // One row in a near tie decides the largest.
    EXPECT_LE(distance.largest, 4.0 * yardstick.largest) << "of " << yardstick.spread;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FastPrefill, ::testing::Values("k3-tiny", "k3-odd", "k3-nano"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megalith::exec::testing
