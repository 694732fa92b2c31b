// The bf16 matmul over vdpbf16ps: kJoinedPairs order. The instruction adds the odd product of a
// pair, then the even one, each fused (Intel SDM, VDPBF16PS; confirmed by the tests).

namespace megalith::kernels::MEGALITH_PATH {

inline __m512 DotPair(__m512 sum, __m512i weights, std::uint32_t inputs) {
  return _mm512_dpbf16_ps(sum, (__m512bh)weights,
                          (__m512bh)_mm512_set1_epi32(static_cast<int>(inputs)));
}

/// chain[r] = the chain of one block for kRows rows of x, row stride x_stride bf16 pairs.
template <int kRows>
inline void SumJoinedBlock(const std::byte* block, const std::uint32_t* x, std::int64_t x_stride,
                           __m512* chain) {
  for (int r = 0; r < kRows; ++r) chain[r] = _mm512_setzero_ps();
  for (int pair = 0; pair < kBlockInputs / 2; ++pair) {
    const __m512i w = _mm512_loadu_si512(block + pair * 64);
    for (int r = 0; r < kRows; ++r) chain[r] = DotPair(chain[r], w, x[r * x_stride + pair]);
  }
}

template <int kRows>
void MultiplyJoinedPairs(const std::byte* panels, std::int64_t num_panels, std::int64_t panel_bytes,
                         std::int64_t blocks, const std::uint32_t* x, float* out,
                         std::int64_t out_stride) {
  const std::int64_t x_stride = blocks * (kBlockInputs / 2);
  for (std::int64_t p = 0; p < num_panels; ++p) {
    const Panel<PanelFormat::kBf16> panel(panels + p * panel_bytes);
    Vec acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = Zero();
    for (std::int64_t b = 0; b < blocks; ++b) {
      __m512 chain[kRows];
      SumJoinedBlock<kRows>(panel.Block(b), x + b * (kBlockInputs / 2), x_stride, chain);
      for (int r = 0; r < kRows; ++r) acc[r] = acc[r] + Vec{chain[r]};
    }
    for (int r = 0; r < kRows; ++r) Store(acc[r], out + r * out_stride + p * kPanelOutputs);
  }
}

/// Copies the rows of a block to [rows][padded] bf16, zeros beyond `inputs`.
inline void CopyRows(const MatmulArgs<Bf16>& args, std::int64_t first_row, std::int64_t rows,
                     std::int64_t padded, Bf16* target) {
  for (std::int64_t r = 0; r < rows; ++r, target += padded) {
    const Bf16* source = InputRow(args, first_row + r);
    std::memcpy(target, source, static_cast<std::size_t>(args.inputs) * sizeof(Bf16));
    std::memset(target + args.inputs, 0,
                static_cast<std::size_t>(padded - args.inputs) * sizeof(Bf16));
  }
}

inline void MatmulJoinedPairs(const MatmulArgs<Bf16>& args) {
  const std::int64_t padded = RoundUp<std::int64_t>(args.inputs, kBlockInputs);
  const std::int64_t blocks = padded / kBlockInputs;
  const std::int64_t panel_bytes = PanelBytes(PanelFormat::kBf16, args.inputs);
  for (std::int64_t first = 0; first < args.rows; first += kMatmulRowBlock) {
    const std::int64_t rows =
        args.rows - first < kMatmulRowBlock ? args.rows - first : kMatmulRowBlock;
    CopyRows(args, first, rows, padded, reinterpret_cast<Bf16*>(args.scratch));
    const auto* pairs = reinterpret_cast<const std::uint32_t*>(args.scratch);
    float* out = args.acc + first * args.acc_stride;
    WithRows(rows, [&](auto count) {
      MultiplyJoinedPairs<count>(args.panels, args.num_panels, panel_bytes, blocks, pairs, out,
                                 args.acc_stride);
    });
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
