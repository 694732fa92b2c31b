#include "kernels/rotary.h"

#include <complex>

#include "kernels/reference/reference.h"
#include "kernels/test_paths.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

constexpr double kTheta = 10000.0;
constexpr float kEps = 1e-5f;

TEST(RotaryAngles, AreThoseOfEachPairsFrequency) {
  // theta^(-2 / 4) = 1 / 100.
  float cos[2];
  float sin[2];
  RotaryAngles(0, kTheta, 4, cos, sin);
  EXPECT_EQ(cos[0], 1.0f);
  EXPECT_EQ(cos[1], 1.0f);
  EXPECT_EQ(sin[0], 0.0f);
  EXPECT_EQ(sin[1], 0.0f);
  RotaryAngles(50, kTheta, 4, cos, sin);
  EXPECT_FLOAT_EQ(cos[0], static_cast<float>(std::cos(50.0)));
  EXPECT_FLOAT_EQ(sin[0], static_cast<float>(std::sin(50.0)));
  EXPECT_FLOAT_EQ(cos[1], static_cast<float>(std::cos(0.5)));
  EXPECT_FLOAT_EQ(sin[1], static_cast<float>(std::sin(0.5)));
}

// In float, the angle of this position would be off by up to a thirtieth.
TEST(RotaryAngles, KeepTheirDigitsAtLargePositions) {
  constexpr std::int64_t kPosition = 1000003;
  float cos[32];
  float sin[32];
  RotaryAngles(kPosition, kTheta, 64, cos, sin);
  // Multiplying angles by squaring: e^(i position f) from e^(i f).
  for (std::int64_t j = 0; j < 32; ++j) {
    const double frequency = std::pow(kTheta, -static_cast<double>(j) / 32.0);
    std::complex<double> power = 1.0;
    std::complex<double> factor = std::polar(1.0, frequency);
    for (std::int64_t n = kPosition; n > 0; n /= 2) {
      if (n % 2 == 1) power *= factor;
      factor *= factor;
    }
    EXPECT_NEAR(static_cast<double>(cos[j]), power.real(), 1e-7) << j;
    EXPECT_NEAR(static_cast<double>(sin[j]), power.imag(), 1e-7) << j;
  }
}

/// Some heads of one row, in wider matrices.
template <typename Act>
struct RotaryCase {
  RotaryCase(std::int64_t head_count, std::int64_t dim, std::int64_t position, std::uint64_t seed)
      : heads(head_count),
        head_dim(dim),
        in(head_count * (dim + 3), 1),
        out(head_count * (dim + 5), 2),
        weight(dim, 3),
        cos(dim / 2, 1),
        sin(dim / 2, 2) {
    Random random(seed);
    in.FillNormal(random, seed % 2 == 0 ? 1.0f : 1e-3f);  // 1e-3: eps matters
    weight.FillNormal(random);
    out.Fill([] { return 7.0f; });
    RotaryAngles(position, kTheta, dim, cos.data(), sin.data());
  }
  HeadNormRotaryArgs<Act> Args() {
    return {heads, head_dim,   in.data(),  head_dim + 3, weight.data(),
            kEps,  cos.data(), sin.data(), out.data(),   head_dim + 5};
  }
  std::int64_t heads, head_dim;
  Buffer<Act> in, out;
  Buffer<Bf16> weight;
  Buffer<float> cos, sin;
};

class HeadNormRotaryTest : public test::PathTest {};

TEST_P(HeadNormRotaryTest, EveryShapeMatchesReferenceInPlaceAndNot) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    for (const std::int64_t dim : {2, 4, 14, 16, 30, 32, 34, 48, 64, 66, 96, 128, 200}) {
      for (const std::int64_t heads : {1, 2, 5}) {
        SCOPED_TRACE("dim " + std::to_string(dim) + " heads " + std::to_string(heads));
        const auto seed = static_cast<std::uint64_t>(dim + heads);
        RotaryCase<Act> actual(heads, dim, 77 * dim, seed);
        RotaryCase<Act> expected(heads, dim, 77 * dim, seed);
        table.head_norm_rotary(actual.Args());
        reference::HeadNormRotary(expected.Args());
        EXPECT_TRUE(SameBits(actual.out, expected.out));
        EXPECT_TRUE(actual.out.CanariesIntact());
        HeadNormRotaryArgs<Act> in_place = actual.Args();
        in_place.out = actual.in.data();
        in_place.out_stride = in_place.in_stride;
        table.head_norm_rotary(in_place);
        for (std::int64_t head = 0; head < heads; ++head) {
          EXPECT_TRUE(SameBits(actual.in.data() + head * in_place.in_stride,
                               expected.out.data() + head * (dim + 5), dim));
          // Between the heads: untouched.
          EXPECT_TRUE(SameBits(actual.in.data() + head * in_place.in_stride + dim,
                               expected.in.data() + head * in_place.in_stride + dim, 3));
        }
        EXPECT_TRUE(actual.in.CanariesIntact());
      }
    }
  });
}

TEST_P(HeadNormRotaryTest, PositionZeroIsTheNormAlone) {
  OnPath([]<typename Act>(const KernelTable<Act>& table) {
    RotaryCase<Act> c(1, 64, 0, 4);
    table.head_norm_rotary(c.Args());
    Buffer<Act> normed(64);
    table.rms_norm({c.in.data(), 64, c.weight.data(), kEps, normed.data()});
    EXPECT_TRUE(SameBits(c.out.data(), normed.data(), 64));
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, HeadNormRotaryTest, ::testing::ValuesIn(test::kAllPaths),
                         test::PathName);

// Pairs (j, j + h) turn as complex numbers. The norm is off by its sum (half of dim / 16 + 5
// half-ulps) and six operations, the turn by two products, a sum and the rounding of cos and sin.
TEST(ReferenceHeadNormRotary, TurnsNormedPairsByTheAngle) {
  constexpr std::int64_t kDim = 64;
  constexpr std::int64_t kHalf = kDim / 2;
  constexpr std::int64_t kPosition = 1234;
  RotaryCase<float> c(2, kDim, kPosition, 6);
  reference::HeadNormRotary(c.Args());
  for (std::int64_t head = 0; head < 2; ++head) {
    const float* in = c.in.data() + head * (kDim + 3);
    const float* out = c.out.data() + head * (kDim + 5);
    double squares = 0.0;
    for (std::int64_t i = 0; i < kDim; ++i) {
      squares += static_cast<double>(in[i]) * static_cast<double>(in[i]);
    }
    const double inverse = 1.0 / std::sqrt(squares / kDim + static_cast<double>(kEps));
    const auto normed = [&](std::int64_t i) {
      return static_cast<double>(in[i]) * inverse * static_cast<double>(ToFloat(c.weight[i]));
    };
    for (std::int64_t j = 0; j < kHalf; ++j) {
      const std::complex<double> pair(normed(j), normed(j + kHalf));
      const double angle = kPosition * std::pow(kTheta, -2.0 * static_cast<double>(j) / kDim);
      const std::complex<double> expected = pair * std::polar(1.0, angle);
      const double bound = (0.5 * (kDim / 16 + 5) + 6 + 4) * 0x1p-24 * 2.0 * std::abs(pair);
      EXPECT_NEAR(static_cast<double>(out[j]), expected.real(), bound) << j;
      EXPECT_NEAR(static_cast<double>(out[j + kHalf]), expected.imag(), bound) << j;
    }
  }
}

TEST(ReferenceHeadNormRotary, RoundsTheNormBeforeTheTurn) {
  const Bf16 in[] = {ToBf16(0.7f), ToBf16(0.3f)};
  const Bf16 weight[] = {ToBf16(1.3f), ToBf16(0.9f)};
  const float cos = 0.6f;
  const float sin = 0.8f;
  Bf16 out[2];
  reference::HeadNormRotary<Bf16>({1, 2, in, 2, weight, kEps, &cos, &sin, out, 2});
  Bf16 normed[2];
  reference::RmsNorm<Bf16>({in, 2, weight, kEps, normed});
  const float a = ToFloat(normed[0]);
  const float b = ToFloat(normed[1]);
  EXPECT_EQ(out[0], ToBf16(a * 0.6f - b * 0.8f));
  EXPECT_EQ(out[1], ToBf16(b * 0.6f + a * 0.8f));
}

}  // namespace
}  // namespace megalith::kernels
