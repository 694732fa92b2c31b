#include <algorithm>
#include <tuple>

#include "kernels/flush_denormals.h"
#include "kernels/reference/reference.h"
#include "kernels/test_util.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

const PanelFormat kFormats[] = {PanelFormat::kBf16, PanelFormat::kMxfp4, PanelFormat::kInt8};

std::string FormatName(PanelFormat format) { return std::string(PanelFormatName(format)); }

struct Weights {
  PanelFormat format;
  std::int64_t num_panels;
  std::int64_t inputs;
  std::vector<std::byte> storage;
  std::byte* panels;
};

/// Random panels. MXFP4 scales stay near 1 unless `wild`, bf16 values (and those that int8 codes
/// come from) of every exponent if it is.
Weights MakeWeights(PanelFormat format, std::int64_t num_panels, std::int64_t inputs,
                    Random& random, bool wild = false) {
  Weights w{format, num_panels, inputs, {}, nullptr};
  const std::int64_t panel_bytes = PanelBytes(format, inputs);
  w.storage.resize(static_cast<std::size_t>(num_panels * panel_bytes) + 64);
  w.panels = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(w.storage.data()) + 63) / 64 * 64);
  for (std::int64_t p = 0; p < num_panels; ++p) {
    // The last panel lacks some outputs.
    const std::int64_t outputs = p + 1 == num_panels ? 13 : kPanelOutputs;
    std::byte* panel = w.panels + p * panel_bytes;
    if (format != PanelFormat::kMxfp4) {
      std::vector<Bf16> source(static_cast<std::size_t>(outputs * inputs));
      for (std::size_t i = 0; i < source.size(); ++i) {
        float value = wild ? random.AnyFinite() : random.Normal();
        // For int8 an exponent per group: of free ones the largest would leave nothing of the rest.
        const auto group =
            static_cast<std::int64_t>(i) % inputs / 32 + static_cast<std::int64_t>(i) / inputs;
        if (wild && format == PanelFormat::kInt8) {
          value = std::ldexp(random.Unit(), static_cast<int>(group * 37 % 252) - 124);
        }
        source[i] = ToBf16(value);
      }
      if (format == PanelFormat::kBf16) {
        PackPanelBf16(source.data(), inputs, 1, outputs, inputs, panel);
      } else {
        EXPECT_TRUE(PackPanelInt8(source.data(), inputs, outputs, inputs, panel));
      }
    } else {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(outputs * inputs / 2));
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(outputs * inputs / 32));
      for (auto& code : codes) code = static_cast<std::uint8_t>(random.Next());
      for (auto& scale : scales) {
        scale = static_cast<std::uint8_t>(wild ? 1 + random.Below(254) : 121 + random.Below(8));
      }
      PackPanelMxfp4(codes.data(), inputs / 2, scales.data(), inputs / 32, outputs, inputs, panel);
    }
  }
  return w;
}

template <typename X>
struct MatmulCase {
  MatmulCase(const Weights& weights, std::int64_t rows, std::int64_t x_offset, Random& random,
             bool wild = false)
      : w(weights),
        rows_(rows),
        x_stride(weights.inputs + 3),
        x((rows + 2) * x_stride, x_offset),
        indices(rows) {
    // Elements between the rows are NaN: reading them would show.
    x.Fill([] { return std::nanf(""); });
    for (std::int64_t r = 0; r < rows + 2; ++r) {
      for (std::int64_t k = 0; k < w.inputs; ++k) {
        x[r * x_stride + k] = RoundTo<X>(wild ? random.AnyFinite() : random.Normal());
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      indices[r] = static_cast<std::int32_t>(random.Below(rows + 2));
    }
  }
  MatmulArgs<X> Args(bool gather, float* acc, std::int64_t acc_stride, float* scratch) const {
    return {
        w.panels, w.num_panels, w.inputs,   x.data(), x_stride, gather ? indices.data() : nullptr,
        rows_,    acc,          acc_stride, scratch};
  }

  const Weights& w;
  std::int64_t rows_;
  std::int64_t x_stride;
  Buffer<X> x;
  Buffer<std::int32_t> indices;
};

template <typename X>
void ExpectMatchesReference(void (*matmul)(const MatmulArgs<X>&), DotNumerics numerics,
                            const MatmulCase<X>& c, bool gather) {
  const std::int64_t outputs = c.w.num_panels * kPanelOutputs;
  const std::int64_t stride = outputs + 5;
  Buffer<float> acc(c.rows_ * stride, 1);
  acc.Fill([] { return 7.0f; });
  Buffer<float> expected(acc);
  Buffer<float> scratch(MatmulScratchFloats(c.w.inputs));
  matmul(c.Args(gather, acc.data(), stride, scratch.data()));
  reference::Matmul<X>(c.Args(gather, expected.data(), stride, nullptr), c.w.format, numerics);
  EXPECT_TRUE(SameBits(acc, expected));
  EXPECT_TRUE(acc.CanariesIntact());
  EXPECT_TRUE(scratch.CanariesIntact());
}

class MatmulTest : public ::testing::TestWithParam<std::tuple<Isa, PanelFormat>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  PanelFormat format() const { return std::get<1>(GetParam()); }
  /// Inputs to try: odd ones and tails for bf16, whole groups for MXFP4.
  std::vector<std::int64_t> Inputs() const {
    if (format() == PanelFormat::kMxfp4) return {32, 64, 96, 160, 352};
    return {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 130, 333};
  }
  ScopedFlushDenormals flush_;
};

TEST_P(MatmulTest, EveryShapeMatchesReference) {
  MEGALITH_SKIP_IF_UNSUPPORTED(isa());
  const auto& kernels = Bf16Kernels(isa());
  const int f = static_cast<int>(format());
  for (const std::int64_t inputs : Inputs()) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
      SCOPED_TRACE("inputs " + std::to_string(inputs) + " rows " + std::to_string(rows));
      Random random(static_cast<std::uint64_t>(inputs * 100 + rows));
      const std::int64_t panels = 1 + rows % 3;
      const Weights weights = MakeWeights(format(), panels, inputs, random);
      const bool gather = rows % 2 == 0;
      ExpectMatchesReference<Bf16>(kernels.matmul[f], kernels.numerics,
                                   {weights, rows, rows % 4, random}, gather);
      ExpectMatchesReference<float>(kernels.matmul_float[f], DotNumerics{},
                                    {weights, rows, rows % 4, random}, gather);
    }
  }
}

// More rows than a row block are walked in parts of their inputs.
TEST_P(MatmulTest, ManyInputsOfManyRowsMatchReference) {
  MEGALITH_SKIP_IF_UNSUPPORTED(isa());
  const auto& kernels = Bf16Kernels(isa());
  const int f = static_cast<int>(format());
  const std::int64_t inputs = format() == PanelFormat::kMxfp4 ? 41 * 32 : 40 * 32 + 21;
  for (const std::int64_t rows : {1, 9, 19}) {
    SCOPED_TRACE("rows " + std::to_string(rows));
    Random random(static_cast<std::uint64_t>(rows));
    const Weights weights = MakeWeights(format(), 3, inputs, random);
    ExpectMatchesReference<Bf16>(kernels.matmul[f], kernels.numerics, {weights, rows, 1, random},
                                 true);
    ExpectMatchesReference<float>(kernels.matmul_float[f], DotNumerics{},
                                  {weights, rows, 1, random}, true);
  }
}

// Denormal inputs and products, overflow to infinity, infinities that meet: the same on every path.
TEST_P(MatmulTest, ValuesOfEveryExponentMatchReference) {
  MEGALITH_SKIP_IF_UNSUPPORTED(isa());
  const auto& kernels = Bf16Kernels(isa());
  const int f = static_cast<int>(format());
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Weights weights = MakeWeights(format(), 2, 96, random, true);
    ExpectMatchesReference<Bf16>(kernels.matmul[f], kernels.numerics, {weights, 3, 0, random, true},
                                 false);
    ExpectMatchesReference<float>(kernels.matmul_float[f], DotNumerics{},
                                  {weights, 3, 0, random, true}, false);
  }
}

// Products around the smallest normal number, where flushing decides.
TEST_P(MatmulTest, ProductsNearUnderflowMatchReference) {
  MEGALITH_SKIP_IF_UNSUPPORTED(isa());
  const auto& kernels = Bf16Kernels(isa());
  const int f = static_cast<int>(format());
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Weights weights = MakeWeights(format(), 2, 64, random);
    MatmulCase<Bf16> c(weights, 3, 0, random);
    for (std::int64_t i = 0; i < c.x.size(); ++i) {
      const float tiny = std::ldexp(random.Unit(), -118 - static_cast<int>(random.Below(14)));
      if (!test::IsNan(c.x[i])) c.x[i] = ToBf16(tiny);
    }
    ExpectMatchesReference<Bf16>(kernels.matmul[f], kernels.numerics, c, false);
  }
}

// The largest integers everywhere, with both signs of activations and weights: no sum may wrap.
TEST_P(MatmulTest, LargestMagnitudesMatchReference) {
  MEGALITH_SKIP_IF_UNSUPPORTED(isa());
  const auto& kernels = Bf16Kernels(isa());
  const int f = static_cast<int>(format());
  Random random(1);
  Weights weights = MakeWeights(format(), 2, 96, random);
  for (const bool negative : {false, true}) {
    for (std::int64_t p = 0; p < weights.num_panels; ++p) {
      std::byte* panel = weights.panels + p * PanelBytes(format(), 96);
      if (format() == PanelFormat::kMxfp4) {
        const std::vector<std::uint8_t> codes(16 * 48, negative ? 0xff : 0x77);
        const std::vector<std::uint8_t> scales(16 * 3, 127);
        PackPanelMxfp4(codes.data(), 48, scales.data(), 3, 16, 96, panel);
      } else {
        const std::vector<Bf16> source(16 * 96, ToBf16(negative ? -1.0f : 1.0f));
        if (format() == PanelFormat::kInt8) {
          ASSERT_TRUE(PackPanelInt8(source.data(), 96, 16, 96, panel));
        } else {
          PackPanelBf16(source.data(), 96, 1, 16, 96, panel);
        }
      }
    }
    // 0x3ffe is the largest integer, 0x3fff the significand that takes the next exponent; 0x3f81
    // and 0x3fc1 have low limbs of both signs.
    for (const int bits : {0x3ffe, 0x3fff, 0x3f81, 0x3fc1, 0xbffe, 0xbfff, 0xbf81}) {
      MatmulCase<Bf16> c(weights, 8, 0, random);
      for (std::int64_t i = 0; i < c.x.size(); ++i) c.x[i].bits = static_cast<std::uint16_t>(bits);
      ExpectMatchesReference<Bf16>(kernels.matmul[f], kernels.numerics, c, false);
    }
  }
}

// Whatever the weights, a row with a NaN or an infinity has no finite output, and no other row
// knows of it.
TEST_P(MatmulTest, ActivationsThatAreNotFiniteShowInEveryOutputOfTheirRow) {
  MEGALITH_SKIP_IF_UNSUPPORTED(isa());
  const auto& kernels = Bf16Kernels(isa());
  const auto matmul = kernels.matmul[static_cast<int>(format())];
  constexpr std::int64_t kInputs = 96;
  for (const int bits : {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81}) {
    Random random(static_cast<std::uint64_t>(bits));
    const Weights weights = MakeWeights(format(), 2, kInputs, random);
    const std::int64_t outputs = weights.num_panels * kPanelOutputs;
    MatmulCase<Bf16> c(weights, 3, 0, random);
    Buffer<float> scratch(MatmulScratchFloats(kInputs));
    Buffer<float> before(3 * outputs);
    matmul(c.Args(false, before.data(), outputs, scratch.data()));
    c.x[c.x_stride + 40].bits = static_cast<std::uint16_t>(bits);
    ExpectMatchesReference<Bf16>(matmul, kernels.numerics, c, false);
    Buffer<float> after(3 * outputs);
    matmul(c.Args(false, after.data(), outputs, scratch.data()));
    EXPECT_TRUE(SameBits(after.data(), before.data(), outputs));
    EXPECT_TRUE(SameBits(after.data() + 2 * outputs, before.data() + 2 * outputs, outputs));
    for (std::int64_t n = 0; n < outputs; ++n) {
      EXPECT_FALSE(std::isfinite(after[outputs + n])) << "bits " << bits << " output " << n;
    }
  }
}

TEST_P(MatmulTest, BitsOfARowDoNotDependOnTheOtherRows) {
  MEGALITH_SKIP_IF_UNSUPPORTED(isa());
  const auto matmul = Bf16Kernels(isa()).matmul[static_cast<int>(format())];
  constexpr std::int64_t kRows = 17;
  constexpr std::int64_t kInputs = 288;
  Random random(3);
  const Weights weights = MakeWeights(format(), 3, kInputs, random);
  const MatmulCase<Bf16> c(weights, kRows, 0, random);
  const std::int64_t outputs = weights.num_panels * kPanelOutputs;
  Buffer<float> scratch(MatmulScratchFloats(kInputs));
  Buffer<float> together(kRows * outputs);
  MatmulArgs<Bf16> args = c.Args(false, together.data(), outputs, scratch.data());
  matmul(args);
  for (std::int64_t r = 0; r < kRows; ++r) {
    SCOPED_TRACE("row " + std::to_string(r));
    Buffer<float> alone(outputs);
    args.x = c.x.data() + r * c.x_stride;
    args.rows = 1;
    args.acc = alone.data();
    matmul(args);
    EXPECT_TRUE(SameBits(alone.data(), together.data() + r * outputs, outputs));
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, MatmulTest,
                         ::testing::Combine(::testing::ValuesIn(test::kAllIsas),
                                            ::testing::ValuesIn(kFormats)),
                         [](const auto& param_info) {
                           return std::string(IsaName(std::get<0>(param_info.param))) + "_" +
                                  FormatName(std::get<1>(param_info.param));
                         });

class Float32MatmulTest : public ::testing::TestWithParam<PanelFormat> {
 protected:
  ScopedFlushDenormals flush_;
};

TEST_P(Float32MatmulTest, EveryRowCountMatchesReference) {
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    SCOPED_TRACE("rows " + std::to_string(rows));
    Random random(static_cast<std::uint64_t>(rows));
    const Weights weights = MakeWeights(GetParam(), 2, 96, random);
    ExpectMatchesReference<float>(Float32Kernels().matmul[static_cast<int>(GetParam())],
                                  Float32Kernels().numerics, {weights, rows, 1, random}, true);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Float32MatmulTest, ::testing::ValuesIn(kFormats),
                         [](const auto& param_info) { return FormatName(param_info.param); });

// Against double sums. Float chains have 16 (split) or 32 (joined) additions per block, then one
// per block; fixed point rounds a block's sum three times (once with MXFP4: powers of two), then
// once more for the addition. Every operation loses at most half an ulp of a partial sum, which is
// below sum |w x|. Fixed point moves an activation by at most 2^-15 of the block's power of two,
// which is at most 256 / 255 of its largest magnitude.
class MatmulAccuracyTest : public ::testing::TestWithParam<std::tuple<PanelFormat, DotNumerics>> {
 protected:
  ScopedFlushDenormals flush_;
};

TEST_P(MatmulAccuracyTest, ReferenceIsWithinTheBoundOfItsOperations) {
  const auto [format, numerics] = GetParam();
  constexpr std::int64_t kInputs = 1024;
  Random random(11);
  const Weights weights = MakeWeights(format, 2, kInputs, random);
  const MatmulCase<Bf16> c(weights, 3, 0, random);
  const std::int64_t outputs = weights.num_panels * kPanelOutputs;
  const bool fixed = IsQuantized(format) && numerics.quantized == QuantizedDot::kFixedPoint;
  Buffer<float> acc(3 * outputs);
  reference::Matmul<Bf16>(c.Args(false, acc.data(), outputs, nullptr), format, numerics);
  double used = 0.0;
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t o = 0; o < outputs; ++o) {
      double exact = 0.0;
      double magnitude = 0.0;
      double moved = 0.0;
      for (std::int64_t begin = 0; begin < kInputs; begin += kBlockInputs) {
        double largest = 0.0;
        double weight_sum = 0.0;
        for (std::int64_t k = begin; k < begin + kBlockInputs; ++k) {
          const std::byte* panel = weights.panels + o / kPanelOutputs * PanelBytes(format, kInputs);
          const auto w = static_cast<double>(
              PanelElement(format, panel, kInputs, static_cast<int>(o % kPanelOutputs), k));
          const auto x = static_cast<double>(ToFloat(c.x[r * c.x_stride + k]));
          exact += w * x;
          magnitude += std::fabs(w * x);
          weight_sum += std::fabs(w);
          largest = std::max(largest, std::fabs(x));
        }
        if (fixed) moved += 0x1p-15 * 256.0 / 255.0 * largest * weight_sum;
      }
      const double operations = 33.0 + kInputs / 32;
      const double bound = operations * 0x1p-24 * (magnitude + moved) + moved;
      const double error = std::fabs(static_cast<double>(acc[r * outputs + o]) - exact);
      EXPECT_LE(error, bound) << "row " << r << " output " << o;
      if (bound > 0.0) used = std::max(used, error / bound);
    }
  }
  RecordProperty("per_mille_of_bound_used", static_cast<int>(1000.0 * used));
}

INSTANTIATE_TEST_SUITE_P(
    Numerics, MatmulAccuracyTest,
    ::testing::Combine(
        ::testing::ValuesIn(kFormats),
        ::testing::Values(DotNumerics{DotOrder::kSplitPairs, QuantizedDot::kFixedPoint},
                          DotNumerics{DotOrder::kSplitPairs, QuantizedDot::kFloatChains},
                          DotNumerics{DotOrder::kJoinedPairs, QuantizedDot::kFloatChains})),
    [](const auto& param_info) {
      const DotNumerics numerics = std::get<1>(param_info.param);
      return FormatName(std::get<0>(param_info.param)) +
             (numerics.order == DotOrder::kSplitPairs ? "_split" : "_joined") +
             (numerics.quantized == QuantizedDot::kFixedPoint ? "_fixed" : "_float");
    });

}  // namespace
}  // namespace megalith::kernels
