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

const char* FormatName(PanelFormat format) {
  return format == PanelFormat::kBf16 ? "bf16" : "mxfp4";
}

struct Weights {
  PanelFormat format;
  std::int64_t num_panels;
  std::int64_t inputs;
  std::vector<std::byte> storage;
  std::byte* panels;
};

/// Random panels. MXFP4 scales stay near 1 unless `wild`, bf16 values of every exponent if it is.
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
    if (format == PanelFormat::kBf16) {
      std::vector<Bf16> source(static_cast<std::size_t>(outputs * inputs));
      for (Bf16& value : source) value = ToBf16(wild ? random.AnyFinite() : random.Normal());
      PackPanelBf16(source.data(), inputs, 1, outputs, inputs, panel);
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
void ExpectMatchesReference(void (*matmul)(const MatmulArgs<X>&), DotOrder order,
                            const MatmulCase<X>& c, bool gather) {
  const std::int64_t outputs = c.w.num_panels * kPanelOutputs;
  const std::int64_t stride = outputs + 5;
  Buffer<float> acc(c.rows_ * stride, 1);
  acc.Fill([] { return 7.0f; });
  Buffer<float> expected(acc);
  Buffer<float> scratch(MatmulScratchFloats(c.w.inputs));
  matmul(c.Args(gather, acc.data(), stride, scratch.data()));
  reference::Matmul<X>(c.Args(gather, expected.data(), stride, nullptr), c.w.format, order);
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
      ExpectMatchesReference<Bf16>(kernels.matmul[f], kernels.dot_order,
                                   {weights, rows, rows % 4, random}, gather);
      ExpectMatchesReference<float>(kernels.matmul_float[f], DotOrder::kSplitPairs,
                                    {weights, rows, rows % 4, random}, gather);
    }
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
    ExpectMatchesReference<Bf16>(kernels.matmul[f], kernels.dot_order,
                                 {weights, 3, 0, random, true}, false);
    ExpectMatchesReference<float>(kernels.matmul_float[f], DotOrder::kSplitPairs,
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
    ExpectMatchesReference<Bf16>(kernels.matmul[f], kernels.dot_order, c, false);
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
                                            ::testing::Values(PanelFormat::kBf16,
                                                              PanelFormat::kMxfp4)),
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
                                  Float32Kernels().dot_order, {weights, rows, 1, random}, true);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Float32MatmulTest,
                         ::testing::Values(PanelFormat::kBf16, PanelFormat::kMxfp4),
                         [](const auto& param_info) { return FormatName(param_info.param); });

// Against double sums. Each block chain has 16 (split) or 32 (joined) additions, then one per
// block: every addition loses at most half an ulp of a partial sum, which is below sum |w x|.
class MatmulAccuracyTest : public ::testing::TestWithParam<std::tuple<PanelFormat, DotOrder>> {
 protected:
  ScopedFlushDenormals flush_;
};

TEST_P(MatmulAccuracyTest, ReferenceIsWithinTheBoundOfItsAdditions) {
  const auto [format, order] = GetParam();
  constexpr std::int64_t kInputs = 1024;
  Random random(11);
  const Weights weights = MakeWeights(format, 2, kInputs, random);
  const MatmulCase<Bf16> c(weights, 3, 0, random);
  const std::int64_t outputs = weights.num_panels * kPanelOutputs;
  Buffer<float> acc(3 * outputs);
  reference::Matmul<Bf16>(c.Args(false, acc.data(), outputs, nullptr), format, order);
  double used = 0.0;
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t o = 0; o < outputs; ++o) {
      double exact = 0.0;
      double magnitude = 0.0;
      for (std::int64_t k = 0; k < kInputs; ++k) {
        const std::byte* panel = weights.panels + o / kPanelOutputs * PanelBytes(format, kInputs);
        const double product =
            static_cast<double>(
                PanelElement(format, panel, kInputs, static_cast<int>(o % kPanelOutputs), k)) *
            static_cast<double>(ToFloat(c.x[r * c.x_stride + k]));
        exact += product;
        magnitude += std::fabs(product);
      }
      const double additions = 33.0 + kInputs / 32;
      const double bound = additions * 0x1p-24 * magnitude;
      const double error = std::fabs(static_cast<double>(acc[r * outputs + o]) - exact);
      EXPECT_LE(error, bound) << "row " << r << " output " << o;
      if (bound > 0.0) used = std::max(used, error / bound);
    }
  }
  RecordProperty("per_mille_of_bound_used", static_cast<int>(1000.0 * used));
}

INSTANTIATE_TEST_SUITE_P(
    Orders, MatmulAccuracyTest,
    ::testing::Combine(::testing::Values(PanelFormat::kBf16, PanelFormat::kMxfp4),
                       ::testing::Values(DotOrder::kSplitPairs, DotOrder::kJoinedPairs)),
    [](const auto& param_info) {
      return std::string(FormatName(std::get<0>(param_info.param))) +
             (std::get<1>(param_info.param) == DotOrder::kSplitPairs ? "_split" : "_joined");
    });

}  // namespace
}  // namespace megalith::kernels
