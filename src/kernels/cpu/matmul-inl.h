// Panels times rows. The order of every addition is rule 1 of numerics.h; everything else here
// (how many rows share a reading of the weights, prefetching) does not touch the bits.

namespace megalith::kernels::MEGALITH_PATH {

// Weights are streamed once per row block; the hardware prefetchers stop at 4 KiB pages, so lines
// are requested this far ahead.
inline constexpr std::int64_t kPrefetchBytes = 4096;

/// The weights of one format: where block b of a panel lies and how a pair is unpacked.
template <PanelFormat kFormat>
struct Panel;

template <>
struct Panel<PanelFormat::kBf16> {
  static constexpr std::int64_t kPairBytes = 64;
  static constexpr std::int64_t kBlockBytes = kPairBytes * kBlockInputs / 2;
  const std::byte* weights;

  Panel(const std::byte* panel, std::int64_t /*blocks*/) : weights(panel) {}
  const std::byte* Block(std::int64_t b) const { return weights + b * kBlockBytes; }
  static PairWeights Pair(const std::byte* p) { return LoadBf16Pair(p); }
  Vec Scaled(Vec sum, std::int64_t /*block*/) const { return sum; }
};

template <>
struct Panel<PanelFormat::kMxfp4> {
  static constexpr std::int64_t kPairBytes = 16;
  static constexpr std::int64_t kBlockBytes = kPairBytes * kBlockInputs / 2;
  const std::byte* scales;
  const std::byte* codes;

  Panel(const std::byte* panel, std::int64_t blocks)
      : scales(panel), codes(panel + RoundUp<std::int64_t>(blocks * kPanelOutputs, 64)) {}
  const std::byte* Block(std::int64_t b) const { return codes + b * kBlockBytes; }
  static PairWeights Pair(const std::byte* p) { return LoadMxfp4Pair(p); }
  Vec Scaled(Vec sum, std::int64_t block) const {
    return sum * LoadScales(scales + block * kPanelOutputs);
  }
};

template <bool kFused>
inline Vec MultiplyAdd(Vec a, Vec b, Vec c) {
  if constexpr (kFused) {
    return FusedMultiplyAdd(a, b, c);
  } else {
    return a * b + c;
  }
}

/// Adds block `b` of kRows rows of x (row stride x_stride floats) to acc.
template <int kRows, PanelFormat kFormat, bool kFused>
inline void AddSplitBlock(const Panel<kFormat>& panel, std::int64_t b, const float* x,
                          std::int64_t x_stride, Vec* acc) {
  const std::byte* weights = panel.Block(b);
  x += b * kBlockInputs;
  Vec even[kRows];
  Vec odd[kRows];
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = Zero();
  for (int pair = 0; pair < kBlockInputs / 2; ++pair) {
    const PairWeights w = Panel<kFormat>::Pair(weights + pair * Panel<kFormat>::kPairBytes);
    for (int r = 0; r < kRows; ++r) {
      const float* inputs = x + r * x_stride + 2 * pair;
      even[r] = MultiplyAdd<kFused>(w.even, Set1(inputs[0]), even[r]);
      odd[r] = MultiplyAdd<kFused>(w.odd, Set1(inputs[1]), odd[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) acc[r] = acc[r] + panel.Scaled(even[r] + odd[r], b);
}

template <PanelFormat kFormat>
inline void PrefetchBlock(const Panel<kFormat>& panel, std::int64_t b) {
  const std::byte* ahead = panel.Block(b) + kPrefetchBytes;
  for (std::int64_t i = 0; i < Panel<kFormat>::kBlockBytes; i += 64) Prefetch(ahead + i);
}

/// acc[r][16 p + n] for kRows rows; x: [kRows][blocks * 32] floats.
template <int kRows, PanelFormat kFormat, bool kFused>
void MultiplySplitPairs(const std::byte* panels, std::int64_t num_panels, std::int64_t panel_bytes,
                        std::int64_t blocks, const float* x, float* out, std::int64_t out_stride) {
  const std::int64_t x_stride = blocks * kBlockInputs;
  for (std::int64_t p = 0; p < num_panels; ++p) {
    const Panel<kFormat> panel(panels + p * panel_bytes, blocks);
    Vec acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = Zero();
    for (std::int64_t b = 0; b < blocks; ++b) {
      PrefetchBlock(panel, b);
      constexpr int kPass = kRows < kMatmulRowsPerPass ? kRows : kMatmulRowsPerPass;
      int r = 0;
      for (; r + kPass <= kRows; r += kPass) {
        AddSplitBlock<kPass, kFormat, kFused>(panel, b, x + r * x_stride, x_stride, acc + r);
      }
      constexpr int kRest = kRows % kPass;
      if constexpr (kRest != 0) {
        AddSplitBlock<kRest, kFormat, kFused>(panel, b, x + r * x_stride, x_stride, acc + r);
      }
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
