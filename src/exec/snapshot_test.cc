// A sequence that goes on from a snapshot is, bit by bit, the one whose tokens were run there.

#include "exec/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"

namespace megalith::exec::testing {
namespace {

constexpr std::int32_t kVocabSize = 512;
constexpr std::int32_t kNumDrafts = 3;

ExecutorSpec Spec(bool reference) {
  ExecutorSpec spec;
  spec.directory = MEGALITH_TEST_DATA "/golden/k3-tiny";
  spec.drafter = MEGALITH_TEST_DATA "/golden/k3-tiny-dspark";
  spec.reference = reference;
  spec.isa = kernels::SelectIsa().value();
  spec.numerics = kernels::NumericsOf(spec.isa);
  spec.num_workers = 2;
  spec.num_slots = 3;
  spec.page_tokens = 8;
  spec.row_buckets = {32};
  spec.max_drafts = kNumDrafts;
  spec.draft_runs = 3;
  spec.num_drafts = kNumDrafts;
  return spec;
}

/// The state and what the drafter proposes next, after `tokens` more.
struct Outcome {
  LogitRows logits;
  SequenceState state;
  std::vector<std::int32_t> drafts;
};

Outcome GoOn(Executor& executor, std::int32_t slot, std::span<const std::int32_t> tokens) {
  Outcome outcome;
  const std::int32_t length = executor.memory().sequences().Length(slot);
  const auto all_but_last = tokens.first(tokens.size() - 1);
  if (!all_but_last.empty()) {
    outcome.logits = Feed(executor, slot, all_but_last, 5, length).value();
  }
  exec::Run run{slot, executor.memory().sequences().Length(slot), 1};
  run.wants_token = true;
  run.next_drafts = kNumDrafts;
  const auto step = executor.Step({{&run, 1}, tokens.last(1), {}}).value();
  const auto row = step.Row(step.runs()[0].first_logit_row);
  outcome.logits.emplace_back(row.begin(), row.end());
  outcome.drafts.assign(step.runs()[0].drafts.begin(), step.runs()[0].drafts.end());
  outcome.state = ReadState(executor, slot);
  return outcome;
}

void ExpectSame(const Outcome& have, const Outcome& want) {
  EXPECT_EQ(FirstDifference(want.logits, have.logits), "");
  EXPECT_TRUE(have.state == want.state);
  EXPECT_EQ(have.drafts, want.drafts);
}

class SnapshotTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Executor> executor_ = MakeExecutor(Spec(GetParam())).value();
  const std::vector<std::int32_t> prompt_ = RandomTokens(21, kVocabSize, 1);
  const std::vector<std::int32_t> first_ = RandomTokens(13, kVocabSize, 2);
  const std::vector<std::int32_t> second_ = RandomTokens(13, kVocabSize, 3);

  /// prompt_ and then `tokens`, in a slot of its own from the beginning.
  Outcome Cold(std::span<const std::int32_t> tokens) {
    EXPECT_TRUE(executor_->ReleaseSlot(2));
    EXPECT_TRUE(Feed(*executor_, 2, prompt_, 32));
    return GoOn(*executor_, 2, tokens);
  }
};

TEST_P(SnapshotTest, EverySequenceThatGoesOnIsWhatItIsWithoutSnapshots) {
  ASSERT_TRUE(Feed(*executor_, 0, prompt_, 7));
  const auto snapshot = executor_->Save(0).value();
  EXPECT_EQ(snapshot->length(), 21);
  // The sequence it was taken of, and two others that go on from it, in turn.
  const Outcome original = GoOn(*executor_, 0, first_);
  ASSERT_TRUE(executor_->Restore(*snapshot, 1));
  const Outcome restored = GoOn(*executor_, 1, second_);
  ASSERT_TRUE(executor_->Restore(*snapshot, 0));
  const Outcome again = GoOn(*executor_, 0, first_);
  ExpectSame(original, Cold(first_));
  ExpectSame(restored, Cold(second_));
  ExpectSame(again, Cold(first_));
}

TEST_P(SnapshotTest, OutlivesItsSequenceAndItsSlotsNextOne) {
  ASSERT_TRUE(Feed(*executor_, 0, prompt_, 32));
  const auto snapshot = executor_->Save(0).value();
  ASSERT_TRUE(Feed(*executor_, 0, second_, 32));
  ASSERT_TRUE(executor_->ReleaseSlot(0));
  ASSERT_TRUE(Feed(*executor_, 1, first_, 32));
  ASSERT_TRUE(executor_->Restore(*snapshot, 0));
  ExpectSame(GoOn(*executor_, 0, second_), Cold(second_));
}

TEST_P(SnapshotTest, OfALengthThatWasReachedByDraftsHoldsThatLengthsState) {
  ASSERT_TRUE(Feed(*executor_, 0, prompt_, 32));
  // The first two drafts are what the model chooses, the third is not.
  std::vector<std::int32_t> chosen;
  std::vector<std::int32_t> rows = {first_[0]};
  for (int i = 0; i < 3; ++i) {
    exec::Run run{1, 0, 1};
    ASSERT_TRUE(executor_->ReleaseSlot(1));
    std::vector<std::int32_t> text = prompt_;
    text.push_back(first_[0]);
    text.insert(text.end(), chosen.begin(), chosen.end());
    run.count = static_cast<std::int32_t>(text.size());
    run.wants_token = true;
    chosen.push_back(executor_->Step({{&run, 1}, text, {}})->runs()[0].tokens[0]);
  }
  rows.insert(rows.end(), chosen.begin(), chosen.end());
  rows.back() = (rows.back() + 1) % kVocabSize;
  exec::Run run{0, 21, 4};
  run.num_drafts = 3;
  run.wants_token = true;
  ASSERT_EQ(executor_->Step({{&run, 1}, rows, {}})->runs()[0].num_accepted, 2);
  const auto snapshot = executor_->Save(0).value();
  EXPECT_EQ(snapshot->length(), 24);
  EXPECT_FALSE(executor_->Truncate(0, 23)) << "the snapshot needs what would be overwritten";
  ASSERT_TRUE(executor_->Restore(*snapshot, 1));
  const Outcome restored = GoOn(*executor_, 1, second_);
  std::vector<std::int32_t> all(rows.begin(), rows.end() - 1);
  all.insert(all.end(), second_.begin(), second_.end());
  const Outcome cold = Cold(all);
  EXPECT_TRUE(restored.state == cold.state);
  EXPECT_EQ(restored.drafts, cold.drafts);
}

TEST_P(SnapshotTest, ContentsMakeAnEqualOne) {
  ASSERT_TRUE(Feed(*executor_, 0, prompt_, 32));
  const auto snapshot = executor_->Save(0).value();
  const auto other = MakeExecutor(Spec(GetParam())).value();
  const auto copy = other->NewSnapshot(snapshot->length()).value();
  const auto from = snapshot->Contents();
  const auto to = copy->MutableContents();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].size(), to[i].size());
    std::copy(from[i].begin(), from[i].end(), to[i].begin());
  }
  ASSERT_TRUE(other->Restore(*copy, 1));
  ExpectSame(GoOn(*other, 1, second_), Cold(second_));
}

TEST_P(SnapshotTest, PagesComeBackWithTheLastHolder) {
  const std::int32_t all = executor_->memory().sequences().num_free_pages();
  {
    ASSERT_TRUE(Feed(*executor_, 0, prompt_, 32));
    const auto snapshot = executor_->Save(0).value();
    EXPECT_EQ(snapshot->pages().size(), 3U);
    EXPECT_GT(snapshot->copied_bytes(), 0);
    ASSERT_TRUE(executor_->Restore(*snapshot, 1));
    EXPECT_EQ(executor_->memory().sequences().num_free_pages(), all - 4);  // the last one twice
    ASSERT_TRUE(executor_->ReleaseSlot(0));
    ASSERT_TRUE(executor_->ReleaseSlot(1));
    EXPECT_EQ(executor_->memory().sequences().num_free_pages(), all - 3);
  }
  EXPECT_EQ(executor_->memory().sequences().num_free_pages(), all);
}

TEST_P(SnapshotTest, WhatCannotBeIsRefused) {
  EXPECT_FALSE(executor_->Save(0)) << "no sequence";
  EXPECT_FALSE(executor_->Save(3)) << "no slot";
  EXPECT_FALSE(executor_->NewSnapshot(0));
  EXPECT_FALSE(executor_->NewSnapshot(257));
  const auto most = executor_->NewSnapshot(256).value();
  EXPECT_FALSE(executor_->Restore(*most, 3));
  const auto second = executor_->NewSnapshot(256).value();
  const auto third = executor_->NewSnapshot(256).value();
  const auto none_left = executor_->NewSnapshot(1);
  ASSERT_FALSE(none_left);
  EXPECT_EQ(none_left.error().code, ErrorCode::kOutOfMemory);
}

INSTANTIATE_TEST_SUITE_P(Each, SnapshotTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "interpreter" : "engine"; });

class AdjustmentTest : public ::testing::TestWithParam<bool> {};

TEST_P(AdjustmentTest, EachRowIsChosenFromItsOwnLogits) {
  const auto executor = MakeExecutor(Spec(GetParam())).value();
  const std::vector<std::int32_t> prompt = RandomTokens(9, kVocabSize, 4);
  exec::Run run{0, 0, 9};
  run.wants_token = true;
  run.num_drafts = 2;
  std::vector<std::uint64_t> only_77(kVocabSize / 64);
  only_77[77 / 64] |= std::uint64_t{1} << 77 % 64;
  const kernels::LogitChange raise{300, 1.0f, 1000.0f};
  const std::vector<kernels::LogitAdjustment> adjustments = {{{&raise, 1}, {}}, {}, {{}, only_77}};
  run.adjustments = adjustments;
  const auto step = executor->Step({{&run, 1}, prompt, {}}).value();
  const auto tokens = step.runs()[0].tokens;
  EXPECT_EQ(tokens[0], 300);
  EXPECT_EQ(tokens[1], ArgMax(step.Row(step.runs()[0].first_logit_row + 1)));
  EXPECT_EQ(tokens[2], 77);
  EXPECT_LT(step.Row(step.runs()[0].first_logit_row)[300], 900.0f) << "logits stay the model's";
}

TEST_P(AdjustmentTest, WrongOnesAreRefused) {
  const auto executor = MakeExecutor(Spec(GetParam())).value();
  const std::vector<std::int32_t> prompt = {1};
  const auto refused = [&](const kernels::LogitAdjustment& adjustment, std::size_t count = 1) {
    exec::Run run{0, 0, 1};
    run.wants_token = true;
    const std::vector<kernels::LogitAdjustment> adjustments(count, adjustment);
    run.adjustments = adjustments;
    return !executor->Step({{&run, 1}, prompt, {}});
  };
  const std::vector<std::uint64_t> short_mask(kVocabSize / 64 - 1, 1);
  EXPECT_TRUE(refused({{}, short_mask}));
  EXPECT_TRUE(refused({}, 2));
  for (const kernels::LogitChange change :
       {kernels::LogitChange{-1}, kernels::LogitChange{kVocabSize}, kernels::LogitChange{0, 0.0f},
        kernels::LogitChange{0, NAN}, kernels::LogitChange{0, 1.0f, NAN},
        kernels::LogitChange{0, 1.0f, INFINITY}}) {
    EXPECT_TRUE(refused({{&change, 1}, {}}));
  }
  EXPECT_FALSE(refused({}));
}

INSTANTIATE_TEST_SUITE_P(Each, AdjustmentTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "interpreter" : "engine"; });

}  // namespace
}  // namespace megalith::exec::testing
