#include "kernels/layout.h"

#include <array>
#include <vector>

#include "kernels/test_util.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;

TEST(DecodeMxfp4, EveryCodeHasItsE2m1Value) {
  const float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (std::uint8_t code = 0; code < 16; ++code) {
    const float value = (code & 8) != 0 ? -magnitudes[code & 7] : magnitudes[code & 7];
    EXPECT_EQ(test::Bits(DecodeMxfp4(code, 127)), test::Bits(value)) << int{code};
    EXPECT_EQ(DecodeMxfp4(code, 130), 8.0f * value) << int{code};
    EXPECT_EQ(DecodeMxfp4(code, 120), value / 128.0f) << int{code};
  }
}

TEST(PanelBytes, AreWholeCacheLinesOfPaddedInputs) {
  EXPECT_EQ(PanelBytes(PanelFormat::kBf16, 1), 1024);
  EXPECT_EQ(PanelBytes(PanelFormat::kBf16, 32), 1024);
  EXPECT_EQ(PanelBytes(PanelFormat::kBf16, 33), 2048);
  EXPECT_EQ(PanelBytes(PanelFormat::kBf16, 7168), 7168 * 32);
  EXPECT_EQ(PanelBytes(PanelFormat::kMxfp4, 32), 64 + 256);
  EXPECT_EQ(PanelBytes(PanelFormat::kMxfp4, 128), 64 + 1024);
  EXPECT_EQ(PanelBytes(PanelFormat::kMxfp4, 160), 128 + 1280);
  EXPECT_EQ(PanelBytes(PanelFormat::kMxfp4, 3584), 112 * 16 + 1792 * 16);
  EXPECT_EQ(PanelBytes(PanelFormat::kInt8, 1), 64 + 512);
  EXPECT_EQ(PanelBytes(PanelFormat::kInt8, 33), 64 + 1024);
  EXPECT_EQ(PanelBytes(PanelFormat::kInt8, 65), 128 + 1536);
  EXPECT_EQ(PanelBytes(PanelFormat::kInt8, 7168), 7168 * 17);
}

TEST(PackPanelBf16, PairsOfInputsLieNextToEachOther) {
  std::vector<Bf16> source(16 * 32);
  for (std::size_t i = 0; i < source.size(); ++i) source[i].bits = static_cast<std::uint16_t>(i);
  Buffer<std::uint16_t> panel(512);
  PackPanelBf16(source.data(), 32, 1, 16, 32, reinterpret_cast<std::byte*>(panel.data()));
  EXPECT_EQ(panel[0], 0);   // output 0, input 0
  EXPECT_EQ(panel[1], 1);   // output 0, input 1
  EXPECT_EQ(panel[2], 32);  // output 1, input 0
  EXPECT_EQ(panel[32], 2);  // output 0, input 2
  EXPECT_EQ(panel[511], 15 * 32 + 31);
}

TEST(PackPanelBf16, ElementsPaddingAndCanariesAreRight) {
  for (const std::int64_t outputs : {1, 7, 16}) {
    for (const std::int64_t inputs : {1, 2, 31, 32, 33, 70}) {
      SCOPED_TRACE(std::to_string(outputs) + " x " + std::to_string(inputs));
      Random random(5);
      std::vector<Bf16> source(static_cast<std::size_t>(outputs * inputs));
      for (Bf16& value : source) value = ToBf16(random.Normal());
      std::vector<Bf16> transposed(source.size());
      for (std::int64_t n = 0; n < outputs; ++n) {
        for (std::int64_t k = 0; k < inputs; ++k) {
          transposed[static_cast<std::size_t>(k * outputs + n)] =
              source[static_cast<std::size_t>(n * inputs + k)];
        }
      }
      const std::int64_t bytes = PanelBytes(PanelFormat::kBf16, inputs);
      Buffer<std::uint8_t> panel(bytes);
      Buffer<std::uint8_t> from_transposed(bytes);
      auto* data = reinterpret_cast<std::byte*>(panel.data());
      PackPanelBf16(source.data(), inputs, 1, outputs, inputs, data);
      PackPanelBf16(transposed.data(), 1, outputs, outputs, inputs,
                    reinterpret_cast<std::byte*>(from_transposed.data()));
      EXPECT_EQ(std::memcmp(panel.data(), from_transposed.data(), static_cast<std::size_t>(bytes)),
                0);
      EXPECT_TRUE(panel.CanariesIntact());
      for (int n = 0; n < kPanelOutputs; ++n) {
        for (std::int64_t k = 0; k < PaddedInputs(inputs); ++k) {
          const float expected = n < outputs && k < inputs
                                     ? ToFloat(source[static_cast<std::size_t>(n * inputs + k)])
                                     : 0.0f;
          ASSERT_EQ(PanelElement(PanelFormat::kBf16, data, inputs, n, k), expected)
              << n << ", " << k;
        }
      }
    }
  }
}

// Known bytes: the low nibble is the even input. The other order would leave every statistic of the
// weights unchanged.
TEST(PackPanelMxfp4, LowNibbleIsTheEvenInput) {
  std::array<std::uint8_t, 16> codes{};
  codes[0] = 0x72;   // inputs 0, 1 = 1.0, 6.0
  codes[1] = 0x9a;   // inputs 2, 3 = -1.0, -0.5
  codes[15] = 0x50;  // inputs 30, 31 = 0, 3.0
  const std::uint8_t scale = 128;
  Buffer<std::uint8_t> panel(PanelBytes(PanelFormat::kMxfp4, 32));
  auto* data = reinterpret_cast<std::byte*>(panel.data());
  PackPanelMxfp4(codes.data(), 16, &scale, 1, 1, 32, data);
  const auto element = [&](std::int64_t k) {
    return PanelElement(PanelFormat::kMxfp4, data, 32, 0, k);
  };
  EXPECT_EQ(element(0), 2.0f);
  EXPECT_EQ(element(1), 12.0f);
  EXPECT_EQ(element(2), -2.0f);
  EXPECT_EQ(element(3), -1.0f);
  EXPECT_EQ(element(30), 0.0f);
  EXPECT_EQ(element(31), 6.0f);
  // The first word of output 0: inputs 0 to 3 in the low nibbles of its bytes.
  const std::uint8_t expected[] = {0x02, 0x07, 0x0a, 0x09};
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(panel[64 + i], expected[i]) << i;
  // The last one: inputs 28 to 31 in the high nibbles, 31 in byte 3.
  EXPECT_EQ(panel[64 + 3 * 64 + 3], 0x50);
}

TEST(PackPanelMxfp4, ScalesLieBeforeTheirFourBlocks) {
  constexpr std::int64_t kInputs = 160;
  std::vector<std::uint8_t> codes(16 * kInputs / 2);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i % 80 / 16);
  std::vector<std::uint8_t> scales(16 * 5);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(1 + i);
  Buffer<std::uint8_t> panel(PanelBytes(PanelFormat::kMxfp4, kInputs));
  PackPanelMxfp4(codes.data(), kInputs / 2, scales.data(), 5, 16, kInputs,
                 reinterpret_cast<std::byte*>(panel.data()));
  EXPECT_EQ(panel[0], 1);              // output 0, block 0
  EXPECT_EQ(panel[1], 6);              // output 1, block 0
  EXPECT_EQ(panel[16], 2);             // output 0, block 1
  EXPECT_EQ(panel[64 + 1024], 5);      // output 0, block 4
  EXPECT_EQ(panel[64 + 1023], 0x00);   // odd inputs of block 3
  EXPECT_EQ(panel[128 + 1024], 0x44);  // codes of block 4
}

TEST(PackPanelMxfp4, ElementsPaddingAndCanariesAreRight) {
  for (const std::int64_t outputs : {1, 5, 16}) {
    for (const std::int64_t inputs : {32, 64, 160}) {
      SCOPED_TRACE(std::to_string(outputs) + " x " + std::to_string(inputs));
      Random random(6);
      const std::int64_t codes_stride = inputs / 2 + 3;
      const std::int64_t scales_stride = inputs / 32 + 1;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(outputs * codes_stride));
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(outputs * scales_stride));
      for (auto& code : codes) code = static_cast<std::uint8_t>(random.Next());
      for (auto& scale : scales) scale = static_cast<std::uint8_t>(1 + random.Below(254));
      Buffer<std::uint8_t> panel(PanelBytes(PanelFormat::kMxfp4, inputs));
      auto* data = reinterpret_cast<std::byte*>(panel.data());
      PackPanelMxfp4(codes.data(), codes_stride, scales.data(), scales_stride, outputs, inputs,
                     data);
      EXPECT_TRUE(panel.CanariesIntact());
      for (int n = 0; n < kPanelOutputs; ++n) {
        for (std::int64_t k = 0; k < inputs; ++k) {
          float expected = 0.0f;
          if (n < outputs) {
            const unsigned pair = codes[static_cast<std::size_t>(n * codes_stride + k / 2)];
            const unsigned code = k % 2 == 0 ? pair & 15u : pair >> 4;
            expected = DecodeMxfp4(static_cast<std::uint8_t>(code),
                                   scales[static_cast<std::size_t>(n * scales_stride + k / 32)]);
          }
          ASSERT_EQ(test::Bits(PanelElement(PanelFormat::kMxfp4, data, inputs, n, k)),
                    test::Bits(expected))
              << n << ", " << k;
        }
      }
    }
  }
}

TEST(PackPanelInt8, CodesAreRoundedMultiplesOfTheScale) {
  Bf16 source[32] = {};
  source[0] = ToBf16(-127.0f);
  source[1] = ToBf16(0.5f);
  source[2] = ToBf16(1.5f);
  source[3] = ToBf16(-2.5f);
  source[31] = ToBf16(64.0f);
  Buffer<std::uint8_t> panel(PanelBytes(PanelFormat::kInt8, 32));
  auto* data = reinterpret_cast<std::byte*>(panel.data());
  ASSERT_TRUE(PackPanelInt8(source, 32, 1, 32, data));
  const auto integer = [&](std::int64_t k) {
    return PanelInteger(PanelFormat::kInt8, data, 32, 0, k);
  };
  EXPECT_EQ(PanelScale(PanelFormat::kInt8, data, 32, 0, 0), 1.0f);
  EXPECT_EQ(integer(0), -127);
  EXPECT_EQ(integer(1), 0);  // ties to even
  EXPECT_EQ(integer(2), 2);
  EXPECT_EQ(integer(3), -2);
  EXPECT_EQ(integer(31), 64);
  EXPECT_EQ(panel[64], 1);                 // output 0, input 0: -127 + 128
  EXPECT_EQ(panel[64 + 2], 130);           // input 2
  EXPECT_EQ(panel[64 + 7 * 64 + 3], 192);  // input 31
  EXPECT_EQ(panel[64 + 4], 128);           // output 1 does not exist
}

TEST(PackPanelInt8, ElementsAreWithinHalfAStepAndPaddingIsZero) {
  for (const std::int64_t outputs : {1, 7, 16}) {
    for (const std::int64_t inputs : {1, 31, 32, 33, 64, 100}) {
      SCOPED_TRACE(std::to_string(outputs) + " x " + std::to_string(inputs));
      Random random(7);
      const std::int64_t stride = inputs + 3;
      std::vector<Bf16> source(static_cast<std::size_t>(outputs * stride));
      for (std::size_t i = 0; i < source.size(); ++i) {
        source[i] = ToBf16(std::ldexp(random.Normal(), static_cast<int>(i % 7) * 20 - 60));
      }
      Buffer<std::uint8_t> panel(PanelBytes(PanelFormat::kInt8, inputs));
      auto* data = reinterpret_cast<std::byte*>(panel.data());
      ASSERT_TRUE(PackPanelInt8(source.data(), stride, outputs, inputs, data));
      EXPECT_TRUE(panel.CanariesIntact());
      for (int n = 0; n < kPanelOutputs; ++n) {
        for (std::int64_t k = 0; k < PaddedInputs(inputs); ++k) {
          const bool exists = n < outputs && k < inputs;
          const float expected =
              exists ? ToFloat(source[static_cast<std::size_t>(n * stride + k)]) : 0.0f;
          const float scale = PanelScale(PanelFormat::kInt8, data, inputs, n, k / 32);
          const float actual = PanelElement(PanelFormat::kInt8, data, inputs, n, k);
          // The largest may be cut: 127.5 steps are possible, the scale being rounded to bf16.
          ASSERT_LE(std::fabs(actual - expected), 0.501f * scale) << n << ", " << k;
          ASSERT_LE(std::abs(PanelInteger(PanelFormat::kInt8, data, inputs, n, k)), kInt8Max);
        }
      }
    }
  }
}

TEST(PackPanelInt8, ExtremesOfBf16AreKeptAndTheUnusableRefused) {
  std::vector<Bf16> source(32);
  std::vector<std::byte> panel(static_cast<std::size_t>(PanelBytes(PanelFormat::kInt8, 32)));
  const auto element = [&](std::uint16_t bits) {
    source[5].bits = bits;
    EXPECT_TRUE(PackPanelInt8(source.data(), 32, 1, 32, panel.data()));
    return PanelElement(PanelFormat::kInt8, panel.data(), 32, 0, 5);
  };
  EXPECT_NEAR(element(0x7f7f), 0x1.fep+127f, 0x1p+120f);
  EXPECT_NEAR(element(0xff7f), -0x1.fep+127f, 0x1p+120f);
  EXPECT_EQ(element(0x0080), 0.0f);  // 2^-126: the scale would be denormal
  EXPECT_EQ(element(0x8001), 0.0f);
  EXPECT_GT(element(0x0480), 0.0f);  // 2^-118
  for (const int bits : {0x7f80, 0xff80, 0x7fc0, 0xffff}) {
    source[5].bits = static_cast<std::uint16_t>(bits);
    EXPECT_FALSE(PackPanelInt8(source.data(), 32, 1, 32, panel.data())) << bits;
  }
}

}  // namespace
}  // namespace megalith::kernels
