// The bf16 matmul over vdpbf16ps: kJoinedPairs order. The instruction adds the odd product of a
// pair, then the even one, each fused (Intel SDM, VDPBF16PS; confirmed by the tests).

namespace megalith::kernels::MEGALITH_PATH {

/// Pair j of a loader as 16 x 2 bf16, unscaled.
template <int kPair>
inline __m512i JoinedPair(const Bf16Pair& loaded) {
  return loaded.pairs;
}
template <int kPair>
inline __m512i JoinedPair(const Mxfp4Pairs& loaded) {
  return _mm512_permutexvar_epi16(_mm512_srli_epi32(loaded.codes, 4 * kPair),
                                  _mm512_load_si512(kE2m1Bf16));
}

inline __m512 DotPair(__m512 sum, __m512i weights, std::uint32_t inputs) {
  return _mm512_dpbf16_ps(sum, (__m512bh)weights,
                          (__m512bh)_mm512_set1_epi32(static_cast<int>(inputs)));
}

/// chain[r] = the chain of one block for kRows rows of x, row stride x_stride bf16 pairs.
template <int kRows, typename Loaded>
inline void SumJoinedBlock(const std::byte* block, const std::uint32_t* x, std::int64_t x_stride,
                           __m512* chain) {
  for (int r = 0; r < kRows; ++r) chain[r] = _mm512_setzero_ps();
  for (int first = 0; first < kBlockInputs / 2; first += Loaded::kPairs, block += Loaded::kBytes) {
    const Loaded loaded(block);
    ForEachConstant<Loaded::kPairs>([&](auto j) {
      const __m512i w = JoinedPair<j>(loaded);
      for (int r = 0; r < kRows; ++r) chain[r] = DotPair(chain[r], w, x[r * x_stride + first + j]);
    });
  }
}

template <int kRows, PanelFormat kFormat>
void MultiplyJoinedPairs(const std::byte* panels, std::int64_t num_panels, std::int64_t panel_bytes,
                         std::int64_t blocks, const std::uint32_t* x, float* out,
                         std::int64_t out_stride) {
  const std::int64_t x_stride = blocks * (kBlockInputs / 2);
  for (std::int64_t p = 0; p < num_panels; ++p) {
    const Panel<kFormat> panel(panels + p * panel_bytes, blocks);
    Vec acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = Zero();
    for (std::int64_t b = 0; b < blocks; ++b) {
      panel.Prefetch(b);
      __m512 chain[kRows];
      SumJoinedBlock<kRows, typename Panel<kFormat>::Loaded>(
          panel.Block(b), x + b * (kBlockInputs / 2), x_stride, chain);
      for (int r = 0; r < kRows; ++r) acc[r] = acc[r] + panel.Scaled(Vec{chain[r]}, b);
    }
    for (int r = 0; r < kRows; ++r) Store(acc[r], out + r * out_stride + p * kPanelOutputs);
  }
}

/// Copies the rows of a block to [rows][padded] bf16, zeros beyond `inputs`.
inline void CopyRows(const MatmulArgs<Bf16>& args, std::int64_t first_row, std::int64_t rows,
                     std::int64_t padded, Bf16* target) {
  for (std::int64_t r = 0; r < rows; ++r, target += padded) {
    const std::int64_t row = first_row + r;
    const Bf16* source =
        args.x + (args.row_indices != nullptr ? args.row_indices[row] : row) * args.x_stride;
    std::memcpy(target, source, static_cast<std::size_t>(args.inputs) * sizeof(Bf16));
    std::memset(target + args.inputs, 0,
                static_cast<std::size_t>(padded - args.inputs) * sizeof(Bf16));
  }
}

template <PanelFormat kFormat>
void MatmulJoinedPairs(const MatmulArgs<Bf16>& args) {
  const std::int64_t padded = RoundUp<std::int64_t>(args.inputs, kBlockInputs);
  const std::int64_t blocks = padded / kBlockInputs;
  const std::int64_t panel_bytes = PanelBytes(kFormat, args.inputs);
  for (std::int64_t first = 0; first < args.rows; first += kMatmulRowBlock) {
    const std::int64_t rows =
        args.rows - first < kMatmulRowBlock ? args.rows - first : kMatmulRowBlock;
    CopyRows(args, first, rows, padded, reinterpret_cast<Bf16*>(args.scratch));
    const auto* pairs = reinterpret_cast<const std::uint32_t*>(args.scratch);
    float* out = args.acc + first * args.acc_stride;
    const auto multiply = [&](auto function) {
      function(args.panels, args.num_panels, panel_bytes, blocks, pairs, out, args.acc_stride);
    };
    switch (rows) {
      case 1:
        multiply(MultiplyJoinedPairs<1, kFormat>);
        break;
      case 2:
        multiply(MultiplyJoinedPairs<2, kFormat>);
        break;
      case 3:
        multiply(MultiplyJoinedPairs<3, kFormat>);
        break;
      case 4:
        multiply(MultiplyJoinedPairs<4, kFormat>);
        break;
      case 5:
        multiply(MultiplyJoinedPairs<5, kFormat>);
        break;
      case 6:
        multiply(MultiplyJoinedPairs<6, kFormat>);
        break;
      case 7:
        multiply(MultiplyJoinedPairs<7, kFormat>);
        break;
      default:
        multiply(MultiplyJoinedPairs<8, kFormat>);
        break;
    }
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
