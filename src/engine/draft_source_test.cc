#include "engine/draft_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace megalith::engine {
namespace {

TEST(DraftCut, IsBehindTheDraftThatMaximisesTheGain) {
  DraftCut cut(2.0);
  EXPECT_EQ(cut.num_drafts(), 0);
  EXPECT_EQ(cut.gain(), 0.0);
  // Accepted drafts: 0.9, 1.71, 1.71 * ...; time at twice its length.
  cut.Extend(0.9, 1.25);
  EXPECT_EQ(cut.num_drafts(), 1);
  EXPECT_DOUBLE_EQ(cut.tokens(), 1.9);
  EXPECT_DOUBLE_EQ(cut.gain(), 0.9 - 2.0 * 0.25);
  cut.Extend(0.5, 1.5);  // brings 0.45, costs 0.5
  EXPECT_EQ(cut.num_drafts(), 1);
  cut.Extend(1.0, 1.5);  // 0.45 more for nothing
  EXPECT_EQ(cut.num_drafts(), 3);
  EXPECT_DOUBLE_EQ(cut.tokens(), 2.8);
  EXPECT_DOUBLE_EQ(cut.cost(), 1.5);
  cut.Extend(0.0, 1.5);
  EXPECT_EQ(cut.num_drafts(), 3);
}

/// What the source expects of a first draft without a confidence.
double FirstChance(const DraftSource& source) {
  double chance = 0.0;
  source.FillChances({}, 0.0, {&chance, 1});
  return chance;
}

constexpr std::int32_t kMaxDrafts = 3;

TEST(DraftSource, LearnsFromTheTokensThatComeWhetherVerifiedOrNot) {
  DraftAcceptance experience(kMaxDrafts);
  DraftSource source(kMaxDrafts, experience);
  const std::vector<std::int32_t> drafts = {5, 6, 7};
  const double before = FirstChance(source);
  for (int i = 0; i < 10; ++i) {
    source.Propose({drafts, {}});
    source.Judge(std::vector<std::int32_t>{5}, true);  // a plain step
  }
  const double right = FirstChance(source);
  EXPECT_GT(right, before);
  EXPECT_GT(right, 0.9);
  for (int i = 0; i < 10; ++i) {
    source.Propose({drafts, {}});
    source.Judge(std::vector<std::int32_t>{6, 6, 7}, true);
  }
  EXPECT_LT(FirstChance(source), 0.5);
}

TEST(DraftSource, NothingIsLearntFromNothing) {
  DraftAcceptance experience(kMaxDrafts);
  DraftSource source(kMaxDrafts, experience);
  const double before = FirstChance(source);
  source.Judge(std::vector<std::int32_t>{5}, true);
  source.Propose({std::vector<std::int32_t>{5}, {}});
  source.Judge({}, true);
  EXPECT_EQ(FirstChance(source), before);
  EXPECT_EQ(experience.num_judged(), 0.0);
}

TEST(DraftSource, OthersBeginWithTheFirstBlocksThatAreShared) {
  for (bool shared : {false, true}) {
    DraftAcceptance experience(kMaxDrafts);
    DraftSource first(kMaxDrafts, experience);
    for (int i = 0; i < 20; ++i) {
      // Wrong at first, right later on.
      first.Propose({std::vector<std::int32_t>{i < 4 ? 1 : 2}, {}});
      first.Judge(std::vector<std::int32_t>{2}, shared);
    }
    EXPECT_GT(FirstChance(first), 0.8);
    const DraftSource second(kMaxDrafts, experience);
    const double unknown = 0.7;
    EXPECT_NEAR(FirstChance(second), shared ? unknown / 2 : unknown, 0.05);
  }
}

TEST(DraftSource, BlocksAreCutToTheMostDraftsAndConfidencesFilledUp) {
  DraftAcceptance experience(kMaxDrafts);
  DraftSource source(kMaxDrafts, experience);
  const std::vector<std::int32_t> five(5, 1);
  source.Propose({five, std::vector<float>(5, 1.0f)});
  EXPECT_EQ(source.num_drafts(), 3);
  EXPECT_EQ(source.confidence(), std::vector<float>(3, 1.0f));
  source.Propose({std::span(five).first(2), std::vector<float>(1, 1.0f)});
  ASSERT_EQ(source.confidence().size(), 2U);
  EXPECT_EQ(source.confidence()[0], 1.0f);
  EXPECT_TRUE(std::isnan(source.confidence()[1]));
  source.Propose({});
  EXPECT_EQ(source.num_drafts(), 0);
  EXPECT_EQ(source.BestCut(StepCosts(kMaxDrafts), 1.0).num_drafts(), 0);
}

}  // namespace
}  // namespace megalith::engine
