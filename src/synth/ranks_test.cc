// A model that can be shared out over up to 32 ranks, in every layout.

#include <gtest/gtest.h>

#include <mutex>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"
#include "exec/testing/schedules.h"
#include "model/config.h"
#include "synth/config_edit.h"
#include "synth/drafter.h"
#include "synth/plan.h"
#include "synth/presets.h"
#include "synth/write.h"
#include "tools/temp_dir.h"

namespace megalith::synth {
namespace {

using exec::testing::Answer;
using exec::testing::DraftRounds;
using exec::testing::ExecutorSpec;
using exec::testing::FeedInSteps;
using exec::testing::FirstDifference;
using exec::testing::RunDraftRounds;
using program::RankLayout;

/// 32 heads, and 32 panels of 16 of everything else that is shared out; the drafter has fewer key
/// heads than that.
const std::string& WideDirectory() {
  static const tools::TempDir temp;
  static const std::string directory = [] {
    ConfigEdits edits;
    edits.hidden_size = 512;
    edits.vocab_size = 512;
    edits.num_heads = 32;
    edits.head_dim = 16;
    edits.num_experts = 33;
    edits.num_experts_per_token = 4;
    edits.expert_width = 512;
    edits.latent_size = 512;
    edits.dense_width = 768;
    edits.layer_kinds = "KKM";
    const auto config = EditConfig(PresetConfig("k3-tiny").value_or(""), "k3-tiny", edits);
    EXPECT_TRUE(config) << (config ? "" : config.error().message);
    const auto model = model::ParseConfig(config.value_or(""));
    EXPECT_TRUE(model);
    const auto plan = PlanCheckpoint(config.value_or(""), {});
    const auto drafter_config = MakeDrafterConfig(model->model, {});
    EXPECT_TRUE(drafter_config) << (drafter_config ? "" : drafter_config.error().message);
    const auto drafter = PlanDrafter(drafter_config.value_or(""), model->model, {});
    std::string path = temp.File("wide");
    EXPECT_TRUE(plan && drafter && WriteCheckpoint(*plan, path, {}, &*drafter));
    return path;
  }();
  return directory;
}

ExecutorSpec Spec() {
  ExecutorSpec spec;
  spec.directory = WideDirectory();
  spec.drafter = WideDirectory() + "/dspark";
  spec.isa = kernels::SelectIsa().value();
  spec.max_drafts = 7;
  return spec;
}

void CompareOnRanks(std::int32_t num_ranks) {
  ExecutorSpec feeds = Spec();
  feeds.row_buckets = {1, 8, 64};
  ExecutorSpec drafts = Spec();
  drafts.row_buckets = {32};
  drafts.draft_runs = 2;
  drafts.num_drafts = 7;
  const std::vector<std::int32_t> tokens = exec::testing::RandomTokens(20, 512, 3);
  const auto alone = MakeExecutor(feeds);
  ASSERT_TRUE(alone) << alone.error().message;
  const auto fed = FeedInSteps(**alone, tokens);
  ASSERT_TRUE(fed) << fed.error().message;
  const auto alone_drafting = MakeExecutor(drafts);
  ASSERT_TRUE(alone_drafting) << alone_drafting.error().message;
  const auto drafted = RunDraftRounds(**alone_drafting);
  ASSERT_TRUE(drafted) << drafted.error().message;

  for (std::int32_t tensor = 1; tensor <= num_ranks; ++tensor) {
    if (num_ranks % tensor != 0) continue;
    const RankLayout layout{tensor, num_ranks / tensor};
    SCOPED_TRACE(fmt::format("{} x {}", layout.tensor_parallel, layout.expert_parallel));
    std::mutex mutex;
    feeds.ranks = drafts.ranks = layout;
    const Status same_fed =
        OnRanks(feeds, [&](exec::Executor& executor, std::int32_t rank) -> Status {
          MEGALITH_ASSIGN_OR_RETURN(const Answer have, FeedInSteps(executor, tokens));
          const std::lock_guard lock(mutex);
          EXPECT_EQ(FirstDifference(fed->logits, have.logits), "") << "rank " << rank;
          EXPECT_EQ(fed->state.cache, have.state.cache) << "rank " << rank;
          return {};
        });
    EXPECT_TRUE(same_fed) << same_fed.error().message;
    const Status same_drafted =
        OnRanks(drafts, [&](exec::Executor& executor, std::int32_t rank) -> Status {
          MEGALITH_ASSIGN_OR_RETURN(const DraftRounds have, RunDraftRounds(executor));
          const std::lock_guard lock(mutex);
          EXPECT_EQ(drafted->tokens, have.tokens) << "rank " << rank;
          EXPECT_EQ(drafted->confidence, have.confidence) << "rank " << rank;
          EXPECT_EQ(FirstDifference(drafted->logits, have.logits), "") << "rank " << rank;
          return {};
        });
    EXPECT_TRUE(same_drafted) << same_drafted.error().message;
  }
}

class ManyRanks : public testing::TestWithParam<std::int32_t> {};

TEST_P(ManyRanks, EveryLayoutGivesTheBitsOfOneRank) { CompareOnRanks(GetParam()); }

INSTANTIATE_TEST_SUITE_P(, ManyRanks, testing::Values(2, 3, 4, 5, 8, 16, 32));

}  // namespace
}  // namespace megalith::synth
