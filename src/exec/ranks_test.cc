// One model over many ranks: every rank has the logits that one rank has, bit by bit, and its part
// of the state.

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <mutex>
#include <regex>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"
#include "exec/testing/schedules.h"

namespace megalith::exec::testing {
namespace {

using kernels::Isa;
using program::RankLayout;

std::string Directory(const std::string& model) {
  if (model == "k3-nano") return std::string(MEGALITH_SOURCE_DIR) + "/models/k3-nano";
  return std::string(MEGALITH_TEST_DATA) + "/golden/" + model;
}

ExecutorSpec Spec(const std::string& model) {
  ExecutorSpec spec;
  spec.directory = Directory(model);
  spec.row_buckets = {1, 8, 64};
  return spec;
}

/// Where the fast form is asked for, 64 and more of them come in one step.
std::vector<std::int32_t> Tokens(const ExecutorSpec& spec) {
  return RandomTokens(spec.fast_prefill ? 78 : 24, 384, 7);
}

/// Of one rank.
Answer Alone(const ExecutorSpec& spec) {
  auto executor = MakeExecutor(spec);
  if (!executor) {
    ADD_FAILURE() << executor.error().message;
    return {};
  }
  auto answer = FeedInSteps(**executor, Tokens(spec));
  if (!answer) ADD_FAILURE() << answer.error().message;
  return answer ? *std::move(answer) : Answer();
}

/// Whether `part` has what `whole` has of the heads [first, last) of `heads`, layer by layer.
template <typename T>
bool IsPartOf(const std::vector<T>& part, const std::vector<T>& whole, std::size_t layers,
              std::size_t heads, std::size_t first, std::size_t last) {
  const std::size_t per_head = whole.size() / layers / heads;
  const std::size_t own = (last - first) * per_head;
  if (part.size() != layers * own) return false;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto* have = part.data() + layer * own;
    const auto* want = whole.data() + (layer * heads + first) * per_head;
    if (!std::equal(have, have + own, want)) return false;
  }
  return true;
}

void ExpectSameOnRanks(ExecutorSpec spec, RankLayout layout, const Answer& want,
                       std::size_t heads) {
  spec.ranks = layout;
  const std::string what =
      fmt::format("{} x {}, {}", layout.tensor_parallel, layout.expert_parallel, Describe(spec));
  std::mutex mutex;
  const auto num_ranks = static_cast<std::size_t>(layout.NumRanks());
  const Status status = OnRanks(spec, [&](Executor& executor, std::int32_t rank) -> Status {
    MEGALITH_ASSIGN_OR_RETURN(const Answer have, FeedInSteps(executor, Tokens(spec)));
    const std::lock_guard lock(mutex);
    EXPECT_EQ(FirstDifference(want.logits, have.logits), "") << what << ", rank " << rank;
    EXPECT_EQ(have.state.cache, want.state.cache) << what << ", rank " << rank;
    const auto layers =
        static_cast<std::size_t>(executor.memory().program(0)->state.num_kda_layers);
    const std::size_t first = heads * static_cast<std::size_t>(rank) / num_ranks;
    const std::size_t last = heads * (static_cast<std::size_t>(rank) + 1) / num_ranks;
    EXPECT_TRUE(IsPartOf(have.state.kda, want.state.kda, layers, heads, first, last)) << what;
    EXPECT_TRUE(IsPartOf(have.state.conv, want.state.conv, layers, heads, first, last)) << what;
    return {};
  });
  EXPECT_TRUE(status) << what << ": " << status.error().message;
}

std::vector<RankLayout> LayoutsOf(std::int32_t num_ranks) {
  std::vector<RankLayout> layouts;
  for (std::int32_t tensor = 1; tensor <= num_ranks; ++tensor) {
    if (num_ranks % tensor == 0) layouts.push_back({tensor, num_ranks / tensor});
  }
  return layouts;
}

TEST(Ranks, EveryLayoutGivesTheBitsOfOneRank) {
  const std::vector<std::pair<std::string, std::int32_t>> models = {
      {"k3-unit", 4}, {"k3-odd", 3}, {"k3-realdims", 2}, {"k3-tiny", 4}, {"k3-nano", 4}};
  for (const auto& [model, heads] : models) {
    ExecutorSpec spec = Spec(model);
    spec.isa = kernels::SelectIsa().value();
    const Answer want = Alone(spec);
    for (std::int32_t num_ranks = 2; num_ranks <= heads; ++num_ranks) {
      for (const RankLayout layout : LayoutsOf(num_ranks)) {
        spec.num_workers = 1 + num_ranks % 3;
        ExpectSameOnRanks(spec, layout, want, static_cast<std::size_t>(heads));
      }
    }
  }
}

TEST(Ranks, EveryPathAndTheInterpreterGiveTheBitsOfOneRank) {
  std::vector<ExecutorSpec> specs;
  for (const Isa isa : kernels::SupportedIsas()) {
    specs.push_back(Spec("k3-tiny"));
    specs.back().isa = isa;
  }
  specs.push_back(Spec("k3-tiny"));
  specs.back().activation_dtype = DType::kF32;
  specs.push_back(Spec("k3-tiny"));
  specs.back().reference = true;
  specs.push_back(specs.back());
  specs.back().interleaving_seed = 5;
  specs.push_back(Spec("k3-tiny"));
  specs.back().dense = *program::ParseDenseFormats("int8,router=int8");
  specs.push_back(Spec("k3-tiny"));
  specs.back().fast_prefill = true;
  for (ExecutorSpec& spec : specs) {
    const Answer want = Alone(spec);
    spec.num_workers = 2;
    for (const RankLayout layout : {RankLayout{2, 1}, RankLayout{2, 2}, RankLayout{1, 3}}) {
      ExpectSameOnRanks(spec, layout, want, 4);
    }
  }
}

TEST(Ranks, DraftingGivesTheBitsOfOneRank) {
  ExecutorSpec spec = Spec("k3-tiny");
  spec.drafter = Directory("k3-tiny-dspark");
  spec.isa = kernels::SelectIsa().value();
  spec.row_buckets = {32};
  spec.max_drafts = 7;
  spec.draft_runs = 2;
  spec.num_drafts = 7;
  const auto alone = MakeExecutor(spec);
  ASSERT_TRUE(alone) << alone.error().message;
  const auto want = RunDraftRounds(**alone);
  ASSERT_TRUE(want) << want.error().message;
  spec.num_workers = 2;
  for (const RankLayout layout :
       {RankLayout{2, 1}, RankLayout{1, 2}, RankLayout{3, 1}, RankLayout{2, 2}, RankLayout{4, 1}}) {
    spec.ranks = layout;
    std::mutex mutex;
    const Status status = OnRanks(spec, [&](Executor& executor, std::int32_t rank) -> Status {
      MEGALITH_ASSIGN_OR_RETURN(const DraftRounds have, RunDraftRounds(executor));
      const std::lock_guard lock(mutex);
      EXPECT_EQ(have.tokens, want->tokens) << "rank " << rank << " of " << layout.NumRanks();
      EXPECT_EQ(have.confidence, want->confidence) << "rank " << rank;
      EXPECT_EQ(FirstDifference(want->logits, have.logits), "") << "rank " << rank;
      return {};
    });
    EXPECT_TRUE(status) << status.error().message;
  }
}

/// What each of two ranks says of a step in which worker 1 of rank 1 does not come back from visit
/// 1.
std::vector<std::string> ReportsOfAStall() {
  ExecutorSpec spec = Spec("k3-unit");
  spec.ranks = {2, 1};
  spec.num_workers = 2;
  spec.step_timeout_ms = 10'000;  // for all others to come to where they wait
  spec.instructed_rank = 1;
  std::latch both_reported(2);
  spec.before_instruction = [&](std::int32_t worker, std::int64_t visit, std::int64_t) {
    if (worker == 1 && visit == 1) both_reported.wait();
  };
  std::vector<std::string> reports(2);
  const Status status = OnRanks(spec, [&](Executor& executor, std::int32_t rank) -> Status {
    const exec::Run run{0, 0, 1};
    const std::int32_t token = 1;
    const auto output = executor.Step({{&run, 1}, {&token, 1}, {}});
    if (!output) reports[static_cast<std::size_t>(rank)] = output.error().message;
    both_reported.arrive_and_wait();
    return output ? Status() : Status(tl::unexpected(output.error()));
  });
  EXPECT_FALSE(status);
  return reports;
}

TEST(Ranks, AStalledRankIsReportedByItselfAndByThoseWhoWaitForIt) {
  const std::vector<std::string> reports = ReportsOfAStall();
  const auto expect = [&](std::size_t rank, const std::string& pattern) {
    EXPECT_TRUE(std::regex_search(reports[rank], std::regex(pattern))) << reports[rank];
  };
  for (const std::size_t rank : {0u, 1u}) expect(rank, "step not finished within 10000 ms");
  // What the other rank has not sent, and which part of which layer it is for.
  expect(0, R"(worker \d visit 1 \(\w+\) instruction \d+ \(exchange_receive\) )"
            R"(waits for rank 1 to publish [1-9]\d* of mailbox 0)");
  // The stalled rank says where, and what its other worker misses.
  expect(1, R"(worker 1 visit 1 \(\w+\) instruction \d+ \(\w+\) running)");
  expect(1, R"(worker 0 visit 1 .* waits for counter \S+, have \d+, want \d+)");
}

}  // namespace
}  // namespace megalith::exec::testing
