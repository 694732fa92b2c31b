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
  EXPECT_EQ(costs.Rows(0), 1.0);
  EXPECT_NEAR(costs.Rows(3), 1.45, tolerance);
  EXPECT_NEAR(costs.Rows(7), 2.05, tolerance);
  EXPECT_NEAR(costs.Drafting(7), 0.1, tolerance);
}

void RecordPlain(Machine& machine, StepCosts* costs, StepCosts::Waiting* waiting) {
  for (std::size_t i = 0; i < StepCosts::kPlainSteps; ++i) {
    costs->Record({0, 0}, machine.Seconds(0, 0), waiting);
  }
}

/// A try: asks for drafts, verifies some while it asks for more, verifies some, and measures.
void RecordTries(Machine& machine, int count, StepCosts* costs, StepCosts::Waiting* waiting) {
  for (int i = 0; i < count; ++i) {
    for (std::int32_t drafts : {3, 7}) {
      costs->Record({0, 7}, machine.Seconds(0, 7), waiting);
      costs->Record({drafts, 7}, machine.Seconds(drafts, 7), waiting);
      costs->Record({drafts, 0}, machine.Seconds(drafts, 0), waiting);
      RecordPlain(machine, costs, waiting);
    }
  }
}

TEST(StepCosts, RatiosAreLearntFromNoisySteps) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  RecordTries(machine, 20, &costs, &waiting);
  ExpectCosts(costs, 0.1);
}

TEST(StepCosts, AMachineThatSlowsDownChangesNothing) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  RecordTries(machine, 20, &costs, &waiting);
  // Twice as slow while one kind of step alone is run, and back.
  for (double factor : {2.0, 0.5}) {
    machine.level *= factor;
    for (int i = 0; i < 40; ++i) costs.Record({7, 7}, machine.Seconds(7, 7), &waiting);
    RecordPlain(machine, &costs, &waiting);
    ExpectCosts(costs, 0.1);
  }
}

// As measured where other guests share the cores: the speed moves by half from one step to the
// next few, and steps that follow one another are about equally slow.
TEST(StepCosts, AMachineWhoseSpeedWandersIsMeasured) {
  Machine machine;
  std::mt19937 random(7);
  std::normal_distribution<double> change(0.0, 0.1);
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  double speed = 0.0;
  const auto seconds = [&](std::int32_t drafts, std::int32_t requested) {
    speed = 0.95 * speed + change(random);
    return std::exp(speed) * machine.Seconds(drafts, requested);
  };
  for (int i = 0; i < 200; ++i) {
    const std::int32_t drafts = i % 2 == 0 ? 3 : 7;
    costs.Record({0, 7}, seconds(0, 7), &waiting);
    costs.Record({drafts, 7}, seconds(drafts, 7), &waiting);
    costs.Record({drafts, 0}, seconds(drafts, 0), &waiting);
    // Many plain steps, of which the first few count.
    for (int k = 0; k < 200; ++k) costs.Record({0, 0}, seconds(0, 0), &waiting);
    if (i >= 20) {
      ExpectCosts(costs, 0.5);
    }
  }
}

TEST(StepCosts, SequencesWithLevelsOfTheirOwnShareTheRatios) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Waiting short_context;
  StepCosts::Waiting long_context;
  for (int i = 0; i < 20; ++i) {
    machine.level = 0.02;
    RecordTries(machine, 1, &costs, &short_context);
    machine.level = 0.1;
    RecordTries(machine, 1, &costs, &long_context);
  }
  ExpectCosts(costs, 0.1);
}

TEST(StepCosts, ASlowAccidentChangesLittle) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  RecordTries(machine, 20, &costs, &waiting);
  const double cost = costs.Rows(7) + costs.Drafting(7);
  costs.Record({7, 7}, 10 * machine.Seconds(7, 7), &waiting);
  RecordPlain(machine, &costs, &waiting);
  EXPECT_NEAR(costs.Rows(7) + costs.Drafting(7), cost, 0.1);
  // Nor does one of the plain steps.
  costs.Record({7, 7}, machine.Seconds(7, 7), &waiting);
  for (int i = 0; i < 5; ++i) {
    costs.Record({0, 0}, (i == 3 ? 10 : 1) * machine.Seconds(0, 0), &waiting);
  }
  EXPECT_NEAR(costs.Rows(7) + costs.Drafting(7), cost, 0.1);
}

TEST(StepCosts, WhatIsSlowEveryTimeIsBelieved) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  RecordTries(machine, 5, &costs, &waiting);
  for (int i = 0; i < 12; ++i) {
    costs.Record({7, 0}, 4 * machine.level, &waiting);
    RecordPlain(machine, &costs, &waiting);
  }
  EXPECT_NEAR(costs.Rows(7), 4.0, 0.5);
}

// Rows and drafting that always come together are known as a sum only. An accident with one of them
// alone must not be put down to the part that is unknown.
TEST(StepCosts, WhatIsKnownAsASumIsNotTornApartByAnAccident) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  for (int i = 0; i < 100; ++i) {
    costs.Record({0, 7}, machine.Seconds(0, 7), &waiting);
    costs.Record({3, 0}, machine.Seconds(3, 0), &waiting);
    costs.Record({7, 7}, (i % 20 == 10 ? 10 : 1) * machine.Seconds(7, 7), &waiting);
    RecordPlain(machine, &costs, &waiting);
  }
  costs.Record({7, 0}, 10 * machine.Seconds(7, 0), &waiting);
  RecordPlain(machine, &costs, &waiting);
  ExpectCosts(costs, 0.3);
}

TEST(StepCosts, SmallChangesOfTheRatiosAreFollowed) {
  Machine machine;
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  RecordTries(machine, 500, &costs, &waiting);
  // Too little to be an accident, and only where there are seven drafts.
  for (int i = 0; i < 60; ++i) {
    costs.Record({7, 0}, 1.08 * machine.Seconds(7, 0), &waiting);
    RecordPlain(machine, &costs, &waiting);
  }
  EXPECT_NEAR(costs.Rows(7), 1.08 * 2.05, 0.08);
}

TEST(StepCosts, AnAccidentInTheFirstStepOfAKindIsSoonForgotten) {
  for (double factor : {1.0, 10.0}) {
    Machine machine;
    StepCosts costs(7);
    StepCosts::Waiting waiting;
    costs.Record({0, 7}, machine.Seconds(0, 7), &waiting);
    costs.Record({7, 7}, factor * machine.Seconds(7, 7), &waiting);
    costs.Record({7, 7}, machine.Seconds(7, 7), &waiting);
    costs.Record({7, 7}, machine.Seconds(7, 7), &waiting);
    RecordPlain(machine, &costs, &waiting);
    EXPECT_NEAR(costs.Rows(7) + costs.Drafting(7), 2.15, 0.4) << factor;
  }
}

TEST(StepCosts, ExpensiveDraftingIsLearntInAFewSteps) {
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  EXPECT_FALSE(costs.Knows(0, 7));
  EXPECT_TRUE(costs.Knows(0, 0));
  for (int i = 0; i < 2; ++i) costs.Record({0, 7}, 0.003, &waiting);
  for (int i = 0; i < 5; ++i) costs.Record({0, 0}, 0.001, &waiting);
  EXPECT_NEAR(costs.Drafting(7), 2.0, 0.5);
  EXPECT_TRUE(costs.Knows(0, 7));
  EXPECT_FALSE(costs.Knows(1, 7));
}

TEST(StepCosts, MoreRowsNeverCostLess) {
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  for (int i = 0; i < 10; ++i) {
    costs.Record({7, 7}, 0.001, &waiting);
    for (int k = 0; k < 5; ++k) costs.Record({0, 0}, 0.002, &waiting);
  }
  EXPECT_EQ(costs.Rows(7), 1.0);
  EXPECT_GE(costs.Drafting(7), 0.0);
}

TEST(StepCosts, KindsNeverSeenLieBetweenTheirNeighbours) {
  StepCosts costs(7);
  EXPECT_EQ(costs.Rows(0), 1.0);
  EXPECT_GT(costs.Rows(7), costs.Rows(1));
  EXPECT_EQ(costs.Drafting(0), 0.0);
  EXPECT_GT(costs.Drafting(1), 0.0);

  StepCosts::Waiting waiting;
  for (int i = 0; i < 20; ++i) {
    costs.Record({4, 0}, 1.8, &waiting);
    costs.Record({0, 4}, 1.4, &waiting);
    for (int k = 0; k < 5; ++k) costs.Record({0, 0}, 1.0, &waiting);
  }
  EXPECT_TRUE(costs.Knows(4, 4));
  EXPECT_FALSE(costs.Knows(2, 0));
  EXPECT_NEAR(costs.Rows(2), 1.2, 0.02);         // half of the half-way rise
  EXPECT_NEAR(costs.Rows(6), 1.8 * 1.06, 0.02);  // no neighbour above
  EXPECT_NEAR(costs.Drafting(2), 0.3, 0.02);     // three quarters
  EXPECT_NEAR(costs.Drafting(6), 0.4, 0.02);
}

// A step of eight sequences of which half verify four drafts each, and two request seven.
TEST(StepCosts, WhatSomeSequencesDoIsPutDownToThem) {
  StepCosts costs(7);
  StepCosts::Waiting waiting;
  const auto record = [&](const StepCosts::Kind& kind, double seconds) {
    costs.Record(kind, seconds, &waiting);
    for (int i = 0; i < 5; ++i) costs.Record({0, 0}, 1.0, &waiting);
  };
  for (int i = 0; i < 3; ++i) record({.num_drafts = 4, .verifying = 0.5}, 1.4);
  EXPECT_NEAR(costs.Rows(4), 1.8, 1e-9);
  for (int i = 0; i < 2; ++i) {
    record({.num_drafts = 4, .num_requested = 7, .verifying = 0.5, .requesting = 0.25}, 1.5);
  }
  EXPECT_NEAR(costs.Drafting(7), 0.4, 1e-9);
  // Too few to be told from noise.
  record({.num_drafts = 2, .verifying = 0.1}, 1.5);
  EXPECT_FALSE(costs.Knows(2, 0));
}

TEST(StepCosts, GuessesFromElsewhereAreForgottenWhenSomethingIsSeen) {
  Machine machine;
  StepCosts other(7);
  StepCosts::Waiting waiting;
  RecordTries(machine, 20, &other, &waiting);
  StepCosts costs(7);
  costs.GuessLike(other);
  EXPECT_EQ(costs.Rows(7), other.Rows(7));
  EXPECT_EQ(costs.Drafting(7), other.Drafting(7));
  EXPECT_FALSE(costs.Knows(7, 7));
  costs.Record({5, 0}, 6.0, &waiting);
  for (int k = 0; k < 5; ++k) costs.Record({0, 0}, 1.0, &waiting);
  EXPECT_NEAR(costs.Rows(5), 6.0, 1e-9);
  EXPECT_GT(costs.Rows(7), 6.0);
  costs.GuessLike(other);  // no more
  EXPECT_GT(costs.Rows(7), 6.0);
}

TEST(StepCosts, TimesThatAreNoTimesAreIgnored) {
  StepCosts costs(3);
  StepCosts::Waiting waiting;
  for (double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                         std::numeric_limits<double>::infinity()}) {
    costs.Record({3, 3}, seconds, &waiting);
    costs.Record({0, 0}, seconds, &waiting);
  }
  EXPECT_TRUE(waiting.steps.empty());
  costs.Record({3, 3}, 2.0, &waiting);
  for (int i = 0; i < 5; ++i) costs.Record({0, 0}, 0.0, &waiting);
  EXPECT_FALSE(costs.Knows(3, 3));
  EXPECT_EQ(costs.Rows(0), 1.0);
}

}  // namespace
}  // namespace megalith::engine
