// The bf16 matmul over vdpbf16ps: kJoinedPairs order. The instruction adds the odd product of a
// pair, then the even one, each fused (Intel SDM, VDPBF16PS; confirmed by the tests).

namespace megalith::kernels::MEGALITH_PATH {

/// The weights of pair `pair` of a block, unscaled, as 16 x 2 bf16.
template <PanelFormat kFormat>
inline __m512i JoinedPair(const std::byte* p);

template <>
inline __m512i JoinedPair<PanelFormat::kBf16>(const std::byte* p) {
  return _mm512_loadu_si512(p);
}

// E2M1 values as bf16, twice: the permutation of 16-bit elements looks at five bits of an index,
// and the fifth is part of the other nibble.
alignas(64) inline constexpr std::uint16_t kE2m1Bf16[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
    0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
    0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

template <>
inline __m512i JoinedPair<PanelFormat::kMxfp4>(const std::byte* p) {
  const __m512i table = _mm512_load_si512(kE2m1Bf16);
  // Code byte hl: the low half of a lane gets index .l, the high half index .h.
  const __m512i codes = LoadMxfp4Codes(p);
  const __m512i indices = _mm512_or_si512(codes, _mm512_slli_epi32(codes, 12));
  return _mm512_permutexvar_epi16(indices, table);
}

inline __m512 DotPair(__m512 sum, __m512i weights, std::uint32_t inputs) {
  return _mm512_dpbf16_ps(sum, (__m512bh)weights,
                          (__m512bh)_mm512_set1_epi32(static_cast<int>(inputs)));
}

/// Adds block `b` of kRows rows of x (bf16 pairs, row stride x_stride pairs) to acc.
template <int kRows, PanelFormat kFormat>
inline void AddJoinedBlock(const Panel<kFormat>& panel, std::int64_t b, const std::uint32_t* x,
                           std::int64_t x_stride, Vec* acc) {
  const std::byte* weights = panel.Block(b);
  x += b * (kBlockInputs / 2);
  __m512 chain[kRows];
  for (int r = 0; r < kRows; ++r) chain[r] = _mm512_setzero_ps();
  for (int pair = 0; pair < kBlockInputs / 2; ++pair) {
    const __m512i w = JoinedPair<kFormat>(weights + pair * Panel<kFormat>::kPairBytes);
    for (int r = 0; r < kRows; ++r) chain[r] = DotPair(chain[r], w, x[r * x_stride + pair]);
  }
  for (int r = 0; r < kRows; ++r) acc[r] = acc[r] + panel.Scaled(Vec{chain[r]}, b);
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
      PrefetchBlock(panel, b);
      AddJoinedBlock<kRows>(panel, b, x, x_stride, acc);
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
