#include <algorithm>

#include "kernels/reference/reference.h"
#include "kernels/test_paths.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::kCounts;
using test::Random;
using test::SameBits;

class NormTest : public test::PathTest {};

TEST_P(NormTest, RmsNormMatchesReferenceInPlaceAndNot) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t count : kCounts) {
      SCOPED_TRACE("count " + std::to_string(count));
      Random random(static_cast<std::uint64_t>(count));
      Buffer<Act> in(count, 3);
      Buffer<Bf16> weight(count, 1);
      in.FillNormal(random, count % 2 == 0 ? 1.0f : 1e-3f);  // 1e-3: eps matters
      weight.FillNormal(random);
      Buffer<Act> expected(count);
      reference::RmsNorm<Act>({in.data(), count, weight.data(), 1e-5f, expected.data()});
      Buffer<Act> out(count, 1);
      table.rms_norm({in.data(), count, weight.data(), 1e-5f, out.data()});
      EXPECT_TRUE(SameBits(out, expected));
      EXPECT_TRUE(out.CanariesIntact());
      table.rms_norm({in.data(), count, weight.data(), 1e-5f, in.data()});
      EXPECT_TRUE(SameBits(in, expected));
      EXPECT_TRUE(in.CanariesIntact());
    }
  });
}

/// The arguments of one mix, with everything they point to.
template <typename Act>
struct AttnResCase {
  AttnResCase(std::int64_t num_sources, std::int64_t hidden, Random& random)
      : fold(hidden, 2),
        weight(hidden, 1),
        out(hidden, 1),
        scratch(AttnResScratchFloats(num_sources)) {
    for (std::int64_t s = 0; s < num_sources; ++s) {
      rows.emplace_back(hidden, s % 3)
          .FillNormal(random, std::ldexp(1.0f, 3 - static_cast<int>(s)));
      sources.push_back(rows.back().data());
    }
    fold.FillNormal(random, 0.1f);
    weight.FillNormal(random);
    // Moving the buffers while the vector grew may have moved their data.
    for (std::size_t s = 0; s < rows.size(); ++s) sources[s] = rows[s].data();
  }
  AttnResNormArgs<Act> Args() {
    return {sources.data(), static_cast<std::int64_t>(sources.size()),
            fold.size(),    fold.data(),
            weight.data(),  1e-5f,
            out.data(),     scratch.data()};
  }
  std::vector<Buffer<Act>> rows;
  std::vector<const Act*> sources;
  Buffer<float> fold;
  Buffer<Bf16> weight;
  Buffer<Act> out;
  Buffer<float> scratch;
};

TEST_P(NormTest, AttnResNormMatchesReferenceForEveryNumberOfSources) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t hidden : kCounts) {
      for (const std::int64_t num_sources : {1, 2, 3, 9, 17, 40}) {
        SCOPED_TRACE("hidden " + std::to_string(hidden) + " sources " +
                     std::to_string(num_sources));
        Random random(static_cast<std::uint64_t>(hidden + num_sources));
        AttnResCase<Act> c(num_sources, hidden, random);
        reference::AttnResNorm(c.Args());
        const Buffer<Act> expected(c.out);
        c.out.Fill([] { return 0.0f; });
        table.attn_res_norm(c.Args());
        EXPECT_TRUE(SameBits(c.out, expected));
        EXPECT_TRUE(c.out.CanariesIntact());
        EXPECT_TRUE(c.scratch.CanariesIntact());
        // Over its own last source.
        AttnResNormArgs<Act> in_place = c.Args();
        in_place.out = c.rows.back().data();
        table.attn_res_norm(in_place);
        EXPECT_TRUE(SameBits(c.rows.back(), expected));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, NormTest, ::testing::ValuesIn(test::kAllPaths), test::PathName);

// The reference against double. Sums of squares add `count / 16 + 4` times; eps terms as commented.

double ExactInverseRms(const std::vector<double>& v, double eps) {
  double sum = 0.0;
  for (const double x : v) sum += x * x;
  return 1.0 / std::sqrt(sum / static_cast<double>(v.size()) + eps);
}

TEST(ReferenceRmsNorm, IsWithinTheBoundOfItsOperations) {
  constexpr std::int64_t kCount = 1000;
  Random random(1);
  Buffer<float> in(kCount);
  Buffer<Bf16> weight(kCount);
  Buffer<float> out(kCount);
  in.FillNormal(random);
  weight.FillNormal(random);
  reference::RmsNorm<float>({in.data(), kCount, weight.data(), 1e-5f, out.data()});
  std::vector<double> values(in.data(), in.data() + kCount);
  const double inverse = ExactInverseRms(values, static_cast<double>(1e-5f));
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double expected =
        values[static_cast<std::size_t>(i)] * inverse * static_cast<double>(ToFloat(weight[i]));
    // The sum's relative error enters at half; six more operations.
    const double bound = (0.5 * (kCount / 16 + 5) + 6) * 0x1p-24 * std::fabs(expected);
    EXPECT_NEAR(static_cast<double>(out[i]), expected, bound) << i;
  }
}

TEST(ReferenceRmsNorm, RoundsOnceAndKeepsEpsInsideTheRoot) {
  const Bf16 in = ToBf16(1e-3f);
  const Bf16 weight = ToBf16(1.0f);
  Bf16 out;
  reference::RmsNorm<Bf16>({&in, 1, &weight, 1e-5f, &out});
  const double x = static_cast<double>(ToFloat(in));
  EXPECT_EQ(out, ToBf16(static_cast<float>(x / std::sqrt(x * x + 1e-5))));
}

TEST(ReferenceAttnResNorm, MixesRawValuesByNormalisedScores) {
  constexpr std::int64_t kHidden = 200;
  constexpr std::int64_t kSources = 4;
  Random random(2);
  AttnResCase<float> c(kSources, kHidden, random);
  reference::AttnResNorm(c.Args());

  const double eps = static_cast<double>(1e-5f);
  std::vector<std::vector<double>> v(kSources);
  std::vector<double> p(kSources);
  double max = -1e300;
  double score_magnitude = 0.0;
  for (std::size_t s = 0; s < kSources; ++s) {
    v[s].assign(c.rows[s].data(), c.rows[s].data() + kHidden);
    double dot = 0.0;
    double magnitude = 0.0;
    for (std::size_t i = 0; i < kHidden; ++i) {
      const double product = v[s][i] * static_cast<double>(c.fold[static_cast<std::int64_t>(i)]);
      dot += product;
      magnitude += std::fabs(product);
    }
    p[s] = ExactInverseRms(v[s], eps) * dot;
    score_magnitude = std::max(score_magnitude, ExactInverseRms(v[s], eps) * magnitude);
    max = std::max(max, p[s]);
  }
  double total = 0.0;
  for (double& score : p) total += score = std::exp(score - max);
  std::vector<double> mixed(kHidden);
  double largest = 0.0;
  for (std::size_t i = 0; i < kHidden; ++i) {
    for (std::size_t s = 0; s < kSources; ++s) {
      mixed[i] += p[s] / total * v[s][i];
      largest = std::max(largest, std::fabs(v[s][i]));
    }
  }
  const double inverse = ExactInverseRms(mixed, eps);
  // A score is off by about (additions + 10) half-ulps of its magnitude; that is the relative error
  // of a probability (twice: numerator and denominator).
  const double relative = 2.0 * (kHidden / 16 + 5 + 10) * 0x1p-24 * (1.0 + score_magnitude);
  for (std::size_t i = 0; i < kHidden; ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const double weight = static_cast<double>(ToFloat(c.weight[index]));
    const double expected = mixed[i] * inverse * weight;
    const double bound = 2.0 * relative * largest * inverse * std::fabs(weight);
    EXPECT_NEAR(static_cast<double>(c.out[index]), expected, bound) << i;
  }
}

TEST(ReferenceAttnResNorm, OneSourceIsNotMixed) {
  Random random(3);
  AttnResCase<Bf16> c(1, 70, random);
  reference::AttnResNorm(c.Args());
  Buffer<Bf16> expected(70);
  reference::RmsNorm<Bf16>({c.rows[0].data(), 70, c.weight.data(), 1e-5f, expected.data()});
  EXPECT_TRUE(SameBits(c.out, expected));
}

}  // namespace
}  // namespace megalith::kernels
