#include "kernels/reference/reference.h"
#include "kernels/test_paths.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::kCounts;
using test::Random;
using test::SameBits;

class ElementwiseTest : public test::PathTest {
 protected:
  /// Runs check(table, count, offset, random) for every count and several alignments.
  template <typename Check>
  void ForEveryCount(Check check) {
    OnPath([&](const auto& table) {
      for (const std::int64_t count : kCounts) {
        for (const std::int64_t offset : {0, 1, 5}) {
          SCOPED_TRACE("count " + std::to_string(count) + " offset " + std::to_string(offset));
          Random random(static_cast<std::uint64_t>(count * 10 + offset));
          check(table, count, offset, random);
        }
      }
    });
  }
};

/// Ordinary values with some large, infinite and NaN ones between.
float AnyValue(Random& random) {
  switch (random.Below(44)) {
    case 0:
      return std::numeric_limits<float>::infinity();
    case 1:
      return -std::numeric_limits<float>::infinity();
    case 2:
      return std::numeric_limits<float>::quiet_NaN();
    case 3:
      return random.AnyFinite();
    // NaNs that rounding to bf16 by addition would turn into zero or infinity.
    case 40:
      return std::bit_cast<float>(0x7fffffffu);
    case 41:
      return std::bit_cast<float>(0xffffffffu);
    case 42:
      return std::bit_cast<float>(0x7f800001u);
    case 4:
      return 100.0f * random.Normal();
    default:
      return 3.0f * random.Normal();
  }
}

template <typename Act>
Buffer<Act> Values(std::int64_t count, std::int64_t offset, Random& random) {
  Buffer<Act> buffer(count, offset);
  buffer.Fill([&] { return AnyValue(random); });
  return buffer;
}

TEST_P(ElementwiseTest, StoreMatchesReference) {
  ForEveryCount([]<typename Act>(const KernelTable<Act>& table, std::int64_t count,
                                 std::int64_t offset, Random& random) {
    const Buffer<float> in = Values<float>(count, offset, random);
    Buffer<Act> out(count, offset);
    Buffer<Act> expected(count);
    table.store(in.data(), count, out.data());
    reference::Store(in.data(), count, expected.data());
    EXPECT_TRUE(SameBits(out, expected));
    EXPECT_TRUE(out.CanariesIntact());
  });
}

TEST_P(ElementwiseTest, AddResidualMatchesReference) {
  ForEveryCount([]<typename Act>(const KernelTable<Act>& table, std::int64_t count,
                                 std::int64_t offset, Random& random) {
    const Buffer<float> acc = Values<float>(count, offset, random);
    const Buffer<Act> residual = Values<Act>(count, offset, random);
    Buffer<Act> out(residual);  // in place, as the engine does it
    Buffer<Act> expected(count);
    table.add_residual(acc.data(), out.data(), count, out.data());
    reference::AddResidual(acc.data(), residual.data(), count, expected.data());
    EXPECT_TRUE(SameBits(out, expected));
    EXPECT_TRUE(out.CanariesIntact());
  });
}

TEST_P(ElementwiseTest, AddSharedResidualMatchesReference) {
  ForEveryCount([]<typename Act>(const KernelTable<Act>& table, std::int64_t count,
                                 std::int64_t offset, Random& random) {
    const Buffer<float> acc = Values<float>(count, offset, random);
    const Buffer<float> aux = Values<float>(count, offset + 1, random);
    const Buffer<Act> residual = Values<Act>(count, offset, random);
    Buffer<Act> out(count, offset);
    Buffer<Act> expected(count);
    table.add_shared_residual(acc.data(), aux.data(), residual.data(), count, out.data());
    reference::AddSharedResidual(acc.data(), aux.data(), residual.data(), count, expected.data());
    EXPECT_TRUE(SameBits(out, expected));
    EXPECT_TRUE(out.CanariesIntact());
  });
}

TEST_P(ElementwiseTest, SigmoidGateMatchesReference) {
  ForEveryCount([]<typename Act>(const KernelTable<Act>& table, std::int64_t count,
                                 std::int64_t offset, Random& random) {
    const Buffer<float> acc = Values<float>(count, offset, random);
    const Buffer<Act> gate = Values<Act>(count, offset, random);
    Buffer<Act> out(count, offset);
    Buffer<Act> expected(count);
    table.sigmoid_gate(acc.data(), gate.data(), count, out.data());
    reference::SigmoidGate(acc.data(), gate.data(), count, expected.data());
    EXPECT_TRUE(SameBits(out, expected));
    EXPECT_TRUE(out.CanariesIntact());
  });
}

TEST_P(ElementwiseTest, WeightedAddMatchesReference) {
  ForEveryCount([]<typename Act>(const KernelTable<Act>& table, std::int64_t count,
                                 std::int64_t offset, Random& random) {
    const Buffer<float> acc = Values<float>(count, offset, random);
    Buffer<float> sum = Values<float>(count, offset, random);
    Buffer<float> expected(sum);
    const float weight = random.Unit();
    table.weighted_add(acc.data(), weight, count, sum.data());
    reference::WeightedAdd<Act>(acc.data(), weight, count, expected.data());
    EXPECT_TRUE(SameBits(sum, expected));
    EXPECT_TRUE(sum.CanariesIntact());
  });
}

TEST_P(ElementwiseTest, GatedPairMatchesReferenceForEveryActivation) {
  const GatedParameters activations[] = {{GatedActivation::kSitu, 4.0f, 25.0f},
                                         {GatedActivation::kSitu, 1.5f, 0.0f},
                                         {GatedActivation::kSilu, 0.0f, 0.0f}};
  ForEveryCount([&]<typename Act>(const KernelTable<Act>& table, std::int64_t count,
                                  std::int64_t offset, Random& random) {
    const std::int64_t panels = 2 * CeilDiv<std::int64_t>(count, kPanelOutputs);
    const Buffer<float> acc = Values<float>(panels * kPanelOutputs, offset, random);
    for (const GatedParameters& activation : activations) {
      Buffer<Act> out(count, offset);
      Buffer<Act> expected(count);
      table.gated_pair({acc.data(), count, activation, out.data()});
      reference::GatedPair<Act>({acc.data(), count, activation, expected.data()});
      EXPECT_TRUE(SameBits(out, expected));
      EXPECT_TRUE(out.CanariesIntact());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, ElementwiseTest, ::testing::ValuesIn(test::kAllPaths),
                         test::PathName);

// The reference against double: which value is gate and which is up, the caps, the roundings.

TEST(ReferenceGatedPair, PanelsAlternateGateAndUp) {
  Buffer<float> acc(4 * kPanelOutputs);
  for (std::int64_t i = 0; i < acc.size(); ++i) acc[i] = 0.25f * static_cast<float>(i) - 7.0f;
  Buffer<float> out(20);
  reference::GatedPair<float>({acc.data(), 20, {GatedActivation::kSitu, 4.0f, 25.0f}, out.data()});
  for (std::int64_t i = 0; i < 20; ++i) {
    const auto gate = static_cast<double>(acc[i < 16 ? i : i + 16]);
    const auto up = static_cast<double>(acc[i < 16 ? i + 16 : i + 32]);
    const double expected =
        4.0 * std::tanh(gate / 4.0) / (1.0 + std::exp(-gate)) * 25.0 * std::tanh(up / 25.0);
    // Six operations of about an ulp, tanh and sigmoid of about two.
    EXPECT_NEAR(static_cast<double>(out[i]), expected, 16 * 0x1p-24 * std::fabs(expected)) << i;
  }
}

TEST(ReferenceGatedPair, GateAndUpAreRoundedBeforeTheActivation) {
  Buffer<float> acc(2 * kPanelOutputs);
  acc.Fill([] { return 1.001f; });  // rounds to 1 in bf16
  Buffer<Bf16> out(1);
  reference::GatedPair<Bf16>({acc.data(), 1, {GatedActivation::kSilu, 0.0f, 0.0f}, out.data()});
  EXPECT_EQ(out[0], ToBf16(Silu(1.0f)));
}

TEST(ReferenceAddSharedResidual, RoundsTheSumThenTheResult) {
  const float acc = 1.0f + 0x1p-8f;  // a tie in bf16: to even, 1
  const float aux = 0x1p-20f;        // tips it over to 1 + 2^-7
  const Bf16 residual = ToBf16(2.0f);
  Bf16 out;
  reference::AddSharedResidual(&acc, &aux, &residual, 1, &out);
  EXPECT_EQ(ToFloat(out), ToFloat(ToBf16(2.0f + (1.0f + 0x1p-7f))));
  const float zero = 0.0f;
  reference::AddSharedResidual(&acc, &zero, &residual, 1, &out);
  EXPECT_EQ(ToFloat(out), 3.0f);
}

TEST(ReferenceSigmoidGate, RoundsBothFactors) {
  const float acc = 1.001f;
  const Bf16 gate = ToBf16(0.7f);
  Bf16 out;
  reference::SigmoidGate(&acc, &gate, 1, &out);
  const double sigmoid = 1.0 / (1.0 + std::exp(-static_cast<double>(ToFloat(gate))));
  EXPECT_EQ(out, ToBf16(static_cast<float>(sigmoid)));
}

TEST(ReferenceWeightedAdd, RoundsTheExpertOutputOnly) {
  const float acc = 1.001f;
  float sum = 10.0f;
  reference::WeightedAdd<Bf16>(&acc, 0.375f, 1, &sum);
  EXPECT_EQ(sum, 10.375f);
}

}  // namespace
}  // namespace megalith::kernels
