#include "program/attention_division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace megalith::program {
namespace {

constexpr std::int64_t kHeads[] = {1, 3, 4, 96};
constexpr std::int64_t kPositions[] = {1,    2,    511,  2047,  2048,   2049,
                                       4095, 4096, 5000, 20000, 131072, 1 << 20};
constexpr std::int64_t kShares[] = {1, 2, 3, 5, 64, 100};

struct Case {
  std::int64_t heads;
  std::int64_t positions;
  std::int64_t shares;
  AttentionDivision division;
};

void ForCases(const std::function<void(const Case&)>& check) {
  for (const std::int64_t heads : kHeads) {
    for (const std::int64_t positions : kPositions) {
      for (const std::int64_t shares : kShares) {
        SCOPED_TRACE(testing::Message()
                     << heads << " heads, " << positions << " positions, " << shares << " shares");
        check({heads, positions, shares, AttentionDivision(heads, positions, shares)});
      }
    }
  }
}

/// Positions of the chunk that an item belongs to.
std::int64_t CostOf(const Case& c, std::int64_t item) {
  return std::min<std::int64_t>(kAttentionChunk, c.positions - item / c.heads * kAttentionChunk);
}

TEST(AttentionDivision, EveryItemBelongsToExactlyOneShare) {
  ForCases([](const Case& c) {
    ASSERT_EQ(c.division.FirstItem(0), 0);
    ASSERT_EQ(c.division.FirstItem(c.shares), c.division.num_items());
    for (std::int64_t share = 0; share < c.shares; ++share) {
      const std::int64_t end = c.division.FirstItem(share + 1);
      ASSERT_LE(c.division.FirstItem(share), end);
      for (std::int64_t item = c.division.FirstItem(share); item < end; ++item) {
        ASSERT_EQ(c.division.ShareOf(item), share) << "item " << item;
      }
    }
  });
}

TEST(AttentionDivision, ItemsAreTheChunksOfEveryHead) {
  ForCases([](const Case& c) {
    EXPECT_EQ(c.division.num_items(), c.division.num_chunks() * c.heads);
    EXPECT_LT((c.division.num_chunks() - 1) * kAttentionChunk, c.positions);
    EXPECT_GE(c.division.num_chunks() * kAttentionChunk, c.positions);
    EXPECT_EQ(c.division.Item(c.division.num_chunks() - 1, c.heads - 1),
              c.division.num_items() - 1);
  });
}

TEST(AttentionDivision, SharesCostTheMeanWithinOneItem) {
  ForCases([](const Case& c) {
    const double mean = static_cast<double>(c.heads * c.positions) / static_cast<double>(c.shares);
    for (std::int64_t share = 0; share < c.shares; ++share) {
      std::int64_t cost = 0;
      const std::int64_t end = c.division.FirstItem(share + 1);
      for (std::int64_t item = c.division.FirstItem(share); item < end; ++item) {
        cost += CostOf(c, item);
      }
      ASSERT_LT(std::fabs(static_cast<double>(cost) - mean), kAttentionChunk) << "share " << share;
    }
  });
}

TEST(AttentionDivision, NoShareHasMoreItemsThanItsColumnsHold) {
  ForCases([](const Case& c) {
    for (const std::int64_t max_positions : kPositions) {
      if (max_positions < c.positions) continue;
      const std::int64_t most = MaxItemsOfShare(c.heads, max_positions, c.shares);
      for (std::int64_t share = 0; share < c.shares; ++share) {
        ASSERT_LE(c.division.FirstItem(share + 1) - c.division.FirstItem(share), most)
            << "share " << share << " of a Program for " << max_positions;
      }
    }
  });
}

TEST(AttentionDivision, PartialResultsKeepToTheirCacheLines) {
  for (const std::int64_t rank : {1, 13, 14, 15, 16, 512}) {
    EXPECT_GE(PartialStride(rank), rank + 2);
    EXPECT_EQ(PartialStride(rank) * std::int64_t{sizeof(float)} % 64, 0);
  }
}

}  // namespace
}  // namespace megalith::program
