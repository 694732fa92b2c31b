#include "kernels/cpu/tiles.h"

#include <gtest/gtest.h>

#include "kernels/test_util.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

// The processor against the emulation: what makes amx_emulated worth asking, and the only place
// where the order that the manual gives for TDPBF16PS meets the hardware.
TEST(Tiles, HardwareGivesTheBitsOfTheEmulation) {
  MEGALITH_SKIP_IF_UNSUPPORTED(Isa::kAmx)
  for (const PanelFormat format : {PanelFormat::kBf16, PanelFormat::kMxfp4, PanelFormat::kInt8}) {
    for (const std::int64_t rows : {1, 5, 16, 17, 40, 64}) {
      constexpr std::int64_t kInputs = 1056;
      constexpr std::int64_t kPanels = 5;
      Random random(static_cast<std::uint64_t>(rows));
      const std::int64_t panel_bytes = PanelBytes(format, kInputs);
      Buffer<std::byte> panels(kPanels * panel_bytes);
      for (std::int64_t p = 0; p < kPanels; ++p) {
        std::byte* panel = panels.data() + p * panel_bytes;
        if (format == PanelFormat::kMxfp4) {
          std::vector<std::uint8_t> codes(16 * kInputs / 2);
          for (auto& code : codes) code = static_cast<std::uint8_t>(random.Next());
          std::vector<std::uint8_t> scales(16 * kInputs / 32);
          for (auto& scale : scales) scale = static_cast<std::uint8_t>(1 + random.Below(254));
          PackPanelMxfp4(codes.data(), kInputs / 2, scales.data(), kInputs / 32, 16, kInputs,
                         panel);
          continue;
        }
        std::vector<Bf16> weights(16 * kInputs);
        for (Bf16& weight : weights) weight = ToBf16(random.Normal());
        if (format == PanelFormat::kBf16) {
          PackPanelBf16(weights.data(), kInputs, 1, 16, kInputs, panel);
        } else {
          ASSERT_TRUE(PackPanelInt8(weights.data(), kInputs, 16, kInputs, panel));
        }
      }
      Buffer<Bf16> x(rows * kInputs);
      for (std::int64_t i = 0; i < x.size(); ++i) x[i] = ToBf16(random.AnyFinite());
      Buffer<float> scratch(MatmulScratchFloats(kInputs));
      Buffer<float> have(rows * kPanels * 16);
      Buffer<float> want(rows * kPanels * 16);
      MatmulArgs<Bf16> args{panels.data(), kPanels, kInputs,     x.data(),     kInputs,
                            nullptr,       rows,    have.data(), kPanels * 16, scratch.data()};
      const auto f = static_cast<std::size_t>(format);
      Bf16Kernels(Isa::kAmx).matmul[f](args);
      args.acc = want.data();
      Bf16Kernels(Isa::kAmxEmulated).matmul[f](args);
      EXPECT_TRUE(SameBits(have, want)) << PanelFormatName(format) << " rows " << rows;
    }
  }
}

}  // namespace
}  // namespace megalith::kernels
