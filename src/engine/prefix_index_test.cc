#include "engine/prefix_index.h"

#include <gtest/gtest.h>

#include <random>

namespace megalith::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(PrefixIndex, FindsTheLongestThatLeavesATokenToRun) {
  PrefixIndex index;
  const auto two = index.Add({1, 2});
  const auto four = index.Add({1, 2, 3, 4});
  index.Add({1, 2, 9});
  EXPECT_EQ(index.FindLongest(Tokens{1, 2, 3, 4, 5}), four);
  EXPECT_EQ(index.FindLongest(Tokens{1, 2, 3, 4}), two);
  EXPECT_EQ(index.FindLongest(Tokens{1, 2}), std::nullopt);
  EXPECT_EQ(index.FindLongest(Tokens{2, 1, 3}), std::nullopt);
  EXPECT_EQ(index.Find(Tokens{1, 2}), two);
  index.Remove(four);
  index.Remove(four);
  EXPECT_EQ(index.FindLongest(Tokens{1, 2, 3, 4, 5}), two);
  EXPECT_EQ(index.size(), 2U);
}

TEST(PrefixIndex, SaysWhichIsClosest) {
  PrefixIndex index;
  EXPECT_FALSE(index.FindClosest(Tokens{1}));
  index.Add({1, 2, 3});
  index.Add({1, 2, 4, 5});
  const auto closest = index.FindClosest(Tokens{1, 2, 4, 9});
  ASSERT_TRUE(closest);
  EXPECT_EQ(closest->length, 4U);
  EXPECT_EQ(closest->common, 3U);
  EXPECT_FALSE(index.FindClosest(Tokens{7}));
}

TEST(PrefixIndex, AgreesWithLookingAtAll) {
  std::mt19937 random(3);
  const auto any = [&random] {
    Tokens tokens(1 + random() % 6);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 3);
    return tokens;
  };
  PrefixIndex index;
  std::map<Tokens, PrefixIndex::Id> all;
  for (int i = 0; i < 5000; ++i) {
    const Tokens tokens = any();
    if (const auto found = all.find(tokens); found != all.end()) {
      if (random() % 2 == 0) {
        index.Remove(found->second);
        all.erase(found);
      }
    } else {
      all[tokens] = index.Add(tokens);
    }
    const Tokens prompt = any();
    std::optional<PrefixIndex::Id> expected;
    for (std::size_t length = 1; length < prompt.size(); ++length) {
      const auto found =
          all.find(Tokens(prompt.begin(), prompt.begin() + static_cast<int>(length)));
      if (found != all.end()) expected = found->second;
    }
    ASSERT_EQ(index.FindLongest(prompt), expected);
  }
}

}  // namespace
}  // namespace megalith::engine
