#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/cpu/paths.h"
#include "kernels/reference/reference.h"
#include "kernels/test_paths.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

struct RouterCase {
  RouterCase(std::int64_t num_experts, std::int64_t num_chosen, std::uint64_t seed)
      : experts(num_experts),
        top_k(num_chosen),
        logits(num_experts, 1),
        bias(num_experts, 3),
        ids(num_chosen, 1),
        weights(num_chosen, 1) {
    Random random(seed);
    logits.FillNormal(random);
    bias.FillNormal(random, 0.1f);
  }
  RouterTopKArgs Args() {
    scratch.clear();
    scratch.emplace_back(RouterScratchFloats(experts, num_groups));
    return {logits.data(), bias.data(), experts,        top_k,
            softmax,       renormalize, scaling_factor, num_groups,
            topk_groups,   ids.data(),  weights.data(), scratch[0].data()};
  }
  std::int64_t experts, top_k;
  Buffer<float> logits, bias;
  Buffer<std::int32_t> ids;
  Buffer<float> weights;
  bool softmax = false;
  bool renormalize = true;
  float scaling_factor = 1.0f;
  std::int64_t num_groups = 1;
  std::int64_t topk_groups = 1;
  std::vector<Buffer<float>> scratch;
};

class RouterTest : public test::PathTest {
 protected:
  void ExpectMatchesReference(RouterCase& c) {
    reference::RouterTopK(c.Args());
    const Buffer<std::int32_t> ids(c.ids);
    const Buffer<float> weights(c.weights);
    OnPath([&](const auto& table) { table.router_top_k(c.Args()); });
    EXPECT_TRUE(SameBits(c.ids, ids));
    EXPECT_TRUE(SameBits(c.weights, weights));
    EXPECT_TRUE(c.ids.CanariesIntact());
    EXPECT_TRUE(c.weights.CanariesIntact());
    EXPECT_TRUE(c.scratch[0].CanariesIntact());
    std::set<std::int32_t> distinct;
    for (std::int64_t i = 0; i < c.top_k; ++i) {
      EXPECT_GE(c.ids[i], 0);
      EXPECT_LT(c.ids[i], c.experts);
      if (i > 0) {
        EXPECT_LT(c.ids[i - 1], c.ids[i]);
      }
    }
  }
};

TEST_P(RouterTest, EverySizeAndModeMatchesReference) {
  for (const std::int64_t experts : {1, 2, 8, 15, 16, 17, 48, 100, 896}) {
    for (const std::int64_t top_k : {1, 2, 8, 16}) {
      if (top_k > experts) continue;
      for (int mode = 0; mode < 4; ++mode) {
        SCOPED_TRACE("experts " + std::to_string(experts) + " top " + std::to_string(top_k) +
                     " mode " + std::to_string(mode));
        RouterCase c(experts, top_k, static_cast<std::uint64_t>(experts + top_k));
        c.softmax = (mode & 1) != 0;
        c.renormalize = (mode & 2) != 0;
        c.scaling_factor = 2.5f;
        ExpectMatchesReference(c);
      }
    }
  }
}

TEST_P(RouterTest, TiesGoToTheLowestIds) {
  RouterCase c(40, 6, 1);
  c.bias.Fill([] { return 0.0f; });
  c.logits.Fill([] { return 0.5f; });
  c.logits[33] = 1.0f;
  c.logits[20] = 0.75f;
  c.logits[38] = 0.75f;
  ExpectMatchesReference(c);
  const std::int32_t expected[] = {0, 1, 2, 20, 33, 38};
  EXPECT_TRUE(SameBits(c.ids.data(), expected, 6));
}

TEST_P(RouterTest, GroupsMatchReference) {
  for (const std::int64_t groups : {2, 4, 8, 48, 96}) {
    for (const std::int64_t kept : {1, 2, 4}) {
      SCOPED_TRACE("groups " + std::to_string(groups) + " kept " + std::to_string(kept));
      RouterCase c(96, 2, static_cast<std::uint64_t>(groups));
      c.num_groups = groups;
      c.topk_groups = kept;
      ExpectMatchesReference(c);
    }
  }
}

TEST_P(RouterTest, NanScoresGiveValidIds) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool grouped : {false, true}) {
    RouterCase c(48, 5, 2);
    c.num_groups = grouped ? 6 : 1;
    c.topk_groups = 2;
    c.logits[7] = nan;
    c.logits[47] = nan;
    c.bias[9] = nan;
    ExpectMatchesReference(c);
    c.logits.Fill([&] { return nan; });
    ExpectMatchesReference(c);
  }
}

TEST_P(RouterTest, AllExpertsMayBeChosen) {
  RouterCase c(20, 20, 3);
  c.bias[4] = -std::numeric_limits<float>::infinity();
  c.bias[5] = std::numeric_limits<float>::infinity();
  ExpectMatchesReference(c);
  for (std::int32_t e = 0; e < 20; ++e) EXPECT_EQ(c.ids[e], e);
}

INSTANTIATE_TEST_SUITE_P(Paths, RouterTest, ::testing::ValuesIn(test::kAllPaths), test::PathName);

// The reference against a sort, and its weights against double.

TEST(ReferenceRouter, BiasSelectsButDoesNotWeigh) {
  RouterCase c(100, 10, 4);
  c.scaling_factor = 2.0f;
  reference::RouterTopK(c.Args());
  std::vector<std::int32_t> order(100);
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int32_t e) { return Sigmoid(c.logits[e]) + c.bias[e]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return key(a) > key(b); });
  order.resize(10);
  std::sort(order.begin(), order.end());
  EXPECT_TRUE(SameBits(c.ids.data(), order.data(), 10));
  double sum = 0.0;
  const auto score = [&](std::int32_t e) {
    return 1.0 / (1.0 + std::exp(-static_cast<double>(c.logits[e])));
  };
  for (const std::int32_t e : order) sum += score(e);
  for (std::int64_t i = 0; i < 10; ++i) {
    const double expected = score(c.ids[i]) / sum * 2.0;
    // Two sigmoids of 3 ulp, ten additions, two operations.
    EXPECT_NEAR(static_cast<double>(c.weights[i]), expected, 2 * (6 + 10 + 2) * 0x1p-24 * expected);
  }
}

TEST(ReferenceRouter, GroupScoreIsTheSumOfItsTwoBest) {
  RouterCase c(8, 2, 5);
  c.num_groups = 2;
  c.topk_groups = 1;
  c.softmax = false;
  c.logits.Fill([] { return 0.0f; });
  c.bias.Fill([] { return 0.0f; });
  c.bias[0] = 1.0f;  // group 0: best 1.5, second 0.5
  c.bias[5] = 0.8f;  // group 1: 1.3 + 1.2
  c.bias[7] = 0.7f;
  reference::RouterTopK(c.Args());
  EXPECT_EQ(c.ids[0], 5);
  EXPECT_EQ(c.ids[1], 7);
  EXPECT_EQ(c.weights[0], 0.5f);
}

TEST(ReferenceRouter, SoftmaxWeightsWithoutRenormalisationAreProbabilities) {
  RouterCase c(4, 4, 6);
  c.softmax = true;
  c.renormalize = false;
  reference::RouterTopK(c.Args());
  EXPECT_NEAR(c.weights[0] + c.weights[1] + c.weights[2] + c.weights[3], 1.0f, 8 * 0x1p-24f);
}

}  // namespace
}  // namespace megalith::kernels
