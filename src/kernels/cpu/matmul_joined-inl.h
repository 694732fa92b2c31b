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

/// One part of kRows rows; x: [kRows][part.size() * 16] pairs.
template <int kRows>
void MultiplyJoinedPairs(const std::byte* panels, std::int64_t num_panels, std::int64_t panel_bytes,
                         Part part, const std::uint32_t* x, float* out, std::int64_t out_stride) {
  constexpr std::int64_t kBlockPairs = kBlockInputs / 2;
  const std::int64_t x_stride = part.size() * kBlockPairs;
  ForEachPanel<kRows, ReadingFor<PanelFormat::kBf16, kRows>().panels>(
      panels, num_panels, panel_bytes, part.first == 0, out, out_stride,
      [&](auto count, const std::byte* start, Vec* acc) MEGALITH_INLINE_LAMBDA {
        const std::uint32_t* pairs = x;
        for (std::int64_t b = part.first; b < part.last; ++b, pairs += kBlockPairs) {
          ForEachConstant<count>([&](auto j) MEGALITH_INLINE_LAMBDA {
            const Panel<PanelFormat::kBf16> panel(start + j * panel_bytes);
            panel.template Prefetch<kRows>(b);
            __m512 chain[kRows];
            SumJoinedBlock<kRows>(panel.Block(b), pairs, x_stride, chain);
            for (int r = 0; r < kRows; ++r) {
              acc[j * kRows + r] = acc[j * kRows + r] + Vec{chain[r]};
            }
          });
        }
      });
}

/// Copies one part of some rows to [rows][part.size() * 32] bf16, zeros beyond `inputs`.
inline void CopyRows(const MatmulArgs<Bf16>& args, std::int64_t first_row, std::int64_t rows,
                     Part part, Bf16* target) {
  const std::int64_t begin = part.first * kBlockInputs;
  const std::int64_t padded = part.size() * kBlockInputs;
  const std::int64_t inputs = args.inputs - begin < padded ? args.inputs - begin : padded;
  for (std::int64_t r = 0; r < rows; ++r, target += padded) {
    std::memcpy(target, InputRow(args, first_row + r) + begin,
                static_cast<std::size_t>(inputs) * sizeof(Bf16));
    std::memset(target + inputs, 0, static_cast<std::size_t>(padded - inputs) * sizeof(Bf16));
  }
}

inline void MatmulJoinedPairs(const MatmulArgs<Bf16>& args) {
  const std::int64_t panel_bytes = PanelBytes(PanelFormat::kBf16, args.inputs);
  ForEachRowBlock(args, kBlockInputs * sizeof(Bf16), Panel<PanelFormat::kBf16>::kBlockBytes,
                  [&](Part part, std::int64_t first, std::int64_t rows) {
                    CopyRows(args, first, rows, part, reinterpret_cast<Bf16*>(args.scratch));
                    const auto* pairs = reinterpret_cast<const std::uint32_t*>(args.scratch);
                    float* out = args.acc + first * args.acc_stride;
                    WithRows(rows, [&](auto count) {
                      MultiplyJoinedPairs<count>(args.panels, args.num_panels, panel_bytes, part,
                                                 pairs, out, args.acc_stride);
                    });
                  });
}

}  // namespace megalith::kernels::MEGALITH_PATH
