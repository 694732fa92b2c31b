#pragma once

// The eight matrix registers of AMX behind a small interface with two implementations: the
// processor's, here, and an emulation that adds in the same order (emulated_tiles-inl.h), so that
// the kernels written for tiles run, and give their bits, on machines without AMX, too.
//
// A tile is up to 16 rows of up to 64 bytes. DotBf16<c, a, b> adds the product of a
// [rows][pairs][2] and b [pairs][outputs][2] to c [rows][outputs] f32: for each element an even and
// an odd chain of fused multiply-adds from +0, then c = c + (even + odd), denormals read and
// written as zero (Intel SDM volume 2, TDPBF16PS). That is one block of numerics.h, rule 1,
// kSplitPairs.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace megalith::kernels {

inline constexpr int kNumTiles = 8;
inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;
inline constexpr int kTileBytes = kTileRows * kTileRowBytes;

/// Rows and bytes of a row of each tile; 0 rows: the tile is not used.
struct TileShapes {
  std::uint8_t rows[kNumTiles] = {};
  std::uint16_t row_bytes[kNumTiles] = {};

  friend bool operator==(const TileShapes&, const TileShapes&) = default;
};

/// Whether the processor and the operating system have AMX bf16 tiles and this process may use
/// them. Asks the system for permission the first time.
bool TilesUsable();

/// The processor's tiles. Every member needs TilesUsable(). Assembly, because the intrinsics of
/// GCC 12 tell the optimiser neither that a load reads memory nor how much a configuration reads.
class HardwareTiles {
 public:
  /// Zeroes all tiles.
  static void Configure(const TileShapes& shapes) {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } configuration;
    static_assert(sizeof(Configuration) == 64);
    for (int tile = 0; tile < kNumTiles; ++tile) {
      configuration.rows[tile] = shapes.rows[tile];
      configuration.row_bytes[tile] = shapes.row_bytes[tile];
    }
    asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
  }
  /// Gives the registers back, so that a switch to another thread need not save them.
  static void Release() { asm volatile("tilerelease" ::: "memory"); }

  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  /// Rows at address, address + stride, ...
  template <int kTile>
  static void Load(const void* address, std::int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(address), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  static void Store(void* address, std::int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(address), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kC, int kA, int kB>
  static void DotBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace megalith::kernels
