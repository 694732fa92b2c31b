// Tokens that came by way of drafts have the distribution of the model's logits: 100,000 draws for
// each of several sampling options, on a small vocabulary.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "exec/testing/executors.h"

namespace megalith::exec::testing {
namespace {

constexpr std::int64_t kDraws = 100'000;
constexpr std::int32_t kNumDrafts = 4;
constexpr std::size_t kRanks = 12;  ///< the last one stands for all further ones

/// The exact distribution, by sorting: temperature, top-k, top-p, min-p, in order of probability.
std::vector<double> Distribution(std::span<const float> logits,
                                 const kernels::SamplingOptions& options,
                                 std::vector<std::int32_t>* order) {
  order->resize(logits.size());
  std::iota(order->begin(), order->end(), 0);
  std::stable_sort(order->begin(), order->end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  std::vector<double> p;
  for (const std::int32_t id : *order) {
    const double top = logits[static_cast<std::size_t>(order->front())];
    p.push_back(std::exp((logits[static_cast<std::size_t>(id)] - top) / options.temperature));
  }
  if (options.top_k > 0) p.resize(std::min(p.size(), static_cast<std::size_t>(options.top_k)));
  const double mass = std::accumulate(p.begin(), p.end(), 0.0);
  double before = 0.0;
  std::size_t kept = 0;
  while (kept < p.size() && before < options.top_p * mass && p[kept] >= options.min_p) {
    before += p[kept++];
  }
  p.resize(kept);
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

/// How often tokens of each rank were drawn against the sum of their probabilities: every draw has
/// its own distribution, but the differences add up to a sum with mean 0 and known variance.
struct Tally {
  std::vector<double> observed = std::vector<double>(kRanks);
  std::vector<double> expected = std::vector<double>(kRanks);
  std::vector<double> variance = std::vector<double>(kRanks);
  std::int64_t draws = 0;

  void Add(std::span<const float> logits, const kernels::SamplingOptions& options,
           std::int32_t token) {
    std::vector<std::int32_t> order;
    const std::vector<double> p = Distribution(logits, options, &order);
    const auto drawn =
        static_cast<std::size_t>(std::find(order.begin(), order.end(), token) - order.begin());
    ASSERT_LT(drawn, p.size()) << "a token that the options exclude was drawn";
    std::vector<double> by_rank(kRanks);
    for (std::size_t rank = 0; rank < p.size(); ++rank) {
      by_rank[std::min(rank, kRanks - 1)] += p[rank];
    }
    observed[std::min(drawn, kRanks - 1)] += 1.0;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      expected[rank] += by_rank[rank];
      variance[rank] += by_rank[rank] * (1.0 - by_rank[rank]);
    }
    ++draws;
  }

  /// Sum of squared standard scores: about kRanks; its chance to exceed 45 is below 1e-5.
  double ChiSquare() const {
    double sum = 0.0;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      if (variance[rank] < 1.0) continue;
      const double difference = observed[rank] - expected[rank];
      sum += difference * difference / variance[rank];
    }
    return sum;
  }
};

class DraftDistribution : public ::testing::TestWithParam<kernels::SamplingOptions> {};

TEST_P(DraftDistribution, IsThatOfTheLogits) {
  ExecutorSpec spec;
  spec.directory = MEGALITH_TEST_DATA "/golden/k3-tiny";
  spec.drafter = MEGALITH_TEST_DATA "/golden/k3-tiny-dspark";
  spec.isa = kernels::SelectIsa().value();
  spec.num_workers = 1;
  spec.num_slots = 1;
  spec.max_drafts = kNumDrafts;
  spec.draft_runs = 1;
  spec.num_drafts = kNumDrafts;
  const auto executor = MakeExecutor(spec).value();
  Tally tally;
  std::int64_t accepted = 0;
  kernels::SamplingOptions sampling = GetParam();
  for (std::uint64_t seed = 0; tally.draws < kDraws; ++seed) {
    sampling.seed = seed;
    std::vector<std::int32_t> rows = {static_cast<std::int32_t>(seed % 500)};
    exec::Run run{0, 0, 1};
    while (run.first_position < 200) {
      run.count = static_cast<std::int32_t>(rows.size());
      run.num_drafts = run.count - 1;
      run.wants_token = true;
      run.next_drafts = kNumDrafts;
      run.sampling = sampling;
      const auto step = executor->Step({{&run, 1}, rows, {}});
      ASSERT_TRUE(step) << step.error().message;
      const RunOutput& output = step->runs().front();
      for (std::int32_t i = 0; i <= output.num_accepted; ++i) {
        tally.Add(step->Row(output.first_logit_row + i), sampling,
                  output.tokens[static_cast<std::size_t>(i)]);
      }
      accepted += output.num_accepted;
      run.first_position += 1 + output.num_accepted;
      rows = {output.tokens[static_cast<std::size_t>(output.num_accepted)]};
      rows.insert(rows.end(), output.drafts.begin(), output.drafts.end());
    }
  }
  EXPECT_LT(tally.ChiSquare(), 45.0);
  EXPECT_GT(accepted, 100) << "drafts played no part";
  // That the bound would notice: one draw in a hundred moved from the likeliest to the next.
  Tally wrong = tally;
  wrong.observed[0] -= 0.01 * static_cast<double>(kDraws);
  wrong.observed[1] += 0.01 * static_cast<double>(kDraws);
  EXPECT_GT(wrong.ChiSquare(), 45.0);
}

INSTANTIATE_TEST_SUITE_P(
    Options, DraftDistribution,
    ::testing::Values(kernels::SamplingOptions{.temperature = 1.0f},
                      kernels::SamplingOptions{.temperature = 1.5f, .top_p = 0.9f},
                      kernels::SamplingOptions{.temperature = 2.0f, .top_k = 10},
                      kernels::SamplingOptions{.temperature = 1.3f, .min_p = 0.05f}),
    [](const auto& options) { return "Case" + std::to_string(options.index); });

}  // namespace
}  // namespace megalith::exec::testing
