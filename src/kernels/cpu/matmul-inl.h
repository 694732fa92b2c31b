// Panels times rows. The order of every addition is rule 1 of numerics.h; everything else here
// (how many rows share a reading of the weights, prefetching) does not touch the bits.

namespace megalith::kernels::MEGALITH_PATH {

/// The weights of one format: where block b of a panel lies and what loads its pairs. A loader has
/// kPairs and kBytes, reads kBytes on construction and unpacks pair j of them by Pair<j>().
/// Prefetch(b) requests lines ahead of block b where that has been measured to help: the hardware
/// follows the dense bf16 stream by itself (0.85 of a plain read of cold memory without requests,
/// 0.82 with), not the thin one of MXFP4 (14.5 GB/s without, 20 with; one Zen 4 core).
template <PanelFormat kFormat>
struct Panel;

template <>
struct Panel<PanelFormat::kBf16> {
  using Loaded = Bf16Pair;
  static constexpr std::int64_t kBlockBytes = kBlockInputs / 2 / Loaded::kPairs * Loaded::kBytes;
  const std::byte* weights;

  Panel(const std::byte* panel, std::int64_t /*blocks*/) : weights(panel) {}
  const std::byte* Block(std::int64_t b) const { return weights + b * kBlockBytes; }
  Vec Scaled(Vec sum, std::int64_t /*block*/) const { return sum; }
  void Prefetch(std::int64_t /*b*/) const {}
};

template <>
struct Panel<PanelFormat::kMxfp4> {
  using Loaded = Mxfp4Pairs;
  static constexpr std::int64_t kBlockBytes = kBlockInputs / 2 / Loaded::kPairs * Loaded::kBytes;
  const std::byte* scales;
  const std::byte* codes;

  Panel(const std::byte* panel, std::int64_t blocks)
      : scales(panel), codes(panel + RoundUp<std::int64_t>(blocks * kPanelOutputs, 64)) {}
  const std::byte* Block(std::int64_t b) const { return codes + b * kBlockBytes; }
  Vec Scaled(Vec sum, std::int64_t block) const {
    return sum * LoadScales(scales + block * kPanelOutputs);
  }
  void Prefetch(std::int64_t b) const {
    constexpr std::int64_t kAheadBytes = 4096;
    for (std::int64_t i = 0; i < kBlockBytes; i += 64) PrefetchLine(Block(b) + kAheadBytes + i);
  }
};

/// Calls function(std::integral_constant<int, 0>), ... up to kCount - 1: shift counts must be
/// constants, and arrays indexed by constants stay in registers whatever the compiler thinks of
/// unrolling a loop.
template <int kCount, int kIndex = 0, typename Function>
inline void ForEachConstant(Function function) {
  if constexpr (kIndex < kCount) {
    function(std::integral_constant<int, kIndex>());
    ForEachConstant<kCount, kIndex + 1>(function);
  }
}

template <bool kFused>
inline Vec MultiplyAdd(Vec a, Vec b, Vec c) {
  if constexpr (kFused) {
    return FusedMultiplyAdd(a, b, c);
  } else {
    return a * b + c;
  }
}

/// A pair of a block that UnpackBlock has written.
struct FloatPair {
  static constexpr int kPairs = 1;
  static constexpr std::int64_t kBytes = 2 * kLanes * sizeof(float);
  PairWeights weights;

  explicit FloatPair(const std::byte* p)
      : weights{Load(reinterpret_cast<const float*>(p)),
                Load(reinterpret_cast<const float*>(p) + kLanes)} {}
  template <int kPair>
  PairWeights Pair() const {
    return weights;
  }
};

/// Calls function(pair, weights) for the 16 pairs of a block stored for Loaded.
template <typename Loaded, typename Function>
inline void ForEachPair(const std::byte* block, Function function) {
  for (int first = 0; first < kBlockInputs / 2; first += Loaded::kPairs, block += Loaded::kBytes) {
    const Loaded loaded(block);
    ForEachConstant<Loaded::kPairs>(
        [&](auto j) { function(first + j, loaded.template Pair<j>()); });
  }
}

template <typename Loaded>
inline void UnpackBlock(const std::byte* block, float* values) {
  ForEachPair<Loaded>(block, [&](int pair, PairWeights w) {
    Store(w.even, values + pair * 2 * kLanes);
    Store(w.odd, values + pair * 2 * kLanes + kLanes);
  });
}

/// sums[r] = even chain + odd chain of one block for kRows rows of x, row stride x_stride floats.
template <int kRows, typename Loaded, bool kFused>
inline void SumSplitBlock(const std::byte* block, const float* x, std::int64_t x_stride,
                          Vec* sums) {
  Vec even[kRows];
  Vec odd[kRows];
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = Zero();
  ForEachPair<Loaded>(block, [&](int pair, PairWeights w) {
    // Not a loop: GCC 12 vectorises a loop over two rows with a load of the row behind them, which
    // need not be mapped. (It never uses that row, so bits are right; valgrind shows the load,
    // sanitizers do not.)
    ForEachConstant<kRows>([&](auto r) {
      const float* inputs = x + r * x_stride + 2 * pair;
      even[r] = MultiplyAdd<kFused>(w.even, Set1(inputs[0]), even[r]);
      odd[r] = MultiplyAdd<kFused>(w.odd, Set1(inputs[1]), odd[r]);
    });
  });
  for (int r = 0; r < kRows; ++r) sums[r] = even[r] + odd[r];
}

/// SumSplitBlock for any number of rows, as many at a time as the registers hold.
template <int kRows, typename Loaded, bool kFused>
inline void SumSplitBlockInPasses(const std::byte* block, const float* x, std::int64_t x_stride,
                                  Vec* sums) {
  if constexpr (kRows <= kMatmulRowsPerPass) {
    SumSplitBlock<kRows, Loaded, kFused>(block, x, x_stride, sums);
  } else {
    SumSplitBlock<kMatmulRowsPerPass, Loaded, kFused>(block, x, x_stride, sums);
    SumSplitBlockInPasses<kRows - kMatmulRowsPerPass, Loaded, kFused>(
        block, x + kMatmulRowsPerPass * x_stride, x_stride, sums + kMatmulRowsPerPass);
  }
}

/// acc[r][16 p + n] for kRows rows; x: [kRows][blocks * 32] floats.
template <int kRows, PanelFormat kFormat, bool kFused>
void MultiplySplitPairs(const std::byte* panels, std::int64_t num_panels, std::int64_t panel_bytes,
                        std::int64_t blocks, const float* x, float* out, std::int64_t out_stride) {
  using Loaded = typename Panel<kFormat>::Loaded;
  const std::int64_t x_stride = blocks * kBlockInputs;
  for (std::int64_t p = 0; p < num_panels; ++p) {
    const Panel<kFormat> panel(panels + p * panel_bytes, blocks);
    Vec acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = Zero();
    for (std::int64_t b = 0; b < blocks; ++b) {
      panel.Prefetch(b);
      const float* inputs = x + b * kBlockInputs;
      Vec sums[kRows];
      if constexpr (kFormat == PanelFormat::kMxfp4 && kRows > kMatmulRowsPerPass) {
        // Codes cost more to unpack than floats to load again.
        alignas(64) float values[kBlockInputs * kPanelOutputs];
        UnpackBlock<Loaded>(panel.Block(b), values);
        SumSplitBlockInPasses<kRows, FloatPair, kFused>(reinterpret_cast<const std::byte*>(values),
                                                        inputs, x_stride, sums);
      } else {
        SumSplitBlockInPasses<kRows, Loaded, kFused>(panel.Block(b), inputs, x_stride, sums);
      }
      for (int r = 0; r < kRows; ++r) acc[r] = acc[r] + panel.Scaled(sums[r], b);
    }
    for (int r = 0; r < kRows; ++r) Store(acc[r], out + r * out_stride + p * kPanelOutputs);
  }
}

/// Copies the rows of a block to [rows][padded] floats, zeros beyond `inputs`.
template <typename X>
inline void ExpandRows(const MatmulArgs<X>& args, std::int64_t first_row, std::int64_t rows,
                       std::int64_t padded) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = first_row + r;
    const X* source =
        args.x + (args.row_indices != nullptr ? args.row_indices[row] : row) * args.x_stride;
    float* target = args.scratch + r * padded;
    ForEachVector(args.inputs, [&](std::int64_t i, std::int64_t n) {
      Store(LoadUpTo(source + i, n), target + i);
    });
    const std::int64_t written = RoundUp<std::int64_t>(args.inputs, kLanes);
    if (written < padded) Store(Zero(), target + written);
  }
}

template <typename X, PanelFormat kFormat>
void MatmulSplitPairs(const MatmulArgs<X>& args) {
  constexpr bool kFused = std::is_same_v<X, Bf16>;
  const std::int64_t padded = RoundUp<std::int64_t>(args.inputs, kBlockInputs);
  const std::int64_t blocks = padded / kBlockInputs;
  const std::int64_t panel_bytes = PanelBytes(kFormat, args.inputs);
  for (std::int64_t first = 0; first < args.rows; first += kMatmulRowBlock) {
    const std::int64_t rows =
        args.rows - first < kMatmulRowBlock ? args.rows - first : kMatmulRowBlock;
    ExpandRows(args, first, rows, padded);
    float* out = args.acc + first * args.acc_stride;
    const auto multiply = [&](auto function) {
      function(args.panels, args.num_panels, panel_bytes, blocks, args.scratch, out,
               args.acc_stride);
    };
    switch (rows) {
      case 1:
        multiply(MultiplySplitPairs<1, kFormat, kFused>);
        break;
      case 2:
        multiply(MultiplySplitPairs<2, kFormat, kFused>);
        break;
      case 3:
        multiply(MultiplySplitPairs<3, kFormat, kFused>);
        break;
      case 4:
        multiply(MultiplySplitPairs<4, kFormat, kFused>);
        break;
      case 5:
        multiply(MultiplySplitPairs<5, kFormat, kFused>);
        break;
      case 6:
        multiply(MultiplySplitPairs<6, kFormat, kFused>);
        break;
      case 7:
        multiply(MultiplySplitPairs<7, kFormat, kFused>);
        break;
      default:
        multiply(MultiplySplitPairs<8, kFormat, kFused>);
        break;
    }
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
