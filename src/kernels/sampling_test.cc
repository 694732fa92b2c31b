#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/flush_denormals.h"
#include "kernels/test_util.h"

namespace megalith::kernels {
namespace {

using test::Random;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kDraws = 200000;

std::int32_t MustSample(const SamplingOptions& options, const std::vector<float>& logits,
                        std::int64_t position) {
  SamplingScratch scratch(static_cast<std::int64_t>(logits.size()));
  const SampledToken sampled = Sample(logits, options, position, scratch);
  EXPECT_GE(sampled.token, 0);
  return sampled.token;
}

/// What the options keep of the logits, most likely first, with weights: by sorting, in double.
struct KeptTokens {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
};
KeptTokens KeepBySorting(const std::vector<float>& logits, const SamplingOptions& options) {
  KeptTokens kept;
  kept.ids.resize(logits.size());
  std::iota(kept.ids.begin(), kept.ids.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(kept.ids.begin(), kept.ids.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < kept.ids.size()) {
    kept.ids.resize(static_cast<std::size_t>(options.top_k));
  }
  const auto top = static_cast<double>(logit(kept.ids[0]));
  for (const std::int32_t id : kept.ids) {
    kept.weights.push_back(std::exp((static_cast<double>(logit(id)) - top) /
                                    static_cast<double>(options.temperature)));
  }
  const double total = std::accumulate(kept.weights.begin(), kept.weights.end(), 0.0);
  double before = 0.0;
  std::size_t count = 0;
  while (count < kept.ids.size() &&
         (options.top_p == 1.0f || before < static_cast<double>(options.top_p) * total) &&
         kept.weights[count] >= static_cast<double>(options.min_p)) {
    before += kept.weights[count++];
  }
  kept.ids.resize(count);
  kept.weights.resize(count);
  return kept;
}

/// The definition of the draw: the smallest time among what is kept.
std::int32_t DrawByDefinition(const KeptTokens& kept, std::uint64_t seed, std::int64_t position) {
  std::int32_t winner = -1;
  double best = 0.0;
  for (std::size_t i = 0; i < kept.ids.size(); ++i) {
    const double time = -std::log1p(-SamplingNoise(seed, position, kept.ids[i])) / kept.weights[i];
    if (winner < 0 || time < best || (time == best && kept.ids[i] < winner)) {
      best = time;
      winner = kept.ids[i];
    }
  }
  return winner;
}

/// Exact probability of every token.
std::vector<double> ExactDistribution(const std::vector<float>& logits,
                                      const SamplingOptions& options) {
  const KeptTokens kept = KeepBySorting(logits, options);
  const double total = std::accumulate(kept.weights.begin(), kept.weights.end(), 0.0);
  std::vector<double> probabilities(logits.size(), 0.0);
  for (std::size_t i = 0; i < kept.ids.size(); ++i) {
    probabilities[static_cast<std::size_t>(kept.ids[i])] = kept.weights[i] / total;
  }
  return probabilities;
}

/// Pearson's statistic in standard deviations of a normal variable, by Wilson and Hilferty. Cells
/// with less than 10 expected counts are joined; a count where nothing is expected is infinite.
double ChiSquareDeviation(const std::vector<std::int64_t>& counts,
                          const std::vector<double>& probabilities) {
  const auto total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  double statistic = 0.0;
  double cells = 0.0;
  double rare_count = 0.0;
  double rare_expected = 0.0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    cells += 1.0;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * total;
    const auto count = static_cast<double>(counts[i]);
    if (expected == 0.0 && count > 0.0) return 1e300;
    if (expected >= 10.0) {
      add(count, expected);
    } else {
      rare_count += count;
      rare_expected += expected;
    }
  }
  if (rare_expected > 0.0) add(rare_count, rare_expected);
  const double freedom = cells - 1.0;
  if (freedom < 1.0) return 0.0;
  const double spread = 2.0 / (9.0 * freedom);
  return (std::cbrt(statistic / freedom) - (1.0 - spread)) / std::sqrt(spread);
}

/// One in 10^4 of right distributions is beyond it; seeds are fixed, so a test that passes does so
/// for ever.
constexpr double kLimit = 3.7;

std::vector<float> NormalLogits(std::int64_t count, float scale, Random& random) {
  std::vector<float> logits;
  for (std::int64_t i = 0; i < count; ++i) logits.push_back(scale * random.Normal());
  return logits;
}

// p = 0.5, 0.25, 0.15, 0.1
const std::vector<float> kLogits = {std::log(0.5f), std::log(0.25f), std::log(0.15f),
                                    std::log(0.1f)};

TEST(Sample, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(MustSample({}, {1.0f, 3.0f, 3.0f, 2.0f}, 0), 1);
  std::vector<float> many(200, 0.0f);
  many[150] = many[170] = 1.0f;
  EXPECT_EQ(MustSample({}, many, 0), 150);
  many[199] = 2.0f;
  EXPECT_EQ(MustSample({}, many, 0), 199);
  EXPECT_EQ(MustSample({}, {-0.0f, 0.0f}, 0), 0);
}

TEST(Sample, TinyTemperaturesAreGreedyAndDoNotOverflow) {
  for (float temperature : {1e-30f, 1e-8f, 0x1p-126f, std::numeric_limits<float>::denorm_min()}) {
    for (int position = 0; position < 100; ++position) {
      EXPECT_EQ(MustSample({.temperature = temperature}, {100.0f, 3e38f, -3e38f, 2.0f}, position),
                1);
    }
  }
}

TEST(Sample, HugeTemperaturesAreUniformOverWhatIsPossible) {
  const std::vector<float> logits = {-kInfinity, 50.0f, -50.0f, 0.0f};
  SamplingScratch scratch(4);
  std::vector<std::int64_t> counts(4);
  for (int position = 0; position < kDraws; ++position) {
    const SamplingOptions options{.temperature = 3e38f, .top_p = position % 2 == 0 ? 1.0f : 0.99f};
    ++counts[static_cast<std::size_t>(Sample(logits, options, position, scratch).token)];
  }
  EXPECT_LT(ChiSquareDeviation(counts, {0.0, 1.0 / 3, 1.0 / 3, 1.0 / 3}), kLimit);
}

TEST(Sample, TopPKeepsTokensWhoseMassBeforeIsBelowIt) {
  // 0.5 before the second, 0.75 before the third.
  EXPECT_EQ(KeepBySorting(kLogits, {.temperature = 1.0f, .top_p = 0.7f}).ids.size(), 2u);
  for (int position = 0; position < 1000; ++position) {
    EXPECT_LT(MustSample({.temperature = 1.0f, .top_p = 0.7f}, kLogits, position), 2);
    EXPECT_EQ(MustSample({.temperature = 1.0f, .top_p = 0.0001f}, kLogits, position), 0);
  }
}

/// Random options and logits that are full of ties.
struct RandomCase {
  RandomCase(Random& random, std::int64_t largest_vocab) {
    const std::int64_t count = 1 + random.Below(largest_vocab);
    const float scale = random.Below(3) == 0 ? 0.3f : 2.0f;
    logits = NormalLogits(count, scale, random);
    if (random.Below(2) == 0) {
      for (float& x : logits) x = std::round(x * 2.0f) / 2.0f;
    }
    for (float& x : logits) {
      if (random.Below(20) == 0) x = -kInfinity;
    }
    logits[static_cast<std::size_t>(random.Below(count))] = 1.0f;
    options.temperature = 0.2f + 0.9f * (1.0f + random.Unit());
    if (random.Below(2) == 0) options.top_p = 0.5f + 0.499f * random.Unit();
    if (random.Below(3) == 0) options.top_k = static_cast<std::int32_t>(1 + random.Below(count));
    if (random.Below(3) == 0) options.min_p = 0.3f * std::fabs(random.Unit());
    options.seed = random.Next();
  }
  std::vector<float> logits;
  SamplingOptions options;
};

std::string Describe(const RandomCase& c) {
  return std::to_string(c.logits.size()) + " logits, temperature " +
         std::to_string(c.options.temperature) + ", top_p " + std::to_string(c.options.top_p) +
         ", top_k " + std::to_string(c.options.top_k) + ", min_p " +
         std::to_string(c.options.min_p);
}

TEST(Sample, EqualsTheRaceOverWhatSortingKeeps) {
  Random random(31);
  for (int repeat = 0; repeat < 3000; ++repeat) {
    const RandomCase c(random, repeat % 4 == 0 ? 700 : 70);
    const KeptTokens kept = KeepBySorting(c.logits, c.options);
    SamplingScratch scratch(static_cast<std::int64_t>(c.logits.size()));
    for (std::int64_t position = 0; position < 50; ++position) {
      ASSERT_EQ(Sample(c.logits, c.options, position, scratch).token,
                DrawByDefinition(kept, c.options.seed, position))
          << Describe(c) << " at " << position;
    }
  }
}

// So flat that every token that is kept turns up.
TEST(Sample, DrawsAllThatSortingKeepsAndNothingElse) {
  Random random(32);
  for (int repeat = 0; repeat < 300; ++repeat) {
    RandomCase c(random, 12);
    c.options.temperature = 4.0f;
    const KeptTokens kept = KeepBySorting(c.logits, c.options);
    std::vector<std::int32_t> expected;
    for (std::size_t i = 0; i < kept.ids.size(); ++i) {
      if (kept.weights[i] > 0.0) expected.push_back(kept.ids[i]);
    }
    std::sort(expected.begin(), expected.end());
    std::vector<bool> drawn(c.logits.size());
    SamplingScratch scratch(static_cast<std::int64_t>(c.logits.size()));
    for (std::int64_t position = 0; position < 2000; ++position) {
      drawn[static_cast<std::size_t>(Sample(c.logits, c.options, position, scratch).token)] = true;
    }
    std::vector<std::int32_t> found;
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      if (drawn[i]) found.push_back(static_cast<std::int32_t>(i));
    }
    ASSERT_EQ(found, expected) << Describe(c);
  }
}

TEST(Sample, LargeVocabulariesEqualTheDefinition) {
  Random random(33);
  const SamplingOptions all_options[] = {
      {.temperature = 1.0f},
      {.temperature = 0.7f, .top_p = 0.95f},
      {.temperature = 1.0f, .top_p = 0.2f},
      {.temperature = 1.0f, .top_k = 50},
      {.temperature = 1.5f, .top_p = 0.9f, .top_k = 30000},
      {.temperature = 1.0f, .top_p = 0.99f, .min_p = 0.02f},
  };
  for (const bool ties : {false, true}) {
    std::vector<float> logits = NormalLogits(100037, 1.5f, random);
    if (ties) {
      for (float& x : logits) x = std::round(x * 4.0f) / 4.0f;
    }
    SamplingScratch scratch(100037);
    for (SamplingOptions options : all_options) {
      const KeptTokens kept = KeepBySorting(logits, options);
      for (std::int64_t position = 0; position < 20; ++position) {
        options.seed = random.Next();
        EXPECT_EQ(Sample(logits, options, position, scratch).token,
                  DrawByDefinition(kept, options.seed, position))
            << "temperature " << options.temperature << " top_p " << options.top_p << " top_k "
            << options.top_k << " min_p " << options.min_p << (ties ? " ties" : "");
      }
    }
  }
}

/// Counts of 200,000 draws, half over positions, half over seeds.
std::vector<std::int64_t> Draw(const std::vector<float>& logits, SamplingOptions options) {
  SamplingScratch scratch(static_cast<std::int64_t>(logits.size()));
  std::vector<std::int64_t> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    options.seed = i % 2 == 0 ? 1 : static_cast<std::uint64_t>(i);
    const std::int64_t position = i % 2 == 0 ? i : 77;
    ++counts[static_cast<std::size_t>(Sample(logits, options, position, scratch).token)];
  }
  return counts;
}

TEST(Sample, DrawsTheTruncatedDistribution) {
  Random random(34);
  const SamplingOptions all_options[] = {
      {.temperature = 1.0f},
      {.temperature = 0.5f},
      {.temperature = 2.0f, .top_p = 0.8f},
      {.temperature = 1.0f, .top_k = 4},
      {.temperature = 1.0f, .min_p = 0.1f},
      {.temperature = 0.8f, .top_p = 0.95f, .top_k = 30, .min_p = 0.02f},
  };
  for (const std::int64_t vocab_size : {5, 20, 50}) {
    for (const SamplingOptions& options : all_options) {
      const std::vector<float> logits = NormalLogits(vocab_size, 1.0f, random);
      const std::vector<double> exact = ExactDistribution(logits, options);
      const std::vector<std::int64_t> counts = Draw(logits, options);
      EXPECT_LT(ChiSquareDeviation(counts, exact), kLimit)
          << vocab_size << " tokens, temperature " << options.temperature << " top_p "
          << options.top_p << " top_k " << options.top_k << " min_p " << options.min_p;

      // The same check tells a distribution that is off by one percent of the mass.
      std::vector<double> wrong = exact;
      const auto largest = std::max_element(wrong.begin(), wrong.end());
      *largest -= 0.01;
      auto& other = wrong[largest == wrong.begin() ? 1 : 0];
      other += 0.01;
      EXPECT_GT(ChiSquareDeviation(counts, wrong), kLimit + 2.0);
    }
  }
}

TEST(Sample, NeighbouringPositionsAndSeedsAreIndependent) {
  Random random(35);
  const std::vector<float> logits = NormalLogits(6, 1.0f, random);
  const SamplingOptions options{.temperature = 1.0f};
  const std::vector<double> single = ExactDistribution(logits, options);
  std::vector<double> pairs;
  for (const double a : single) {
    for (const double b : single) pairs.push_back(a * b);
  }
  SamplingScratch scratch(6);
  const auto token = [&](std::uint64_t seed, std::int64_t position) {
    const SamplingOptions seeded{.temperature = 1.0f, .seed = seed};
    return static_cast<std::size_t>(Sample(logits, seeded, position, scratch).token);
  };
  std::vector<std::int64_t> positions(36), seeds(36), diagonals(36), repeated(36);
  for (int i = 0; i < kDraws; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    ++positions[token(3, 2 * i) * 6 + token(3, 2 * i + 1)];
    ++seeds[token(2 * seed, 5) * 6 + token(2 * seed + 1, 5)];
    ++diagonals[token(seed, 2 * i) * 6 + token(seed + 1, 2 * i + 1)];
    ++repeated[token(3, 2 * i) * 6 + token(3, 2 * i)];
  }
  EXPECT_LT(ChiSquareDeviation(positions, pairs), kLimit);
  EXPECT_LT(ChiSquareDeviation(seeds, pairs), kLimit);
  EXPECT_LT(ChiSquareDeviation(diagonals, pairs), kLimit);
  EXPECT_GT(ChiSquareDeviation(repeated, pairs), 100.0);
}

/// Chi-square of pairs of noise in 16 x 16 cells.
template <typename Noise>
double PairDeviation(Noise noise) {
  std::vector<std::int64_t> counts(256);
  for (std::int64_t i = 0; i < kDraws; ++i) {
    const auto [a, b] = noise(i);
    ++counts[static_cast<std::size_t>(a * 16.0) * 16 + static_cast<std::size_t>(b * 16.0)];
  }
  return ChiSquareDeviation(counts, std::vector<double>(256, 1.0 / 256));
}

TEST(SamplingNoise, IsUniformAndIndependentOfItsNeighbours) {
  const auto token = [](std::int64_t i) { return static_cast<std::int32_t>(i); };
  EXPECT_LT(PairDeviation([&](std::int64_t i) {
              return std::pair(SamplingNoise(1, 9, token(2 * i)),
                               SamplingNoise(1, 9, token(2 * i + 1)));
            }),
            kLimit);
  EXPECT_LT(PairDeviation([&](std::int64_t i) {
              return std::pair(SamplingNoise(1, 9, token(2 * i + 1)),
                               SamplingNoise(1, 9, token(2 * i + 2)));
            }),
            kLimit);
  EXPECT_LT(PairDeviation([](std::int64_t i) {
              return std::pair(SamplingNoise(4, 2 * i, 100), SamplingNoise(4, 2 * i + 1, 100));
            }),
            kLimit);
  EXPECT_LT(PairDeviation([](std::int64_t i) {
              const auto seed = static_cast<std::uint64_t>(i);
              return std::pair(SamplingNoise(2 * seed, 7, 5), SamplingNoise(2 * seed + 1, 7, 5));
            }),
            kLimit);
  // The digits below the shared random number, and those near zero, which decide for rare tokens.
  EXPECT_LT(PairDeviation([&](std::int64_t i) {
              const double low = std::ldexp(SamplingNoise(6, 1, token(i)), 32);
              return std::pair(low - std::floor(low), SamplingNoise(6, 1, token(i)));
            }),
            kLimit);
  EXPECT_GT(PairDeviation([&](std::int64_t i) {
              const double noise = SamplingNoise(1, 9, token(i));
              return std::pair(noise, noise);
            }),
            100.0);
}

TEST(SamplingNoise, SmallValuesAreAsFrequentAsTheyShould) {
  std::vector<std::int64_t> counts(20);
  for (std::int32_t token = 0; token < 4000000; ++token) {
    const double noise = SamplingNoise(11, 3, token);
    ASSERT_TRUE(noise > 0.0 && noise < 1.0);
    ++counts[static_cast<std::size_t>(std::min(19, -std::ilogb(noise) - 1))];
  }
  std::vector<double> expected(20);
  for (int i = 0; i < 20; ++i) {
    expected[static_cast<std::size_t>(i)] = std::ldexp(1.0, -std::min(i + 1, 19));
  }
  EXPECT_LT(ChiSquareDeviation(counts, expected), kLimit);
}

TEST(SamplingNoise, StaysWhatItIs) {
  // Other values would change the text of every seed.
  EXPECT_EQ(SamplingNoise(0, 0, 0), 0x1.5b01ae2d4a2e1p-1);
  EXPECT_EQ(SamplingNoise(0, 0, 1), 0x1.72d567f145ee6p-2);
  EXPECT_EQ(SamplingNoise(42, 1000, 163839), 0x1.08776c84b32a8p-4);
}

/// Share of 200,000 noises with which two distributions draw the same token.
double SharedDraws(const std::vector<float>& p, const std::vector<float>& q,
                   const SamplingOptions& options) {
  SamplingScratch scratch(static_cast<std::int64_t>(p.size()));
  int same = 0;
  for (int position = 0; position < kDraws; ++position) {
    same +=
        Sample(p, options, position, scratch).token == Sample(q, options, position, scratch).token
            ? 1
            : 0;
  }
  return static_cast<double>(same) / kDraws;
}

TEST(Sample, SimilarDistributionsDrawTheSameTokenAsOftenAsARaceSays) {
  Random random(36);
  for (const float change : {0.1f, 0.5f, 2.0f}) {
    for (const float top_p : {1.0f, 0.9f}) {
      const SamplingOptions options{.temperature = 1.0f, .top_p = top_p, .seed = 5};
      const std::vector<float> target = NormalLogits(30, 1.5f, random);
      std::vector<float> draft = target;
      for (float& x : draft) x += change * random.Normal();
      const std::vector<double> p = ExactDistribution(target, options);
      const std::vector<double> q = ExactDistribution(draft, options);
      double expected = 0.0;
      double distance = 0.0;
      for (std::size_t i = 0; i < p.size(); ++i) {
        distance += 0.5 * std::fabs(p[i] - q[i]);
        if (p[i] == 0.0 || q[i] == 0.0) continue;
        double sum = 0.0;
        for (std::size_t j = 0; j < p.size(); ++j) sum += std::max(p[j] / p[i], q[j] / q[i]);
        expected += 1.0 / sum;
      }
      const double found = SharedDraws(target, draft, options);
      const double deviation = std::sqrt(expected * (1.0 - expected) / kDraws);
      EXPECT_NEAR(found, expected, 4.0 * deviation) << "change " << change << " top_p " << top_p;
      EXPECT_GT(found, (1.0 - distance) / (1.0 + distance) - 4.0 * deviation);
    }
  }
}

TEST(Sample, SameSeedAndPositionGiveTheSameTokenOthersDiffer) {
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

// Workers flush denormals, the thread of a generation does not.
TEST(Sample, FlushingDenormalsChangesNothing) {
  Random random(37);
  for (int repeat = 0; repeat < 500; ++repeat) {
    RandomCase c(random, 200);
    if (repeat % 3 == 0) c.options.temperature = 1e-39f;
    if (repeat % 5 == 0) c.options.top_p = 1e-40f;
    if (repeat % 7 == 0) c.options.min_p = 1e-40f;
    if (repeat % 2 == 0) {
      for (float& x : c.logits) x *= 30.0f;  // weights down to the smallest
    }
    const std::int32_t token = MustSample(c.options, c.logits, repeat);
    const ScopedFlushDenormals flush;
    EXPECT_EQ(MustSample(c.options, c.logits, repeat), token) << Describe(c);
  }
}

TEST(Sample, ScratchOfALargerVocabularyServes) {
  SamplingScratch scratch(1000);
  EXPECT_EQ(scratch.vocab_size(), 1000);
  const SamplingOptions options{.temperature = 1.0f, .top_p = 0.9f, .top_k = 3};
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(Sample(kLogits, options, position, scratch).token,
              MustSample(options, kLogits, position));
  }
}

TEST(Sample, LogitsThatAreNoDistributionAreAnError) {
  struct Bad {
    std::vector<float> logits;
    std::int64_t bad_logit;
    const char* message;
  };
  std::vector<float> late(500, 1.0f);
  late[321] = kNan;
  late[400] = kInfinity;
  const Bad cases[] = {
      {{1.0f, kNan, 2.0f}, 1, "logits for position 8: token 1 has nan, a finite number expected"},
      {{-kNan, 1.0f}, 0, "token 0 has"},
      {{1.0f, kInfinity}, 1, "token 1 has inf"},
      {{1.0f, kInfinity, kNan}, 1, "token 1 has inf"},
      {late, 321, "token 321 has nan"},
      {{-kInfinity, -kInfinity}, -1, "logits for position 8: all 2 tokens are impossible"},
      {{}, -1, "all 0 tokens are impossible"},
  };
  SamplingScratch scratch(500);
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 1.0f},
        SamplingOptions{.temperature = 1.0f, .top_p = 0.5f, .top_k = 1}}) {
    for (const Bad& bad : cases) {
      const SampledToken sampled = Sample(bad.logits, options, 8, scratch);
      EXPECT_EQ(sampled.token, -1);
      EXPECT_EQ(sampled.bad_logit, bad.bad_logit);
      const auto token = TokenOrError(sampled, bad.logits, 8);
      ASSERT_FALSE(token.has_value());
      EXPECT_EQ(token.error().code, ErrorCode::kNumeric);
      EXPECT_NE(token.error().message.find(bad.message), std::string::npos)
          << token.error().message;
    }
  }
  EXPECT_EQ(TokenOrError({.token = 3}, kLogits, 8).value(), 3);
}

TEST(Sample, ImpossibleTokensAreNeverDrawn) {
  for (int position = 0; position < 1000; ++position) {
    EXPECT_NE(MustSample({.temperature = 2.0f}, {0.0f, -kInfinity, 0.0f}, position), 1);
  }
}

std::int32_t SampleAdjusted(const std::vector<float>& logits, const LogitAdjustment& adjustment,
                            const SamplingOptions& options = {}) {
  EXPECT_TRUE(CheckAdjustment(adjustment, static_cast<std::int64_t>(logits.size())));
  SamplingScratch scratch(static_cast<std::int64_t>(logits.size()));
  return Sample(logits, options, 1, scratch, adjustment).token;
}

TEST(SampleAdjusted, DividesPositiveLogitsMultipliesOthersThenAdds) {
  const std::vector<LogitChange> halved = {{0, 2.0f, 0.0f}, {1, 2.0f, 0.0f}};
  EXPECT_EQ(SampleAdjusted({3.0f, -1.0f, 1.4f}, {halved, {}}), 0);
  EXPECT_EQ(SampleAdjusted({3.0f, -1.0f, 1.6f}, {halved, {}}), 2);
  EXPECT_EQ(SampleAdjusted({-3.0f, -1.0f, -1.9f}, {halved, {}}), 2);
  EXPECT_EQ(SampleAdjusted({-3.0f, -1.0f, -2.1f}, {halved, {}}), 1);
  const std::vector<LogitChange> raised = {{0, 2.0f, 1.0f}};
  EXPECT_EQ(SampleAdjusted({2.0f, 1.9f}, {raised, {}}), 0);  // 2 / 2 + 1, not (2 + 1) / 2
  EXPECT_EQ(SampleAdjusted({2.0f, 2.1f}, {raised, {}}), 1);
}

TEST(SampleAdjusted, ForbiddenTokensAreNeverChosen) {
  std::vector<float> logits(130, 0.0f);
  logits[129] = 50.0f;
  const std::vector<LogitChange> forbidden = {{129, 1.0f, -kInfinity}};
  EXPECT_EQ(SampleAdjusted(logits, {forbidden, {}}), 0);
  std::vector<std::uint64_t> allowed = {0, std::uint64_t{1} << 63, 0};
  EXPECT_EQ(SampleAdjusted(logits, {{}, allowed}), 127);
  allowed[2] = 1;
  logits[128] = 5.0f;
  EXPECT_EQ(SampleAdjusted(logits, {{}, allowed}), 128);
  EXPECT_EQ(SampleAdjusted(logits, {forbidden, allowed}, {.temperature = 1e-3f}), 128);
  allowed = {0, 0, 2};
  EXPECT_EQ(SampleAdjusted(logits, {forbidden, allowed}), -1) << "nothing is left";
}

TEST(SampleAdjusted, BadLogitsAreNotHidden) {
  const std::vector<LogitChange> forbidden = {{1, 1.0f, -kInfinity}};
  const std::vector<std::uint64_t> allowed = {1};
  for (const float bad : {kNan, kInfinity}) {
    EXPECT_EQ(SampleAdjusted({0.0f, bad}, {forbidden, {}}), -1);
    EXPECT_EQ(SampleAdjusted({0.0f, bad}, {{}, allowed}), -1);
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
}  // namespace megalith::kernels
