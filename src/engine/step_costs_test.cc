#include "engine/step_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace megalith::engine {
namespace {

/// A machine whose steps take `level` * (1 + 0.15 v + 0.1 if they draft) seconds, with 4 % noise.
class Machine {
 public:
  double Seconds(std::int32_t num_drafts, std::int32_t num_requested) {
    const double exact = 1.0 + 0.15 * num_drafts + (num_requested > 0 ? 0.1 : 0.0);
    return level * exact * std::exp(noise_(random_));
  }
  double level = 0.02;

 private:
  std::mt19937 random_{11};
  std::normal_distribution<double> noise_{0.0, 0.04};
};

void ExpectCosts(const StepCosts& costs, double tolerance) {
  EXPECT_NEAR(costs.Rows(3) / costs.Rows(0), 1.45, tolerance);
  EXPECT_NEAR(costs.Rows(7) / costs.Rows(0), 2.05, tolerance);
  EXPECT_NEAR(costs.Drafting(7) / costs.Rows(0), 0.1, tolerance);
}

void RecordMixed(Machine& machine, int rounds, StepCosts* costs, StepCosts::Level* level) {
  for (int i = 0; i < rounds; ++i) {
    for (std::int32_t drafts : {0, 3, 7}) {
      for (std::int32_t requested : {0, 7}) {
        costs->Record(drafts, requested, machine.Seconds(drafts, requested), level);
      }
    }
  }
}

TEST(StepCosts, RatiosAreLearntFromNoisySteps) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Level level;
  RecordMixed(machine, 20, &costs, &level);
  ExpectCosts(costs, 0.1);
  EXPECT_NEAR(std::exp(level.log_seconds) * costs.Rows(0) / machine.level, 1.0, 0.05);
}

TEST(StepCosts, AMachineThatSlowsDownMovesTheLevelOnly) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Level level;
  RecordMixed(machine, 20, &costs, &level);
  // Twice as slow while one kind of step alone is run, and back.
  for (double factor : {2.0, 0.5}) {
    machine.level *= factor;
    for (int i = 0; i < 40; ++i) costs.Record(7, 7, machine.Seconds(7, 7), &level);
    EXPECT_NEAR(std::exp(level.log_seconds) * costs.Rows(0) / machine.level, 1.0, 0.15) << factor;
    ExpectCosts(costs, 0.2);
  }
}

TEST(StepCosts, SequencesWithLevelsOfTheirOwnShareTheRatios) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Level short_context;
  StepCosts::Level long_context;
  for (int i = 0; i < 20; ++i) {
    machine.level = 0.02;
    RecordMixed(machine, 1, &costs, &short_context);
    machine.level = 0.1;
    RecordMixed(machine, 1, &costs, &long_context);
  }
  ExpectCosts(costs, 0.1);
  EXPECT_NEAR(long_context.log_seconds - short_context.log_seconds, std::log(5.0), 0.15);
}

TEST(StepCosts, ASlowAccidentChangesNothing) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Level level;
  RecordMixed(machine, 5, &costs, &level);
  const double rows = costs.Rows(7);
  const double drafting = costs.Drafting(7);
  const double log_seconds = level.log_seconds;
  costs.Record(7, 7, 10 * machine.Seconds(7, 7), &level);
  EXPECT_EQ(costs.Rows(7), rows);
  EXPECT_EQ(costs.Drafting(7), drafting);
  EXPECT_EQ(level.log_seconds, log_seconds);
}

TEST(StepCosts, WhatIsSlowEveryTimeIsBelieved) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Level level;
  RecordMixed(machine, 5, &costs, &level);
  for (int i = 0; i < 10; ++i) {
    costs.Record(0, 0, machine.Seconds(0, 0), &level);
    costs.Record(5, 0, 4 * machine.level, &level);
  }
  EXPECT_NEAR(costs.Rows(5) / costs.Rows(0), 4.0, 0.5);
  EXPECT_NEAR(costs.Rows(7) / costs.Rows(0), 2.05, 0.1);
}

// Rows and drafting that always come together are known as a sum only. An accident with one of them
// alone must not be put down to the part that is unknown.
TEST(StepCosts, WhatIsKnownAsASumIsNotTornApartByAnAccident) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Level level;
  for (int i = 0; i < 3; ++i) costs.Record(0, 0, machine.Seconds(0, 0), &level);
  costs.Record(0, 7, machine.Seconds(0, 7), &level);
  for (int i = 0; i < 200; ++i) {
    costs.Record(7, 7, (i % 20 == 10 ? 10 : 1) * machine.Seconds(7, 7), &level);
  }
  costs.Record(7, 0, 10 * machine.Seconds(7, 0), &level);
  ExpectCosts(costs, 0.3);
}

TEST(StepCosts, SmallChangesOfTheRatiosAreFollowed) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Level level;
  RecordMixed(machine, 500, &costs, &level);
  // Too little to be an accident, and only where there are seven drafts.
  for (int i = 0; i < 60; ++i) {
    costs.Record(0, 0, machine.Seconds(0, 0), &level);
    costs.Record(7, 0, 1.08 * machine.Seconds(7, 0), &level);
  }
  EXPECT_NEAR(costs.Rows(7) / costs.Rows(0), 1.08 * 2.05, 0.08);
}

TEST(StepCosts, AnAccidentInTheFirstStepOfAKindIsSoonForgotten) {
  for (double factor : {1.0, 10.0}) {
    Machine machine;
    StepCosts costs(7);
    StepCosts::Level level;
    costs.Record(0, 0, factor * machine.Seconds(0, 0), &level);
    for (int i = 0; i < 2; ++i) costs.Record(0, 0, machine.Seconds(0, 0), &level);
    EXPECT_NEAR(std::exp(level.log_seconds) * costs.Rows(0) / machine.level, 1.0, 0.15) << factor;
    costs.Record(0, 7, machine.Seconds(0, 7), &level);
    costs.Record(7, 7, factor * machine.Seconds(7, 7), &level);
    costs.Record(7, 7, machine.Seconds(7, 7), &level);
    costs.Record(7, 7, machine.Seconds(7, 7), &level);
    EXPECT_NEAR((costs.Rows(7) + costs.Drafting(7)) / costs.Rows(0), 2.15, 0.4) << factor;
  }
}

TEST(StepCosts, ExpensiveDraftingIsLearntInAFewSteps) {
  StepCosts costs(7);
  StepCosts::Level level;
  for (int i = 0; i < 2; ++i) costs.Record(0, 0, 0.001, &level);
  for (int i = 0; i < 2; ++i) costs.Record(0, 7, 0.003, &level);
  EXPECT_NEAR(costs.Drafting(7) / costs.Rows(0), 2.0, 0.5);
}

TEST(StepCosts, KindsNeverSeenLieBetweenTheirNeighbours) {
  StepCosts costs(7);
  EXPECT_EQ(costs.Rows(0), 1.0);
  EXPECT_GT(costs.Rows(7), costs.Rows(1));
  EXPECT_EQ(costs.Drafting(0), 0.0);
  EXPECT_GT(costs.Drafting(1), 0.0);
  EXPECT_FALSE(costs.KnowsRows(0));

  StepCosts::Level level;
  for (int i = 0; i < 20; ++i) {
    costs.Record(0, 0, 1.0, &level);
    costs.Record(4, 0, 1.8, &level);
    costs.Record(0, 4, 1.4, &level);
  }
  EXPECT_TRUE(costs.KnowsRows(4));
  EXPECT_FALSE(costs.KnowsRows(2));
  const double plain = costs.Rows(0);
  EXPECT_NEAR(costs.Rows(2) / plain, 1.2, 0.02);         // half of the half-way rise
  EXPECT_NEAR(costs.Rows(6) / plain, 1.8 * 1.06, 0.02);  // no neighbour above
  EXPECT_NEAR(costs.Drafting(2) / plain, 0.3, 0.02);     // three quarters
  EXPECT_NEAR(costs.Drafting(6) / plain, 0.4, 0.02);
}

TEST(StepCosts, TimesThatAreNoTimesAreIgnored) {
  StepCosts costs(3);
  StepCosts::Level level;
  for (double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::infinity()}) {
    costs.Record(0, 0, seconds, &level);
    costs.Record(3, 3, seconds, &level);
  }
  EXPECT_LT(level.variance, 0.0);
  EXPECT_FALSE(costs.KnowsRows(0));
  EXPECT_EQ(costs.Rows(0), 1.0);
}

}  // namespace
}  // namespace megalith::engine
