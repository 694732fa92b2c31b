#include "engine/ngram_drafter.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace megalith::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Proposal {
  std::int32_t match_length = 0;
  Tokens drafts;
  bool operator==(const Proposal&) const = default;
};

Proposal Propose(const NgramDrafter& drafter, std::int32_t max_drafts) {
  Proposal proposal{.drafts = {-1, -1, -1}};  // must be replaced
  proposal.match_length = drafter.Propose(max_drafts, &proposal.drafts);
  return proposal;
}

/// What Propose promises, by comparing every earlier place with the end.
Proposal BruteForce(const Tokens& tokens, const NgramDrafterOptions& options,
                    std::int32_t max_drafts) {
  const auto size = static_cast<std::int32_t>(tokens.size());
  for (std::int32_t length = options.longest; length >= options.shortest; --length) {
    for (std::int32_t end = size - 2; end + 1 >= length; --end) {
      bool same = true;
      for (std::int32_t i = 0; i < length && same; ++i) {
        same = tokens[static_cast<std::size_t>(end - i)] ==
               tokens[static_cast<std::size_t>(size - 1 - i)];
      }
      if (!same) continue;
      Tokens continued = tokens;
      for (std::int32_t i = 0; i < max_drafts; ++i) {
        continued.push_back(continued[static_cast<std::size_t>(end + 1 + i)]);
      }
      return {length, Tokens(continued.begin() + size, continued.end())};
    }
  }
  return {};
}

TEST(NgramDrafter, RandomAppendsAndTruncationsMatchBruteForce) {
  std::mt19937 random(20250301);
  const auto below = [&](std::uint32_t limit) {
    return static_cast<std::int32_t>(random() % limit);
  };
  int matches = 0;
  for (int sequence = 0; sequence < 60; ++sequence) {
    const auto longest = static_cast<std::uint32_t>(1 + below(8));
    const NgramDrafterOptions options{.longest = static_cast<std::int32_t>(longest),
                                      .shortest = 1 + below(longest)};
    const auto alphabet = static_cast<std::uint32_t>(1 + below(6));
    NgramDrafter drafter(options);
    Tokens tokens;
    for (int change = 0; change < 60; ++change) {
      if (below(4) == 0) {
        const std::int32_t length = below(static_cast<std::uint32_t>(tokens.size()) + 3);
        drafter.Truncate(length);
        if (length < static_cast<std::int32_t>(tokens.size())) {
          tokens.resize(static_cast<std::size_t>(length));
        }
      } else {
        Tokens more;
        for (std::int32_t i = below(20); i > 0; --i) more.push_back(below(alphabet));
        drafter.Append(more);
        tokens.insert(tokens.end(), more.begin(), more.end());
      }
      ASSERT_EQ(drafter.tokens(), tokens);
      const std::int32_t max_drafts = below(12);
      const Proposal expected =
          max_drafts == 0 ? Proposal{} : BruteForce(tokens, options, max_drafts);
      const Proposal found = Propose(drafter, max_drafts);
      ASSERT_EQ(found, expected) << "sequence " << sequence << ", change " << change << ", "
                                 << tokens.size() << " tokens of " << alphabet;
      matches += found.match_length > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(matches, 1000);  // else nothing was compared
}

TEST(NgramDrafter, PrefersTheLongestMatchThenTheLatest) {
  NgramDrafter drafter({.longest = 3, .shortest = 1});
  drafter.Append(Tokens{1, 2, 3, 70, 2, 3, 80, 3, 90, 3, 91, 1, 2, 3});
  EXPECT_EQ(Propose(drafter, 1), (Proposal{3, {70}}));
  drafter.Append(Tokens{92, 5, 3});
  EXPECT_EQ(Propose(drafter, 1), (Proposal{1, {92}}));
}

TEST(NgramDrafter, RepetitionIsContinuedBeyondTheEnd) {
  NgramDrafter drafter;
  drafter.Append(Tokens{1, 2, 3, 1, 2, 3});
  EXPECT_EQ(Propose(drafter, 8), (Proposal{3, {1, 2, 3, 1, 2, 3, 1, 2}}));
  drafter.Clear();
  drafter.Append(Tokens(10, 4));
  EXPECT_EQ(Propose(drafter, 5), (Proposal{8, Tokens(5, 4)}));
}

TEST(NgramDrafter, ProposesNothingWithoutAMatchOrRoom) {
  NgramDrafter drafter;
  EXPECT_EQ(Propose(drafter, 4), Proposal{});
  drafter.Append(Tokens{1, 2, 9, 1, 2});  // two tokens match, three are needed
  EXPECT_EQ(Propose(drafter, 4), Proposal{});
  drafter.Append(Tokens{9});
  EXPECT_EQ(Propose(drafter, 0), Proposal{});
  EXPECT_EQ(Propose(drafter, -1), Proposal{});
  EXPECT_EQ(Propose(drafter, 1), (Proposal{3, {1}}));
}

TEST(NgramDrafter, TruncationForgetsWhatWasRemoved) {
  NgramDrafter drafter;
  drafter.Append(Tokens{1, 2, 3, 4, 1, 2, 3, 5});
  drafter.Truncate(4);
  drafter.Append(Tokens{1, 2, 3});
  EXPECT_EQ(Propose(drafter, 1), (Proposal{3, {4}}));
  drafter.Truncate(-5);
  EXPECT_TRUE(drafter.tokens().empty());
  EXPECT_EQ(Propose(drafter, 1), Proposal{});
}

TEST(NgramDrafter, AnyTokenIdIsAToken) {
  constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kHighest = std::numeric_limits<std::int32_t>::max();
  NgramDrafter drafter;
  drafter.Append(Tokens{kLowest, -1, kHighest, 0, kLowest, -1, kHighest});
  EXPECT_EQ(Propose(drafter, 2), (Proposal{3, {0, kLowest}}));
}

TEST(NgramDrafter, ConfidenceGrowsWithTheMatch) {
  for (std::int32_t length = 1; length < 8; ++length) {
    EXPECT_LT(NgramDrafter::Confidence(length), NgramDrafter::Confidence(length + 1));
  }
}

// Quadratic work in any of these, a chain walked or a table copied per token, would take hours.
TEST(NgramDrafter, LongSequencesOfEveryKindAreQuick) {
  std::mt19937 random(5);
  for (std::uint32_t alphabet : {1u, 2u, 160'000u}) {
    const std::int64_t num_tokens = alphabet == 2 ? 1'000'000 : 200'000;
    NgramDrafter drafter;
    Tokens drafts;
    Tokens step(4);
    std::int64_t matched = 0;
    while (static_cast<std::int64_t>(drafter.tokens().size()) < num_tokens) {
      for (std::int32_t& token : step) token = static_cast<std::int32_t>(random() % alphabet);
      drafter.Append(step);
      drafter.Truncate(static_cast<std::int64_t>(drafter.tokens().size()) - 1);
      matched += drafter.Propose(7, &drafts);
    }
    EXPECT_EQ(matched > num_tokens, alphabet <= 2) << alphabet;
    drafter.Truncate(3);
    EXPECT_EQ(drafter.tokens().size(), 3u);
  }
}

}  // namespace
}  // namespace megalith::engine
