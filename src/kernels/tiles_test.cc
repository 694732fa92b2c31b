#include "kernels/cpu/tiles.h"

#include <gtest/gtest.h>

#include "kernels/test_util.h"
#include "kernels/trapped_tiles.h"

namespace megalith::kernels {
namespace {

using test::Buffer;
using test::Random;
using test::SameBits;

/// Kernels on tiles of the processor, real or trapped, against those on emulated ones.
void CompareWithEmulation() {
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

// The processor against the emulation: what makes amx_emulated worth asking, and the only place
// where the order that the manual gives for TDPBF16PS meets the hardware.
TEST(Tiles, HardwareGivesTheBitsOfTheEmulation) {
  MEGALITH_SKIP_IF_UNSUPPORTED(Isa::kAmx)
  CompareWithEmulation();
}

// The same instructions, executed by a reading of the manual of its own.
TEST(Tiles, TrappedInstructionsGiveTheBitsOfTheEmulation) {
  MEGALITH_SKIP_IF_UNSUPPORTED(Isa::kAmxEmulated)
  if (TilesUsable()) GTEST_SKIP() << "this machine has AMX: nothing would be trapped";
  const test::ScopedTrappedTiles trapped;
  CompareWithEmulation();
  EXPECT_GT(trapped.num_products(), 1000);
}

TEST(TilesDeathTest, WhatAProcessorWouldRefuseIsRefused) {
  if (TilesUsable()) GTEST_SKIP() << "this machine has AMX: nothing would be trapped";
  const test::ScopedTrappedTiles trapped;
  alignas(64) static float data[16 * 16] = {};
  TileShapes shapes;
  for (int tile : {0, 1, 2}) shapes.rows[tile] = 16, shapes.row_bytes[tile] = 64;
  const auto multiply = [](const TileShapes& of_tiles) {
    HardwareTiles::Configure(of_tiles);
    HardwareTiles::Zero<0>();
    HardwareTiles::Load<1>(data, 64);
    HardwareTiles::Load<2>(data, 64);
    HardwareTiles::DotBf16<0, 1, 2>();
    HardwareTiles::Store<0>(data, 64);
    HardwareTiles::Release();
  };
  multiply(shapes);
  EXPECT_DEATH(HardwareTiles::Zero<0>(), "tilezero: tile not configured");
  TileShapes other = shapes;
  other.rows[0] = 5;
  EXPECT_DEATH(multiply(other), "shapes do not fit");
  other = shapes;
  other.row_bytes[2] = 0;
  EXPECT_DEATH(multiply(other), "rows without columns");
  other = shapes;
  other.rows[3] = 17, other.row_bytes[3] = 64;
  EXPECT_DEATH(multiply(other), "tile too large");
}

}  // namespace
}  // namespace megalith::kernels
