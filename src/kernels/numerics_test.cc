#include "kernels/numerics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include "kernels/cpu/paths.h"
#include "kernels/flush_denormals.h"
#include "kernels/test_util.h"

namespace megalith::kernels {
namespace {

using test::Bits;
using test::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMinNormal = std::numeric_limits<float>::min();

/// Every bit pattern in steps of a prime: about 4 million values of all exponents, both signs.
template <typename Visit>
void ForManyFloats(Visit visit) {
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 1009) {
    visit(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
}

/// Error in units of the last place of `exact` as a float.
double UlpError(float actual, double exact) {
  const double magnitude = std::max(std::fabs(exact), static_cast<double>(kMinNormal));
  const double ulp = std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::fabs(static_cast<double>(actual) - exact) / ulp;
}

/// Largest error of `function` over all finite floats whose result is a normal float or zero.
/// Results that would be denormal must be zero.
double LargestUlpError(float (*function)(float), double (*exact_function)(double)) {
  const ScopedFlushDenormals flush;
  double largest = 0.0;
  float at = 0.0f;
  ForManyFloats([&](float x) {
    if (!std::isfinite(x) || (x != 0.0f && std::fabs(x) < kMinNormal)) return;
    const double exact = exact_function(static_cast<double>(x));
    const float actual = function(x);
    if (std::fabs(exact) > static_cast<double>(std::numeric_limits<float>::max())) {
      EXPECT_EQ(actual, exact > 0.0 ? kInf : -kInf) << "x = " << x;
      return;
    }
    if (std::fabs(exact) < static_cast<double>(kMinNormal)) {
      EXPECT_LE(std::fabs(actual), kMinNormal) << "x = " << x;
      return;
    }
    const double error = UlpError(actual, exact);
    if (!(error <= largest)) {
      largest = error;
      at = x;
    }
  });
  std::printf("largest error %.3f ulp at %.9g\n", largest, static_cast<double>(at));
  return largest;
}

TEST(Exp, IsWithinOneUlp) {
  EXPECT_LT(LargestUlpError(Exp, [](double x) { return std::exp(x); }), 1.0);
}
TEST(Sigmoid, IsWithinTwoAndAHalfUlp) {
  EXPECT_LT(LargestUlpError(Sigmoid, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }), 2.5);
}
TEST(Tanh, IsWithinTwoUlp) {
  EXPECT_LT(LargestUlpError(Tanh, [](double x) { return std::tanh(x); }), 2.0);
}
TEST(Softplus, IsWithinThreeUlp) {
  EXPECT_LT(LargestUlpError(
                Softplus,
                [](double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }),
            3.0);
}
TEST(Silu, IsWithinThreeAndAHalfUlpAndZeroWhereTheExponentialIs) {
  EXPECT_LT(LargestUlpError(Silu,
                            [](double x) {
                              return x < static_cast<double>(constants::kExpMin)
                                         ? 0.0
                                         : x / (1.0 + std::exp(-x));
                            }),
            3.5);
}

TEST(Exp, ZeroAndLimitsAreExact) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(kInf), kInf);
  EXPECT_EQ(Bits(Exp(-kInf)), Bits(0.0f));
  EXPECT_EQ(Exp(std::numeric_limits<float>::denorm_min()), 1.0f);
}

TEST(Exp, OverflowAndUnderflowBeginAtTheDocumentedArguments) {
  const float above = std::nextafter(constants::kExpMax, kInf);
  EXPECT_TRUE(std::isfinite(Exp(constants::kExpMax)));
  EXPECT_EQ(Exp(above), kInf);
  EXPECT_GT(std::exp(static_cast<double>(above)),
            static_cast<double>(std::numeric_limits<float>::max()));
  const float below = std::nextafter(constants::kExpMin, -kInf);
  EXPECT_GE(Exp(constants::kExpMin), kMinNormal);
  EXPECT_EQ(Exp(below), 0.0f);
  EXPECT_LT(std::exp(static_cast<double>(below)), static_cast<double>(kMinNormal));
}

TEST(Sigmoid, ZeroAndLimitsAreExact) {
  EXPECT_EQ(Sigmoid(0.0f), 0.5f);
  EXPECT_EQ(Sigmoid(kInf), 1.0f);
  EXPECT_EQ(Sigmoid(-kInf), 0.0f);
  EXPECT_EQ(Sigmoid(-1000.0f), 0.0f);
  EXPECT_EQ(Sigmoid(1000.0f), 1.0f);
}

TEST(Tanh, ZeroTinyAndLimitsAreExact) {
  EXPECT_EQ(Bits(Tanh(0.0f)), Bits(0.0f));
  EXPECT_EQ(Bits(Tanh(-0.0f)), Bits(-0.0f));
  EXPECT_EQ(Tanh(1e-30f), 1e-30f);
  EXPECT_EQ(Tanh(-kMinNormal), -kMinNormal);
  EXPECT_EQ(Tanh(kInf), 1.0f);
  EXPECT_EQ(Tanh(-kInf), -1.0f);
  EXPECT_EQ(Tanh(50.0f), 1.0f);
}

TEST(Softplus, LimitsAreExact) {
  EXPECT_EQ(Softplus(kInf), kInf);
  EXPECT_EQ(Softplus(-kInf), 0.0f);
  EXPECT_EQ(Softplus(100.0f), 100.0f);
}

TEST(Functions, NanGivesNan) {
  for (const float nan : {kNan, -kNan}) {
    EXPECT_TRUE(std::isnan(Exp(nan)));
    EXPECT_TRUE(std::isnan(Sigmoid(nan)));
    EXPECT_TRUE(std::isnan(Tanh(nan)));
    EXPECT_TRUE(std::isnan(Softplus(nan)));
    EXPECT_TRUE(std::isnan(Silu(nan)));
    EXPECT_TRUE(std::isnan(Rsqrt(nan)));
  }
}

TEST(Situ, CapsBothBranchesButNotTheSigmoid) {
  EXPECT_NEAR(Situ(1000.0f, 1000.0f, 4.0f, 25.0f), 100.0f, 1e-4f);
  EXPECT_NEAR(Situ(1000.0f, 1000.0f, 4.0f, 0.0f), 4000.0f, 1e-2f);
  // beta tanh(g / beta) sigmoid(g), g = -3: the sigmoid sees -3, not the capped -2.54.
  const double g = -3.0;
  const double expected =
      4.0 * std::tanh(g / 4.0) / (1.0 + std::exp(-g)) * 25.0 * std::tanh(2.0 / 25.0);
  EXPECT_NEAR(static_cast<double>(Situ(-3.0f, 2.0f, 4.0f, 25.0f)), expected,
              8 * 0x1p-24 * std::fabs(expected));
}

// The definition computes in double; a hardware or libm fma must agree for bf16 factors, in the
// flushing mode of the workers.
TEST(FusedMultiplyAdd, EqualsFmaForBf16Factors) {
  const ScopedFlushDenormals flush;
  Random random(1);
  const auto check = [](float a, float b, float c) {
    const float fused = FusedMultiplyAdd(a, b, c);
    const float expected = std::fmaf(a, b, c);
    ASSERT_TRUE(Bits(fused) == Bits(expected) || (std::isnan(fused) && std::isnan(expected)))
        << std::hexfloat << a << " * " << b << " + " << c << " = " << fused << ", expected "
        << expected;
  };
  for (int i = 0; i < 3000000; ++i) {
    const float a = ToFloat(ToBf16(random.AnyFinite()));
    const float b = ToFloat(ToBf16(random.AnyFinite()));
    float c = random.AnyFinite();
    if (std::fabs(c) < kMinNormal) c = 0.0f;  // accumulators are never denormal
    check(a, b, c);
    // Sums of similar size, where cancellation and ties happen.
    const float product = a * b;
    if (!std::isfinite(product)) continue;
    const float near =
        -product * (1.0f + std::ldexp(random.Unit(), -static_cast<int>(random.Below(26))));
    if (std::isfinite(near) && std::fabs(near) >= kMinNormal) check(a, b, near);
    const float far = std::ldexp(product, static_cast<int>(random.Below(60)) - 30);
    if (std::isfinite(far) && std::fabs(far) >= kMinNormal) check(a, b, far);
  }
}

TEST(LaneSum, AddsStridedLanesThenFolds) {
  // 2^24 + 1 is lost in one lane, kept across lanes: the order shows in the result.
  float values[33] = {};
  values[0] = 0x1p24f;
  values[16] = 1.0f;  // same lane as 0: lost
  values[32] = 1.0f;  // again
  values[1] = 2.0f;   // folded last with lane 0
  EXPECT_EQ(LaneSum(33, [&](std::int64_t i) { return values[i]; }), 0x1p24f + 2.0f);
  EXPECT_EQ(LaneSum(0, [&](std::int64_t i) { return values[i]; }), 0.0f);
}

TEST(FoldLanes, FoldsEightApartFirst) {
  float lanes[kLanes] = {};
  lanes[0] = 0x1p24f;
  lanes[8] = -0x1p24f;
  lanes[1] = 1.0f;  // survives only because 0 and 8 cancel first
  EXPECT_EQ(FoldLanes(lanes), 1.0f);
}

TEST(E8m0Value, IsAPowerOfTwo) {
  EXPECT_EQ(E8m0Value(127), 1.0f);
  EXPECT_EQ(E8m0Value(128), 2.0f);
  EXPECT_EQ(E8m0Value(1), 0x1p-126f);
  EXPECT_EQ(E8m0Value(254), 0x1p127f);
}

class VectorMathTest : public ::testing::TestWithParam<Isa> {
 protected:
  ScopedFlushDenormals flush_;
};

TEST_P(VectorMathTest, EqualsTheDefinitionsForValuesOfEveryExponent) {
  MEGALITH_SKIP_IF_UNSUPPORTED(GetParam());
  const MathTable& math = Math(GetParam());
  std::vector<float> in;
  ForManyFloats([&](float x) { in.push_back(x); });
  for (const float x : {0.0f, -0.0f, kInf, -kInf, kNan, constants::kExpMax, constants::kExpMin,
                        constants::kTanhSmall}) {
    in.insert(in.end(), {x, std::nextafter(x, kInf), std::nextafter(x, -kInf)});
  }
  const auto count = static_cast<std::int64_t>(in.size());
  std::vector<float> actual(in.size());
  std::vector<float> expected(in.size());
  const auto check = [&](const char* name, auto vector_function, float (*definition)(float)) {
    SCOPED_TRACE(name);
    vector_function(in.data(), count, actual.data());
    std::transform(in.begin(), in.end(), expected.begin(), definition);
    EXPECT_TRUE(test::SameBits(actual.data(), expected.data(), count));
  };
  check("exp", math.exp, Exp);
  check("sigmoid", math.sigmoid, Sigmoid);
  check("tanh", math.tanh, Tanh);
  check("softplus", math.softplus, Softplus);
}

INSTANTIATE_TEST_SUITE_P(Paths, VectorMathTest, ::testing::ValuesIn(test::kAllIsas),
                         test::IsaTestName);

TEST(ToFixedPoint, LargestMagnitudeSetsTheUnit) {
  Bf16 x[kBlockInputs] = {};
  x[0] = ToBf16(1.0f);
  x[1] = ToBf16(-0.5f);
  x[2] = ToBf16(0x1.02p-7f);  // the last place of the smallest exact power
  x[3] = ToBf16(0x1.02p-8f);  // 2^-15 and a half of 2^-14: to even
  x[4] = ToBf16(0x1.06p-8f);
  x[31] = ToBf16(-1.9921875f);  // 1 + 127 / 128 would not fit two limbs
  FixedPointBlock block = ToFixedPoint(x, kBlockInputs);
  EXPECT_TRUE(block.finite);
  EXPECT_EQ(block.exponent, 128);  // unit 2^-13
  EXPECT_EQ(block.value[0], 8192);
  EXPECT_EQ(block.value[31], -16320);
  x[31] = ToBf16(-1.984375f);
  block = ToFixedPoint(x, kBlockInputs);
  EXPECT_EQ(block.exponent, 127);  // unit 2^-14
  EXPECT_EQ(block.value[0], 16384);
  EXPECT_EQ(block.value[1], -8192);
  EXPECT_EQ(block.value[2], 129);
  EXPECT_EQ(block.value[3], 64);
  EXPECT_EQ(block.value[4], 66);
  EXPECT_EQ(block.value[31], -kFixedPointMax);
  EXPECT_EQ(FixedPointScale(127, true, false), 0x1p-14f);
  EXPECT_EQ(FixedPointScale(127, true, true), 0x1p-15f);
}

TEST(ToFixedPoint, EveryFiniteValueFitsTwoSignedLimbsAndIsExactWhenAlone) {
  const ScopedFlushDenormals flush;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const Bf16 x{static_cast<std::uint16_t>(bits)};
    const FixedPointBlock block = ToFixedPoint(&x, 1);
    const float value = ToFloat(x);
    ASSERT_EQ(block.finite, std::isfinite(value)) << bits;
    const float scale = FixedPointScale(block.exponent, block.finite, true);
    if (!block.finite) {
      ASSERT_TRUE(test::IsNan(scale)) << bits;
      continue;
    }
    ASSERT_LE(std::abs(block.value[0]), kFixedPointMax) << bits;
    const int low = static_cast<std::int8_t>(block.value[0] & 0xff);
    const int high = (block.value[0] - low) / 256;
    ASSERT_TRUE(high >= -128 && high <= 127) << bits;
    ASSERT_TRUE(std::isnormal(scale)) << bits;
    // Exact from the smallest exponent on; below, within half a unit.
    const double back = 2.0 * static_cast<double>(scale) * block.value[0];
    const double expected = std::isnormal(value) ? static_cast<double>(value) : 0.0;
    if (std::fabs(value) >= 0x1p-118f) {
      ASSERT_EQ(back, expected) << bits;
    } else {
      ASSERT_LE(std::fabs(back - expected), 0x1p-126) << bits;
    }
  }
}

}  // namespace
}  // namespace megalith::kernels
