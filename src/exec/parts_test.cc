// The small parts executors are made of.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "exec/counter_targets.h"
#include "exec/cpu/futex.h"
#include "exec/cpu/prefetch_queue.h"
#include "exec/cpu/scratch.h"
#include "exec/route_plan.h"
#include "kernels/kernel_table.h"

namespace megalith::exec {
namespace {

// ---- route plan ---------------------------------------------------------------------------------

TEST(RoutePlan, ListsRowsOfEveryActiveExpertAscending) {
  constexpr std::int64_t kExperts = 6;
  constexpr std::int64_t kTopK = 2;
  // Three rows; ids in rows of stride 4.
  const std::int32_t ids[] = {1, 4, -7, -7, 0, 4, -7, -7, 4, 5, -7, -7};
  const float weights[] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
  const std::int64_t columns = program::PlanColumns(kExperts, 8 * kTopK);
  std::vector<std::int32_t> data(static_cast<std::size_t>(columns), -1);
  RoutePlan plan = RoutePlan::FromColumns(data.data(), kExperts, columns);
  ASSERT_EQ(plan.Build(ids, 4, weights, 2, 3, kTopK), 4);
  const std::int32_t experts[] = {0, 1, 4, 5};
  const std::vector<std::int32_t> rows[] = {{1}, {0}, {0, 1, 2}, {2}};
  const std::vector<float> want_weights[] = {{0.3f}, {0.1f}, {0.2f, 0.4f, 0.5f}, {0.6f}};
  std::int32_t first_pair = 0;
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.Expert(i), experts[i]);
    EXPECT_EQ(plan.FirstPair(i), first_pair);
    const std::int32_t pairs = plan.NumPairs(i);
    EXPECT_EQ(std::vector(plan.Rows(i), plan.Rows(i) + pairs), rows[i]);
    EXPECT_EQ(std::vector(plan.Weights(i), plan.Weights(i) + pairs), want_weights[i]);
    first_pair += pairs;
  }
  EXPECT_EQ(first_pair, 6);
}

TEST(RoutePlan, EveryExpertActiveFillsTheTables) {
  const std::int32_t ids[] = {0, 1, 2, 0, 1, 2};
  const float weights[6] = {};
  std::vector<std::int32_t> data(static_cast<std::size_t>(program::PlanColumns(3, 6)));
  RoutePlan plan(data.data(), 3, 6);
  ASSERT_EQ(plan.Build(ids, 3, weights, 3, 2, 3), 3);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(plan.NumPairs(i), 2);
}

TEST(RoutePlan, ExpertOutOfRangeIsReported) {
  const float weights[2] = {};
  std::vector<std::int32_t> data(static_cast<std::size_t>(program::PlanColumns(3, 2)));
  RoutePlan plan(data.data(), 3, 2);
  for (const std::int32_t bad : {-1, 3}) {
    const std::int32_t ids[] = {0, bad};
    EXPECT_EQ(plan.Build(ids, 2, weights, 2, 1, 2), -1);
  }
}

// ---- counter targets ----------------------------------------------------------------------------

/// Visits: embedding (segment 0), layers (1, 1), head (2); two workers.
program::Program CountedProgram() {
  using program::CounterScope;
  program::Program program;
  program.num_workers = 2;
  program.segments.resize(3);
  program.counters = {{"start", CounterScope::kHost, program::kNone, 1},
                      {"done", CounterScope::kDone, program::kNone, 2},
                      {"hand_over", CounterScope::kProgram, program::kNone, 2},
                      {"layer", CounterScope::kSegment, 1, 3}};
  program.visits.resize(4);
  const std::uint32_t segments[] = {0, 1, 1, 2};
  const std::int32_t ordinals[] = {0, 0, 1, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    program.visits[i].segment = segments[i];
    program.visits[i].ordinal = ordinals[i];
  }
  return program;
}

std::int64_t Target(const program::Program& program, std::uint32_t counter, std::int32_t amount,
                    std::int64_t visit, std::int64_t epoch) {
  program::Instruction wait;
  wait.wait_counter = counter;
  wait.wait_amount = amount;
  return CounterTargets(program).Wait(wait, visit, epoch);
}

TEST(CounterTargets, GrowByEverySignalOfTheStepsBefore) {
  const program::Program program = CountedProgram();
  // The host has signalled once for every step begun.
  EXPECT_EQ(Target(program, 0, 1, 0, 0), 1);
  EXPECT_EQ(Target(program, 0, 1, 0, 5), 6);
  // Layer hand-over: all visits before this one, of this and all earlier steps.
  EXPECT_EQ(Target(program, 2, 2, 0, 0), 0);
  EXPECT_EQ(Target(program, 2, 2, 1, 0), 2);
  EXPECT_EQ(Target(program, 2, 2, 3, 0), 6);
  EXPECT_EQ(Target(program, 2, 2, 0, 1), 8);
  EXPECT_EQ(Target(program, 2, 2, 3, 2), 22);
  // Within a segment: earlier visits of it, and this visit's own signals.
  EXPECT_EQ(Target(program, 3, 3, 1, 0), 3);
  EXPECT_EQ(Target(program, 3, 3, 2, 0), 6);
  EXPECT_EQ(Target(program, 3, 2, 1, 1), 8);
  const CounterTargets targets(program);
  EXPECT_EQ(targets.done_counter(), 1U);
  EXPECT_EQ(targets.Done(0), 2);
  EXPECT_EQ(targets.Done(4), 10);
  EXPECT_EQ(targets.host_counters(), std::vector<std::uint32_t>{0});
}

// ---- prefetch queue -----------------------------------------------------------------------------

TEST(PrefetchQueue, DrainEndsAfterAllLines) {
  std::vector<std::byte> memory(1000);
  cpu::PrefetchQueue queue;
  EXPECT_FALSE(queue.Drain());
  queue.Push(memory.data(), 640);  // 10 lines
  queue.Push(memory.data() + 640, 64);
  int turns = 0;
  while (queue.Drain()) ++turns;
  EXPECT_EQ(turns, 4);  // 4 + 4 + 2 lines, then 1
  EXPECT_EQ(queue.size(), 2U);
}

TEST(PrefetchQueue, ConsumingDropsTheTileAndAllBefore) {
  std::vector<std::byte> memory(1000);
  cpu::PrefetchQueue queue;
  for (std::size_t i = 0; i < 3; ++i) queue.Push(memory.data() + 256 * i, 256);
  EXPECT_TRUE(queue.Drain());
  queue.Consume(memory.data() + 999);  // unknown: nothing happens
  EXPECT_EQ(queue.size(), 3U);
  queue.Consume(memory.data() + 256);
  EXPECT_EQ(queue.size(), 1U);
  EXPECT_TRUE(queue.Drain());
  EXPECT_FALSE(queue.Drain());
  queue.Consume(memory.data() + 512);
  EXPECT_EQ(queue.size(), 0U);
}

TEST(PrefetchQueue, FullQueueForgetsNewRequests) {
  std::vector<std::byte> memory(4096);
  cpu::PrefetchQueue queue;
  for (std::size_t i = 0; i < 64; ++i) queue.Push(memory.data() + 64 * i, 64);
  EXPECT_EQ(queue.size(), 32U);
  queue.Consume(memory.data() + 64 * 31);
  EXPECT_EQ(queue.size(), 0U);
  queue.Push(memory.data(), 64);
  EXPECT_TRUE(queue.Drain());
}

// ---- scratch ------------------------------------------------------------------------------------

TEST(Scratch, GroupsFitTheirBudgets) {
  for (const std::int64_t rows : {1, 2, 8, 9, 64, 256, 1000}) {
    for (const std::int64_t unit : {1, 2}) {
      const std::int64_t panels = cpu::Scratch::GroupPanels(rows, unit);
      EXPECT_GE(panels, unit);
      EXPECT_EQ(panels % unit, 0);
      if (panels == unit) continue;
      EXPECT_LE(rows * panels * kernels::kPanelOutputs, cpu::Scratch::kAccFloats);
    }
  }
}

// ---- wake word ----------------------------------------------------------------------------------

TEST(WakeWord, SleeperIsWoken) {
  for (int round = 0; round < 50; ++round) {
    cpu::WakeWord word;
    const std::uint32_t seen = word.Load();
    std::thread sleeper([&] {
      while (word.Load() == seen) word.Sleep(seen, -1);
    });
    word.Raise();
    sleeper.join();
    EXPECT_EQ(word.Load(), seen + 1);
  }
}

TEST(WakeWord, SleepEndsAtItsTimeLimit) {
  cpu::WakeWord word;
  word.Sleep(word.Load(), 1'000'000);
  word.Sleep(word.Load() + 1, -1);  // another word is there already
}

}  // namespace
}  // namespace megalith::exec
