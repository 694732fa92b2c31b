#include "exec/call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace megalith::exec {
namespace {

/// A call of any kind, with what it refers to.
struct OwnedCall {
  Call call;
  std::vector<std::uint64_t> destroyed;
  std::vector<Run> runs;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> logit_rows;
  std::vector<std::vector<kernels::LogitAdjustment>> adjustments;
  std::vector<std::vector<kernels::LogitChange>> changes;
  std::vector<std::vector<std::uint64_t>> words;
};

class CallMaker {
 public:
  explicit CallMaker(std::uint64_t seed) : random_(seed) {}

  /// Values need not make sense.
  OwnedCall Make() {
    OwnedCall made;
    made.call.kind = static_cast<CallKind>(Below(static_cast<int>(CallKind::kEnd) + 1));
    made.call.last_outcome = static_cast<std::uint8_t>(Below(15));
    for (int i = Below(3); i > 0; --i) made.destroyed.push_back(random_());
    made.call.destroyed = made.destroyed;
    if (made.call.kind == CallKind::kStep) {
      MakeStep(made);
    } else {
      made.call.slot = Any();
      made.call.length = Any();
      made.call.snapshot = random_();
    }
    return made;
  }

 private:
  int Below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  std::int32_t Any() { return static_cast<std::int32_t>(random_()); }
  float AnyFloat() {
    return Below(5) == 0 ? -std::numeric_limits<float>::infinity()
                         : static_cast<float>(Below(1000)) / 7.0f;
  }

  void MakeStep(OwnedCall& made) {
    const int num_runs = Below(4);
    // Spans into these must stay valid.
    made.adjustments.resize(static_cast<std::size_t>(num_runs));
    made.changes.reserve(16);
    made.words.reserve(16);
    for (int i = 0; i < num_runs; ++i) {
      Run run{Any(), Any(), Any(), Any(), Below(2) == 1, Any()};
      run.sampling = {AnyFloat(), AnyFloat(), Any(), AnyFloat(), random_()};
      auto& adjustments = made.adjustments[static_cast<std::size_t>(i)];
      for (int j = Below(3); j > 0; --j) {
        auto& changes = made.changes.emplace_back();
        for (int k = Below(4); k > 0; --k) changes.push_back({Any(), AnyFloat(), AnyFloat()});
        auto& words = made.words.emplace_back();
        for (int k = Below(4); k > 0; --k) words.push_back(random_());
        adjustments.push_back({changes, words});
      }
      run.adjustments = adjustments;
      made.runs.push_back(run);
    }
    for (int i = Below(20); i > 0; --i) made.tokens.push_back(Any());
    for (int i = Below(5); i > 0; --i) made.logit_rows.push_back(Any());
    made.call.step = {made.runs, made.tokens, made.logit_rows};
  }

  std::mt19937_64 random_;
};

std::vector<std::byte> Encode(const Call& call) {
  std::vector<std::byte> bytes;
  AppendCall(call, &bytes);
  return bytes;
}

TEST(Call, WhatIsDecodedIsWhatWasEncoded) {
  CallMaker maker(1);
  CallDecoder decoder;
  for (int i = 0; i < 2000; ++i) {
    const OwnedCall made = maker.Make();
    const Call& want = made.call;
    const std::vector<std::byte> bytes = Encode(want);
    const auto have = decoder.Decode(bytes);
    ASSERT_TRUE(have) << have.error().message;
    EXPECT_EQ(have->kind, want.kind);
    EXPECT_EQ(have->slot, want.slot);
    EXPECT_EQ(have->length, want.length);
    EXPECT_EQ(have->snapshot, want.snapshot);
    EXPECT_EQ(have->last_outcome, want.last_outcome);
    EXPECT_TRUE(std::ranges::equal(have->destroyed, want.destroyed));
    EXPECT_TRUE(std::ranges::equal(have->step.tokens, want.step.tokens));
    EXPECT_TRUE(std::ranges::equal(have->step.logit_rows, want.step.logit_rows));
    ASSERT_EQ(have->step.runs.size(), want.step.runs.size());
    for (std::size_t j = 0; j < want.step.runs.size(); ++j) {
      const exec::Run& a = have->step.runs[j];
      const exec::Run& b = want.step.runs[j];
      EXPECT_EQ(a.slot, b.slot);
      EXPECT_EQ(a.first_position, b.first_position);
      EXPECT_EQ(a.count, b.count);
      EXPECT_EQ(a.num_drafts, b.num_drafts);
      EXPECT_EQ(a.wants_token, b.wants_token);
      EXPECT_EQ(a.next_drafts, b.next_drafts);
      EXPECT_EQ(a.sampling.temperature, b.sampling.temperature);
      EXPECT_EQ(a.sampling.top_p, b.sampling.top_p);
      EXPECT_EQ(a.sampling.top_k, b.sampling.top_k);
      EXPECT_EQ(a.sampling.min_p, b.sampling.min_p);
      EXPECT_EQ(a.sampling.seed, b.sampling.seed);
      ASSERT_EQ(a.adjustments.size(), b.adjustments.size());
      for (std::size_t k = 0; k < b.adjustments.size(); ++k) {
        EXPECT_TRUE(std::ranges::equal(a.adjustments[k].allowed, b.adjustments[k].allowed));
        EXPECT_TRUE(std::ranges::equal(
            a.adjustments[k].changes, b.adjustments[k].changes, [](const auto& x, const auto& y) {
              return x.token == y.token && x.divisor == y.divisor && x.addend == y.addend;
            }));
      }
    }
    // Every bit of it counts.
    EXPECT_EQ(Encode(*have), bytes);
  }
}

TEST(Call, EveryOtherLengthIsRefused) {
  CallMaker maker(2);
  CallDecoder decoder;
  for (int i = 0; i < 100; ++i) {
    std::vector<std::byte> bytes = Encode(maker.Make().call);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto call = decoder.Decode(std::span(bytes).first(size));
      ASSERT_FALSE(call) << size << " of " << bytes.size();
      EXPECT_EQ(call.error().code, ErrorCode::kBadFile);
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decoder.Decode(bytes));
  }
}

}  // namespace
}  // namespace megalith::exec
