// The bf16 matmul over vdpbf16ps: kJoinedPairs order. The instruction adds the odd product of a
// pair, then the even one, each fused (Intel SDM, VDPBF16PS; confirmed by the tests).

namespace megalith::kernels::MEGALITH_PATH {

inline __m512 DotPair(__m512 sum, __m512i weights, std::uint32_t inputs) {
  return _mm512_dpbf16_ps(sum, (__m512bh)weights,
                          (__m512bh)_mm512_set1_epi32(static_cast<int>(inputs)));
}

/// chain[j * kRows + r] = the chain of one block of panel j, panel_bytes behind panel j - 1, for
/// kRows rows of x, row stride x_stride bf16 pairs.
///
/// All panels at once: each input is loaded once for them, and the chains of one panel are too few
/// for the latency of the additions (one Zen 5 core, weights in the L2, 8 rows: 29 GB/s, 44 with
/// two panels). Requests go out between the products, one for each line that is read: those of a
/// block at once fill the queue that the loads need (weights in memory, 8 rows, two panels: 27 of
/// 33 GB/s; 32 one by one and 4 KiB ahead, 30 with 2 or 8 KiB, 30 without).
template <int kRows, int kPanels>
MEGALITH_INLINE void SumJoinedBlocks(const std::byte* block, std::int64_t panel_bytes,
                                     const std::uint32_t* x, std::int64_t x_stride, __m512* chain) {
  for (int i = 0; i < kPanels * kRows; ++i) chain[i] = _mm512_setzero_ps();
  for (int pair = 0; pair < kBlockInputs / 2; ++pair) {
    __m512i w[kPanels];
    for (int j = 0; j < kPanels; ++j) {
      const std::byte* line = block + j * panel_bytes + pair * 64;
      w[j] = _mm512_loadu_si512(line);
      if constexpr (ReadingFor<PanelFormat::kBf16, kRows>().requests) PrefetchLine(line + 4096);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kPanels; ++j) {
        chain[j * kRows + r] = DotPair(chain[j * kRows + r], w[j], x[r * x_stride + pair]);
      }
    }
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
          __m512 chain[count * kRows];
          SumJoinedBlocks<kRows, count>(Panel<PanelFormat::kBf16>(start).Block(b), panel_bytes,
                                        pairs, x_stride, chain);
          for (int i = 0; i < count * kRows; ++i) acc[i] = acc[i] + Vec{chain[i]};
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
