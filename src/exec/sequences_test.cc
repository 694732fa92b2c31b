#include "exec/sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace megalith::exec {
namespace {

program::StateLayout Layout() {
  program::StateLayout layout;
  layout.num_slots = 3;
  layout.num_kda_layers = 1;
  layout.num_mla_layers = 2;
  layout.page_tokens = 4;
  layout.num_pages = 6;
  layout.max_positions = 20;
  return layout;
}

/// `num_accepted`: drafts of each run that are kept; empty: none is.
Status Advance(Sequences& sequences, const std::vector<exec::Run>& runs,
               std::vector<std::int32_t> num_accepted = {}) {
  MEGALITH_RETURN_IF_ERROR(sequences.Begin(runs));
  num_accepted.resize(runs.size());
  sequences.Commit(runs, num_accepted);
  return {};
}

exec::Run Verify(std::int32_t slot, std::int32_t first_position, std::int32_t num_drafts) {
  exec::Run run{slot, first_position, num_drafts + 1};
  run.num_drafts = num_drafts;
  return run;
}

TEST(Sequences, GrowByTheDraftsThatAreKeptAndTurnTheRingOfStates) {
  program::StateLayout layout = Layout();
  layout.states_per_slot = 4;
  Sequences sequences(layout);
  ASSERT_TRUE(Advance(sequences, {{0, 0, 2}}));
  EXPECT_EQ(sequences.StateIndex(0), 0);
  ASSERT_TRUE(Advance(sequences, {Verify(0, 2, 3)}, {2}));
  EXPECT_EQ(sequences.Length(0), 5);
  EXPECT_EQ(sequences.StateIndex(0), 2);
  ASSERT_TRUE(Advance(sequences, {Verify(0, 5, 3)}, {3}));
  EXPECT_EQ(sequences.Length(0), 9);
  EXPECT_EQ(sequences.StateIndex(0), 1);  // around the ring
  ASSERT_TRUE(Advance(sequences, {Verify(0, 9, 3)}, {0}));
  EXPECT_EQ(sequences.Length(0), 10);
  EXPECT_EQ(sequences.StateIndex(0), 1);
}

TEST(Sequences, OnlyKeptDraftsOfTheLastStepCanBeTakenBack) {
  program::StateLayout layout = Layout();
  layout.states_per_slot = 4;
  Sequences sequences(layout);
  ASSERT_TRUE(Advance(sequences, {{0, 0, 2}}));
  EXPECT_FALSE(sequences.Truncate(0, 1));
  ASSERT_TRUE(Advance(sequences, {Verify(0, 2, 3)}, {2}));
  EXPECT_FALSE(sequences.Truncate(0, 2));
  EXPECT_FALSE(sequences.Truncate(0, 6));
  EXPECT_FALSE(sequences.Truncate(9, 0));
  ASSERT_TRUE(sequences.Truncate(0, 4));
  EXPECT_EQ(sequences.Length(0), 4);
  EXPECT_EQ(sequences.StateIndex(0), 1);
  ASSERT_TRUE(sequences.Truncate(0, 3));
  EXPECT_EQ(sequences.StateIndex(0), 0);
  const Status none_left = sequences.Truncate(0, 2);
  ASSERT_FALSE(none_left);
  EXPECT_NE(none_left.error().message.find("length 2 expected to be 3 to 3"), std::string::npos)
      << none_left.error().message;
  ASSERT_TRUE(Advance(sequences, {{0, 3, 1}}));
  EXPECT_EQ(sequences.Length(0), 4);
}

TEST(Sequences, MoreDraftsThanStatesAreRefused) {
  program::StateLayout layout = Layout();
  layout.states_per_slot = 3;
  Sequences sequences(layout);
  ASSERT_TRUE(Advance(sequences, {{0, 0, 2}}));
  EXPECT_FALSE(Advance(sequences, {Verify(0, 2, 3)}));
  exec::Run drafts_only{0, 2, 2};
  drafts_only.num_drafts = 2;
  EXPECT_FALSE(Advance(sequences, {drafts_only}));
  EXPECT_TRUE(Advance(sequences, {Verify(0, 2, 2)}));
}

/// The first `count` pages of each slot; none may appear twice.
std::set<std::int32_t> PagesOf(const Sequences& sequences, std::int32_t slot, int count) {
  const std::int32_t* table = sequences.PageTable(slot);
  const std::set<std::int32_t> pages(table, table + count);
  EXPECT_EQ(pages.size(), static_cast<std::size_t>(count));
  return pages;
}

TEST(Sequences, PagesAreTakenAsSequencesGrow) {
  Sequences sequences(Layout());
  EXPECT_EQ(sequences.num_free_pages(), 6);
  ASSERT_TRUE(Advance(sequences, {{0, 0, 4}, {1, 0, 1}}).has_value());
  EXPECT_EQ(sequences.num_free_pages(), 4);
  ASSERT_TRUE(Advance(sequences, {{1, 1, 3}}).has_value());  // fills its page
  EXPECT_EQ(sequences.num_free_pages(), 4);
  ASSERT_TRUE(Advance(sequences, {{1, 4, 1}, {0, 4, 5}}).has_value());
  EXPECT_EQ(sequences.num_free_pages(), 1);
  EXPECT_EQ(sequences.Length(0), 9);
  EXPECT_EQ(sequences.Length(1), 5);
  std::set<std::int32_t> pages = PagesOf(sequences, 0, 3);
  for (const std::int32_t page : PagesOf(sequences, 1, 2)) EXPECT_TRUE(pages.insert(page).second);
  EXPECT_EQ(pages.size(), 5U);
}

TEST(Sequences, FailedBeginChangesNothing) {
  Sequences sequences(Layout());
  ASSERT_TRUE(Advance(sequences, {{0, 0, 16}}).has_value());
  const auto before = PagesOf(sequences, 0, 4);
  // The first run alone would fit.
  EXPECT_FALSE(sequences.Begin(std::vector<exec::Run>{{1, 0, 8}, {0, 16, 1}}).has_value());
  EXPECT_EQ(sequences.num_free_pages(), 2);
  EXPECT_FALSE(sequences.Begin(std::vector<exec::Run>{{1, 0, 4}, {2, 3, 1}}).has_value());
  EXPECT_EQ(sequences.num_free_pages(), 2);
  EXPECT_EQ(sequences.Length(0), 16);
  EXPECT_EQ(sequences.Length(1), 0);
  EXPECT_EQ(PagesOf(sequences, 0, 4), before);
}

TEST(Sequences, RestartGivesPagesToOthersInTheSameStep) {
  Sequences sequences(Layout());
  ASSERT_TRUE(Advance(sequences, {{0, 0, 20}}).has_value());  // 5 of 6 pages
  ASSERT_TRUE(Advance(sequences, {{1, 0, 16}, {0, 0, 1}}).has_value());
  EXPECT_EQ(sequences.Length(0), 1);
  EXPECT_EQ(sequences.Length(1), 16);
  EXPECT_EQ(sequences.num_free_pages(), 1);
}

TEST(Sequences, AbandonedSequencesHaveToStartAgain) {
  Sequences sequences(Layout());
  ASSERT_TRUE(Advance(sequences, {{0, 0, 5}, {1, 0, 2}}).has_value());
  const std::vector<exec::Run> runs = {{0, 5, 1}};
  ASSERT_TRUE(sequences.Begin(runs).has_value());
  sequences.Abandon(runs);
  EXPECT_EQ(sequences.Length(0), 0);
  EXPECT_EQ(sequences.Length(1), 2);
  EXPECT_EQ(sequences.num_free_pages(), 5);
  EXPECT_FALSE(sequences.Begin(std::vector<exec::Run>{{0, 6, 1}}).has_value());
}

TEST(Sequences, HeldPagesOutliveTheirSequence) {
  Sequences sequences(Layout());
  ASSERT_TRUE(Advance(sequences, {{0, 0, 6}}));
  const auto pages = sequences.HoldPages(0).value();
  EXPECT_EQ(pages.size(), 2U);
  ASSERT_TRUE(Advance(sequences, {{0, 0, 6}}));  // the slot starts afresh, on other pages
  for (const std::int32_t page : PagesOf(sequences, 0, 2)) {
    EXPECT_EQ(std::count(pages.begin(), pages.end(), page), 0);
  }
  EXPECT_EQ(sequences.num_free_pages(), 2);
  ASSERT_TRUE(sequences.Release(0));
  EXPECT_EQ(sequences.num_free_pages(), 4);
  sequences.ReleasePages(pages);
  EXPECT_EQ(sequences.num_free_pages(), 6);
}

TEST(Sequences, AdoptedPagesAreSharedButForTheOneThatWillBeWritten) {
  Sequences sequences(Layout());
  ASSERT_TRUE(Advance(sequences, {{0, 0, 6}}));
  const auto pages = sequences.HoldPages(0).value();
  const auto copy = sequences.Adopt(1, 6, pages).value();
  EXPECT_EQ(copy.from, pages[1]);
  EXPECT_EQ(sequences.PageTable(1)[0], pages[0]);
  EXPECT_EQ(sequences.PageTable(1)[1], copy.to);
  EXPECT_EQ(sequences.num_free_pages(), 3);
  // A full last page is never written again.
  ASSERT_TRUE(Advance(sequences, {{0, 6, 2}}));
  const auto full = sequences.HoldPages(0).value();
  EXPECT_LT(sequences.Adopt(2, 8, full)->from, 0);
  EXPECT_EQ(sequences.num_free_pages(), 3);
  for (const std::int32_t slot : {0, 1, 2}) ASSERT_TRUE(sequences.Release(slot));
  sequences.ReleasePages(pages);
  sequences.ReleasePages(full);
  EXPECT_EQ(sequences.num_free_pages(), 6);
}

TEST(Sequences, AdoptWithoutAFreePageLeavesTheSlotAsItWas) {
  program::StateLayout layout = Layout();
  layout.num_pages = 3;
  Sequences sequences(layout);
  ASSERT_TRUE(Advance(sequences, {{0, 0, 6}, {1, 0, 3}}));
  const auto pages = sequences.HoldPages(0).value();
  const auto refused = sequences.Adopt(2, 6, pages);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(sequences.Length(2), 0);
  EXPECT_FALSE(sequences.Adopt(1, 7, std::span(pages).first(1)));
  EXPECT_EQ(sequences.Length(1), 3);
  // The page that slot 1 has for itself is enough.
  ASSERT_TRUE(sequences.Adopt(1, 6, pages));
  EXPECT_EQ(sequences.Length(1), 6);
  EXPECT_EQ(sequences.num_free_pages(), 0);
  // Back to where it was: slot 0 holds nothing for itself, so there is none.
  EXPECT_FALSE(sequences.Adopt(0, 6, pages));
  EXPECT_EQ(sequences.Length(0), 6);
}

TEST(Sequences, WhatASnapshotHoldsIsNotTakenBack) {
  program::StateLayout layout = Layout();
  layout.states_per_slot = 4;
  Sequences sequences(layout);
  ASSERT_TRUE(Advance(sequences, {{0, 0, 2}}));
  ASSERT_TRUE(Advance(sequences, {Verify(0, 2, 3)}, {2}));
  const auto pages = sequences.HoldPages(0).value();
  EXPECT_FALSE(sequences.Truncate(0, 4));
  EXPECT_FALSE(sequences.HoldPages(1));
  EXPECT_FALSE(sequences.HoldPages(3));
}

TEST(Sequences, NoPagesAreNeededWithoutMlaLayers) {
  program::StateLayout layout = Layout();
  layout.num_mla_layers = 0;
  layout.num_pages = 0;
  Sequences sequences(layout);
  EXPECT_TRUE(Advance(sequences, {{0, 0, 20}}).has_value());
  EXPECT_EQ(sequences.Length(0), 20);
}

TEST(Sequences, ReleaseReturnsEveryPage) {
  Sequences sequences(Layout());
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(Advance(sequences, {{0, 0, 12}, {2, 0, 12}}).has_value());
    EXPECT_EQ(sequences.num_free_pages(), 0);
    ASSERT_TRUE(sequences.Release(2).has_value());
    ASSERT_TRUE(sequences.Release(0).has_value());
    ASSERT_TRUE(sequences.Release(0).has_value());
    EXPECT_EQ(sequences.num_free_pages(), 6);
  }
}

}  // namespace
}  // namespace megalith::exec
