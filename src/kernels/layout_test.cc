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
  // Pairs 0, 1 of output 0: even codes 2, a in the low half, odd codes 7, 9 in the high half.
  const std::uint8_t expected[] = {0xa2, 0x00, 0x97, 0x00};
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(panel[64 + i], expected[i]) << i;
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

}  // namespace
}  // namespace megalith::kernels
