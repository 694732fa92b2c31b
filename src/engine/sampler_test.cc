#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace megalith::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int32_t MustSample(const SamplingOptions& options, const std::vector<float>& logits,
                        std::int64_t position) {
  Sampler sampler(options);
  const auto token = sampler.Sample(logits, position);
  EXPECT_TRUE(token.has_value()) << token.error().message;
  return token.value_or(-1);
}

/// Share of each token over many positions.
std::vector<double> Shares(const SamplingOptions& options, const std::vector<float>& logits) {
  constexpr int kDraws = 40000;
  Sampler sampler(options);
  std::vector<double> shares(logits.size(), 0.0);
  for (int position = 0; position < kDraws; ++position) {
    shares[static_cast<std::size_t>(sampler.Sample(logits, position).value())] += 1.0;
  }
  for (double& share : shares) share /= kDraws;
  return shares;
}

void ExpectShares(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    // Five standard deviations of 40,000 draws.
    const double deviation = std::sqrt(expected[i] * (1 - expected[i]) / 40000);
    EXPECT_NEAR(found[i], expected[i], 5 * deviation + 1e-12) << "token " << i;
  }
}

// p = 0.5, 0.25, 0.15, 0.1
const std::vector<float> kLogits = {std::log(0.5f), std::log(0.25f), std::log(0.15f),
                                    std::log(0.1f)};

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(MustSample({}, {1.0f, 3.0f, 3.0f, 2.0f}, 0), 1);
}

TEST(Sampler, TinyTemperaturesAreGreedyAndDoNotOverflow) {
  for (float temperature : {1e-30f, 1e-8f, std::numeric_limits<float>::denorm_min()}) {
    for (int position = 0; position < 100; ++position) {
      EXPECT_EQ(MustSample({.temperature = temperature}, {100.0f, 3e38f, -3e38f, 2.0f}, position),
                1);
    }
  }
}

TEST(Sampler, TemperatureOneDrawsTheDistribution) {
  ExpectShares(Shares({.temperature = 1.0f}, kLogits), {0.5, 0.25, 0.15, 0.1});
}

TEST(Sampler, TemperatureHalfSquaresTheDistribution) {
  const double total = 0.25 + 0.0625 + 0.0225 + 0.01;
  ExpectShares(Shares({.temperature = 0.5f}, kLogits),
               {0.25 / total, 0.0625 / total, 0.0225 / total, 0.01 / total});
}

TEST(Sampler, TopKKeepsTheMostLikely) {
  ExpectShares(Shares({.temperature = 1.0f, .top_k = 2}, kLogits), {2.0 / 3, 1.0 / 3, 0, 0});
}

TEST(Sampler, TopPKeepsTokensWhoseMassBeforeIsBelowIt) {
  // 0.5 before the second, 0.75 before the third.
  ExpectShares(Shares({.temperature = 1.0f, .top_p = 0.7f}, kLogits), {2.0 / 3, 1.0 / 3, 0, 0});
  ExpectShares(Shares({.temperature = 1.0f, .top_p = 0.0001f}, kLogits), {1, 0, 0, 0});
}

TEST(Sampler, MinPDropsTokensFarBelowTheBest) {
  ExpectShares(Shares({.temperature = 1.0f, .min_p = 0.25f}, kLogits),
               {0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0});
}

TEST(Sampler, SameSeedAndPositionGiveTheSameTokenOthersDiffer) {
  const std::vector<float> flat(64, 0.0f);
  const SamplingOptions seven{.temperature = 1.0f, .seed = 7};
  const SamplingOptions eight{.temperature = 1.0f, .seed = 8};
  int same = 0;
  for (int position = 0; position < 64; ++position) {
    EXPECT_EQ(MustSample(seven, flat, position), MustSample(seven, flat, position));
    same += MustSample(seven, flat, position) == MustSample(eight, flat, position) ? 1 : 0;
  }
  EXPECT_LT(same, 16);
}

TEST(Sampler, LogitsThatAreNoDistributionAreAnError) {
  for (float temperature : {0.0f, 1.0f}) {
    Sampler sampler({.temperature = temperature});
    for (const std::vector<float>& logits :
         {std::vector<float>{1.0f, kNan, 2.0f}, std::vector<float>{kNan, 1.0f},
          std::vector<float>{1.0f, kInfinity}, std::vector<float>{-kInfinity, -kInfinity},
          std::vector<float>{}}) {
      const auto token = sampler.Sample(logits, 0);
      ASSERT_FALSE(token.has_value());
      EXPECT_EQ(token.error().code, ErrorCode::kNumeric);
    }
  }
}

TEST(Sampler, ImpossibleTokensAreNeverDrawn) {
  Sampler sampler({.temperature = 2.0f});
  for (int position = 0; position < 1000; ++position) {
    EXPECT_NE(sampler.Sample(std::vector<float>{0.0f, -kInfinity, 0.0f}, position).value(), 1);
  }
}

TEST(CheckSampling, EveryBadValueIsRefusedByName) {
  const auto expect_refused = [](const SamplingOptions& options, const char* field) {
    const auto status = CheckSampling(options);
    ASSERT_FALSE(status.has_value()) << field;
    EXPECT_EQ(status.error().code, ErrorCode::kUsage);
    EXPECT_NE(status.error().message.find(field), std::string::npos) << status.error().message;
  };
  for (float bad : {kNan, kInfinity, -1.0f}) {
    expect_refused({.temperature = bad}, "temperature");
    expect_refused({.top_p = bad}, "top_p");
    expect_refused({.min_p = bad}, "min_p");
  }
  expect_refused({.top_p = 0.0f}, "top_p");
  expect_refused({.top_p = 1.5f}, "top_p");
  expect_refused({.min_p = 1.5f}, "min_p");
  expect_refused({.top_k = -1}, "top_k");
  EXPECT_TRUE(CheckSampling({.temperature = -0.0f}).has_value());
}

}  // namespace
}  // namespace megalith::engine
