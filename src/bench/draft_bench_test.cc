// What measures drafting. Nothing asserts a time.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "bench/draft_costs.h"
#include "bench/draft_rates.h"
#include "bench/synthetic_proposer.h"
#include "bench/tokens.h"
#include "bench/turns.h"

namespace megalith::bench {
namespace {

const std::string kNano = MEGALITH_SOURCE_DIR "/models/k3-nano";
constexpr std::int32_t kVocabSize = 4096;

std::unique_ptr<engine::Engine> LoadNano(const std::string& drafter, std::int32_t max_drafts) {
  engine::EngineOptions options;
  options.num_workers = 2;
  options.max_positions = 256;
  options.rows_per_step = 16;
  options.drafter = drafter;
  options.max_drafts = max_drafts;
  auto engine = engine::Engine::Load(kNano, options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return nullptr;
  }
  return std::move(*engine);
}

const Yardstick kSteady = []() -> Result<double> { return 1e9; };

TEST(StepsPerTurn, TakesAFifthOfASecondUnlessToldOtherwise) {
  EXPECT_EQ(StepsPerTurn(0.01, 0, 1000), 21);
  EXPECT_EQ(StepsPerTurn(1.0, 0, 1000), 2);
  EXPECT_EQ(StepsPerTurn(1e-9, 0, 1000), 512);
  EXPECT_EQ(StepsPerTurn(1.0, 7, 1000), 7);
  EXPECT_EQ(StepsPerTurn(1.0, 7, 3), 3);
}

// ---- synthetic proposer -------------------------------------------------------------------------

TEST(ChanceFor, GivesTheMeanOfTheRounds) {
  EXPECT_EQ(ChanceFor(8.0, 7), 1.0);
  EXPECT_EQ(ChanceFor(9.0, 7), 1.0);
  EXPECT_NEAR(ChanceFor(1.0, 7), 0.0, 1e-12);
  EXPECT_NEAR(ChanceFor(1.25, 1), 0.25, 1e-12);
  EXPECT_NEAR(ChanceFor(1.75, 2), 0.5, 1e-12);
}

/// Rounds of 7 drafts over a text of which the proposer knows everything.
double MeanTokensPerRound(double tokens_per_round, std::int64_t seed, std::int64_t* rounds) {
  const std::vector<std::int32_t> text = ArbitraryTokens(5, 20'000, kVocabSize);
  const auto propose =
      MakeSyntheticProposer(text, ChanceFor(tokens_per_round, 7), seed, kVocabSize);
  std::size_t length = 1;
  *rounds = 0;
  while (length + 8 <= text.size()) {
    engine::DraftProposal proposal;
    propose(std::span(text).first(length), 7, &proposal);
    EXPECT_EQ(proposal.drafts.size(), 7u);
    const auto wrong = std::mismatch(proposal.drafts.begin(), proposal.drafts.end(),
                                     text.begin() + static_cast<std::ptrdiff_t>(length));
    length += static_cast<std::size_t>(wrong.first - proposal.drafts.begin()) + 1;
    ++*rounds;
  }
  return static_cast<double>(length - 1) / static_cast<double>(*rounds);
}

TEST(SyntheticProposer, RoundsHaveTheMeanLengthAskedFor) {
  for (const double wanted : {1.5, 3.0, 6.0}) {
    for (const std::int64_t seed : {0, 1}) {
      std::int64_t rounds = 0;
      const double mean = MeanTokensPerRound(wanted, seed, &rounds);
      // Lengths of 1 to 8 have a deviation of at most 3.5; four times that of their mean.
      EXPECT_NEAR(mean, wanted, 4 * 3.5 / std::sqrt(static_cast<double>(rounds))) << seed;
    }
  }
}

TEST(SyntheticProposer, DependsOnTheSeedOnlyAndEndsWithTheText) {
  const std::vector<std::int32_t> text = {4095, 4095, 4095, 4095, 4095, 4095, 4095, 4095};
  const auto drafts_of = [&](std::int64_t seed, double chance, std::size_t length) {
    engine::DraftProposal proposal;
    MakeSyntheticProposer(text, chance, seed, kVocabSize)(std::span(text).first(length), 6,
                                                          &proposal);
    return proposal.drafts;
  };
  EXPECT_EQ(drafts_of(0, 1.0, 2), std::vector<std::int32_t>(6, 4095));
  EXPECT_EQ(drafts_of(0, 0.0, 2), std::vector<std::int32_t>(6, 0));  // wrong, but a token
  EXPECT_EQ(drafts_of(3, 0.5, 2), drafts_of(3, 0.5, 2));
  EXPECT_NE(drafts_of(3, 0.5, 2), drafts_of(4, 0.5, 2));
  EXPECT_EQ(drafts_of(0, 1.0, 6).size(), 2u);
  EXPECT_TRUE(drafts_of(0, 1.0, 8).empty());
}

// ---- costs --------------------------------------------------------------------------------------

DraftCostOptions SmallCosts() {
  DraftCostOptions options;
  options.rows = {4, 2};
  options.text = ArbitraryTokens(0, 40, kVocabSize);
  options.context = 3;
  options.steps = 2;
  options.repeats = 1;
  options.yardstick = &kSteady;
  return options;
}

TEST(MeasureDraftCosts, HasAllRowsWithAndWithoutProposals) {
  const auto engine = LoadNano(kNano + "/dspark", 3);
  ASSERT_TRUE(engine);
  const auto costs = MeasureDraftCosts(*engine, SmallCosts());
  ASSERT_TRUE(costs) << costs.error().message;
  std::vector<std::pair<std::int32_t, std::int32_t>> lines;
  for (const DraftCost& cost : *costs) {
    lines.emplace_back(cost.rows, cost.proposals);
    ASSERT_EQ(cost.series.kept.size(), 1u);
    EXPECT_EQ(cost.steps_per_turn, 2);
    EXPECT_GT(cost.time_ratio, 0.0);
    EXPECT_GE(cost.experts_per_layer, 4.0);  // top-4
    EXPECT_LE(cost.experts_per_layer, 4.0 * cost.rows);
    EXPECT_NEAR(cost.series.kept[0].work.amount, 2 * cost.weight_bytes, 1.0);
  }
  EXPECT_EQ(lines, (std::vector<std::pair<std::int32_t, std::int32_t>>{
                       {1, 0}, {2, 0}, {2, 1}, {4, 0}, {4, 3}}));
  EXPECT_EQ((*costs)[0].time_ratio, 1.0);
  EXPECT_EQ((*costs)[0].bytes_ratio, 1.0);
  EXPECT_EQ((*costs)[0].experts_per_layer, 4.0);
  EXPECT_GT((*costs)[3].bytes_ratio, 1.0);
  // The drafter's own weights.
  EXPECT_GT((*costs)[4].bytes_ratio, (*costs)[3].bytes_ratio);
  EXPECT_NE((*costs)[4].program_hash, (*costs)[3].program_hash);
  EXPECT_EQ((*costs)[3].state_bytes, 4 * (*costs)[0].state_bytes);
}

TEST(MeasureDraftCosts, ReadsOnWhateverIsAccepted) {
  const auto engine = LoadNano("", 3);
  ASSERT_TRUE(engine);
  DraftCostOptions options = SmallCosts();
  // Greedy text: every draft is kept by the step and taken back.
  options.text = {1, 2, 3};
  const auto rest = PlainContinuation(*engine, options.text, 12, {}, nullptr);
  ASSERT_TRUE(rest) << rest.error().message;
  options.text.insert(options.text.end(), rest->begin(), rest->end());
  options.rows = {4};
  options.steps = 4;
  const auto costs = MeasureDraftCosts(*engine, options);
  ASSERT_TRUE(costs) << costs.error().message;
  ASSERT_EQ(costs->size(), 2u);
  EXPECT_EQ(costs->back().proposals, 0);
  EXPECT_EQ(costs->back().series.kept[0].work.items, 4.0);
}

TEST(MeasureDraftCosts, RefusesRowsAndContextThatDoNotFit) {
  const auto engine = LoadNano("", 3);
  ASSERT_TRUE(engine);
  DraftCostOptions options = SmallCosts();
  options.rows = {5};
  EXPECT_EQ(MeasureDraftCosts(*engine, options).error().code, ErrorCode::kUsage);
  options.rows = {};
  EXPECT_EQ(MeasureDraftCosts(*engine, options).error().code, ErrorCode::kUsage);
  options.rows = {4};
  options.context = 35;
  EXPECT_TRUE(MeasureDraftCosts(*engine, options));
  for (const std::int32_t context : {0, 36}) {
    options.context = context;
    EXPECT_EQ(MeasureDraftCosts(*engine, options).error().code, ErrorCode::kOutOfRange);
  }
}

// ---- rates --------------------------------------------------------------------------------------

TEST(CheckSameIds, NamesTheFirstWrongToken) {
  const std::vector<std::int32_t> ids = {7, 8, 9};
  EXPECT_TRUE(CheckSameIds("x", ids, ids));
  const auto wrong = CheckSameIds("x", ids, std::vector<std::int32_t>{7, 5, 9});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kInternal);
  EXPECT_EQ(wrong.error().message, "x: token 1 is 5, plain decoding chose 8");
  EXPECT_EQ(CheckSameIds("x", ids, std::vector<std::int32_t>{7, 8}).error().message,
            "x: token 2 is none, plain decoding chose 9");
  EXPECT_FALSE(CheckSameIds("x", ids, std::vector<std::int32_t>{7, 8, 9, 9}));
}

TEST(MeasureDraftRates, CountsRoundsAndComparesIds) {
  const auto engine = LoadNano(kNano + "/dspark", 7);
  ASSERT_TRUE(engine);
  DraftRateOptions options;
  options.prompt = ArbitraryTokens(0, 5, kVocabSize);
  options.repeats = 2;
  options.yardstick = &kSteady;
  const auto expected = PlainContinuation(*engine, options.prompt, 17, {}, nullptr);
  ASSERT_TRUE(expected) << expected.error().message;
  options.expected = *expected;
  std::vector<std::int32_t> text = options.prompt;
  text.insert(text.end(), expected->begin(), expected->end());
  const auto proposer = [&](double chance) {
    return MakeSyntheticProposer(text, chance, 0, kVocabSize);
  };
  const std::vector<DraftRateCase> cases = {{"plain", {}},
                                            {"drafter", {3, 3}},
                                            {"all right", {7, 7, false, proposer(1.0)}},
                                            {"all wrong", {7, 7, false, proposer(0.0)}},
                                            {"auto", {7, std::nullopt, false, proposer(0.5)}},
                                            {"both", {7, std::nullopt, true, proposer(0.5)}}};
  const auto rates = MeasureDraftRates(*engine, cases, options);
  ASSERT_TRUE(rates) << rates.error().message;
  ASSERT_EQ(rates->size(), cases.size());
  for (const DraftRate& rate : *rates) {
    ASSERT_EQ(rate.series.kept.size(), 2u);
    EXPECT_EQ(rate.series.kept[0].work.items, 16.0);
    EXPECT_EQ(rate.drafting.rounds + rate.drafting.accepted, 32);
  }
  EXPECT_EQ((*rates)[0].TokensPerRound(), 1.0);
  EXPECT_EQ((*rates)[2].TokensPerRound(), 8.0);
  EXPECT_EQ((*rates)[2].drafting.position_accepted, std::vector<std::int64_t>(7, 4));
  EXPECT_EQ((*rates)[3].TokensPerRound(), 1.0);
  EXPECT_EQ((*rates)[3].drafting.position_proposed.at(0),
            30);  // but for the last token of each turn

  options.expected[9] ^= 1;
  const auto wrong = MeasureDraftRates(*engine, cases, options);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kInternal);
  options.expected.resize(1);
  EXPECT_EQ(MeasureDraftRates(*engine, cases, options).error().code, ErrorCode::kUsage);
}

TEST(PlainContinuation, NeedsRoomInTheContext) {
  const auto engine = LoadNano("", 0);
  ASSERT_TRUE(engine);
  const std::vector<std::int32_t> prompt = {1, 2};
  EXPECT_EQ(PlainContinuation(*engine, prompt, 300, {}, nullptr).error().code,
            ErrorCode::kOutOfRange);
}

}  // namespace
}  // namespace megalith::bench
