// The matrix registers of tiles.h in vector code, one set for each thread.

namespace megalith::kernels::MEGALITH_PATH {

struct EmulatedRegisters {
  TileShapes shapes;
  alignas(64) std::byte data[kNumTiles][kTileRows][kTileRowBytes] = {};
};
inline thread_local EmulatedRegisters emulated_registers;

class EmulatedTiles {
 public:
  static void Configure(const TileShapes& shapes) {
    emulated_registers = {};
    emulated_registers.shapes = shapes;
  }
  static void Release() { emulated_registers = {}; }

  template <int kTile>
  static void Zero() {
    std::memset(emulated_registers.data[kTile], 0, kTileBytes);
  }
  template <int kTile>
  static void Load(const void* address, std::int64_t stride_bytes) {
    Zero<kTile>();
    for (int row = 0; row < emulated_registers.shapes.rows[kTile]; ++row) {
      std::memcpy(emulated_registers.data[kTile][row],
                  static_cast<const std::byte*>(address) + row * stride_bytes,
                  emulated_registers.shapes.row_bytes[kTile]);
    }
  }
  template <int kTile>
  static void Store(void* address, std::int64_t stride_bytes) {
    for (int row = 0; row < emulated_registers.shapes.rows[kTile]; ++row) {
      std::memcpy(static_cast<std::byte*>(address) + row * stride_bytes,
                  emulated_registers.data[kTile][row], emulated_registers.shapes.row_bytes[kTile]);
    }
  }
  /// Bytes beyond a tile's shape are zero, so all 16 outputs and pairs can be computed.
  template <int kC, int kA, int kB>
  static void DotBf16() {
    EmulatedRegisters& registers = emulated_registers;
    for (int row = 0; row < registers.shapes.rows[kC]; ++row) {
      const auto* inputs = reinterpret_cast<const Bf16*>(registers.data[kA][row]);
      Vec even = MEGALITH_PATH::Zero();
      Vec odd = MEGALITH_PATH::Zero();
      for (int pair = 0; pair < kTileRows; ++pair) {
        const PairWeights weights = Bf16Pair(registers.data[kB][pair]).template Pair<0>();
        even = FusedMultiplyAdd(weights.even, Set1(Widen(inputs[2 * pair])), even);
        odd = FusedMultiplyAdd(weights.odd, Set1(Widen(inputs[2 * pair + 1])), odd);
      }
      auto* sums = reinterpret_cast<float*>(registers.data[kC][row]);
      MEGALITH_PATH::Store(MEGALITH_PATH::Load(sums) + (even + odd), sums);
    }
  }
};

}  // namespace megalith::kernels::MEGALITH_PATH
