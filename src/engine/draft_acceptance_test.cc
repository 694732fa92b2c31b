#include "engine/draft_acceptance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace megalith::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<double> Chances(const DraftAcceptance& acceptance, std::size_t count,
                            const std::vector<float>& confidence = {}) {
  std::vector<double> chances(count, -1.0);
  acceptance.Chances(confidence, chances);
  for (double chance : chances) {
    EXPECT_GE(chance, 0.0);
    EXPECT_LE(chance, 1.0);
  }
  return chances;
}

TEST(DraftAcceptance, PositionsAreLearntApart) {
  DraftAcceptance acceptance(3);
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const bool first = random() % 10 < 8;
    const bool second = first && random() % 10 < 3;
    acceptance.Record({}, 2, first ? (second ? 2 : 1) : 0);
  }
  const auto chances = Chances(acceptance, 3);
  EXPECT_NEAR(chances[0], 0.8, 0.15);
  EXPECT_NEAR(chances[1], 0.3, 0.15);
  EXPECT_EQ(chances[2], chances[1]);  // never verified: as good as the one before
}

TEST(DraftAcceptance, RejectionSaysNothingAboutTheDraftsBehindIt) {
  DraftAcceptance acceptance(4);
  acceptance.Record({}, 4, 1);
  acceptance.Record({}, 4, 4);
  DraftAcceptance shorter(4);
  shorter.Record({}, 2, 1);
  shorter.Record({}, 4, 4);
  EXPECT_EQ(Chances(acceptance, 4), Chances(shorter, 4));
}

TEST(DraftAcceptance, RoundsWithoutDraftsChangeNothing) {
  DraftAcceptance acceptance(2);
  for (int i = 0; i < 20; ++i) acceptance.Record({}, 2, 0);
  const auto before = Chances(acceptance, 2);
  for (int i = 0; i < 1000; ++i) acceptance.Record({}, 0, 0);
  EXPECT_EQ(Chances(acceptance, 2), before);
  EXPECT_LT(before[0], 0.1);
}

TEST(DraftAcceptance, ConfidenceIsTrustedUntilItIsSeenToBeWrong) {
  DraftAcceptance acceptance(2);
  const std::vector<float> confidence = {2.5f, -1.5f};
  auto chances = Chances(acceptance, 2, confidence);
  EXPECT_NEAR(chances[0], 0.924, 0.05);
  EXPECT_NEAR(chances[1], 0.182, 0.1);
  // Confident drafts fail half of the time, doubtful ones never.
  for (int round = 0; round < 200; ++round) {
    acceptance.Record(std::vector<float>{2.5f}, 1, round % 2);
    acceptance.Record(std::vector<float>{-1.5f}, 1, 1);
  }
  chances = Chances(acceptance, 2, confidence);
  EXPECT_NEAR(chances[0], 0.5, 0.1);
  EXPECT_NEAR(chances[1], 1.0, 0.1);
}

TEST(DraftAcceptance, ConfidencesThatTellNothingGiveWayToThePosition) {
  DraftAcceptance acceptance(2);
  std::mt19937 random(4);
  const auto confidence = [&] { return static_cast<float>(random() % 600) / 100.0f - 3.0f; };
  for (int round = 0; round < 500; ++round) {
    const bool first = random() % 10 < 3;
    const bool second = first && random() % 100 < 95;
    acceptance.Record(std::vector<float>{confidence(), confidence()}, 2, first ? 1 + second : 0);
  }
  for (float z : {-2.5f, -0.5f, 0.5f, 2.5f}) {
    const auto chances = Chances(acceptance, 2, {z, z});
    EXPECT_NEAR(chances[0], 0.3, 0.2) << z;
    EXPECT_NEAR(chances[1], 0.95, 0.2) << z;
  }
}

TEST(DraftAcceptance, AbsentConfidencesFallBackToThePosition) {
  DraftAcceptance acceptance(3);
  for (int i = 0; i < 50; ++i) acceptance.Record(std::vector<float>{kNan, 3.0f}, 3, 0);
  const auto by_position = Chances(acceptance, 3);
  EXPECT_EQ(Chances(acceptance, 3, {kNan}), by_position);
  EXPECT_EQ(Chances(acceptance, 3, {kNan, kNan, kNan, 1.0f, 2.0f}), by_position);
  const auto mixed = Chances(acceptance, 3, {kNan, 3.0f});
  EXPECT_EQ(mixed[0], by_position[0]);
  EXPECT_GT(mixed[1], 0.8);
  EXPECT_EQ(mixed[2], by_position[2]);
}

TEST(DraftAcceptance, EveryFloatIsAConfidence) {
  DraftAcceptance acceptance(2);
  for (float z : {kInfinity, -kInfinity, 3e38f, -3e38f, 0.0f, -0.0f, 1e-45f}) {
    Chances(acceptance, 2, {z, z});
    acceptance.Record(std::vector<float>{z, z}, 2, 1);
    Chances(acceptance, 2, {z, z});
  }
}

TEST(DraftAcceptance, ARunThatWasUnlikelyIsNoticed) {
  DraftAcceptance acceptance(2);
  for (int i = 0; i < 200; ++i) acceptance.Record({}, 2, i % 10 == 0 ? 0 : 2);
  EXPECT_GT(Chances(acceptance, 1)[0], 0.8);
  int rounds = 0;
  for (; Chances(acceptance, 1)[0] > 0.25; ++rounds) acceptance.Record({}, 2, 0);
  EXPECT_LE(rounds, 12);  // fading alone takes 60
  for (int i = 0; i < 100; ++i) acceptance.Record({}, 2, 0);
  rounds = 0;
  for (; Chances(acceptance, 1)[0] < 0.7; ++rounds) acceptance.Record({}, 2, 2);
  EXPECT_LE(rounds, 12);
}

TEST(DraftAcceptance, AfterDoubtAFewDraftsDecide) {
  DraftAcceptance acceptance(1);
  for (int i = 0; i < 200; ++i) acceptance.Record(std::vector<float>{0.5f}, 1, 0);
  EXPECT_LT(Chances(acceptance, 1)[0], 0.05);
  EXPECT_LT(Chances(acceptance, 1, {0.5f})[0], 0.05);
  acceptance.Doubt();
  for (int i = 0; i < 2; ++i) acceptance.Record(std::vector<float>{0.5f}, 1, 1);
  EXPECT_GT(Chances(acceptance, 1)[0], 0.5);
  EXPECT_GT(Chances(acceptance, 1, {0.5f})[0], 0.5);
}

}  // namespace
}  // namespace megalith::engine
