// Fixed-point products of quantised weights by vpmaddwd; interface in quantized_portable-inl.h.

namespace megalith::kernels::MEGALITH_PATH {

// A block of activations as 16-bit pairs: of inputs 4 j .. 4 j + 3, first (0, 2), then (1, 3), the
// bytes that a mask and a shift of a word of 4 codes leave next to each other.

/// Eight 16-bit values of 8 bf16 in the order above.
MEGALITH_INLINE __m256i PairedIntegers(__m256i bits, __m256 to_integer) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i even = _mm256_cvtps_epi32(
      _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)), to_integer));
  const __m256i odd = _mm256_cvtps_epi32(
      _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(bits, high)), to_integer));
  const __m256i natural = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  return _mm256_shuffle_epi8(natural, order);
}

MEGALITH_INLINE FixedBlockInfo ConvertFixedBlock(const Bf16* x, std::byte* out) {
  __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + 1);
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  const __m256i larger =
      _mm256_max_epu16(_mm256_and_si256(low, magnitude), _mm256_and_si256(high, magnitude));
  const __m128i largest8 =
      _mm_max_epu16(_mm256_castsi256_si128(larger), _mm256_extracti128_si256(larger, 1));
  // The only horizontal extreme of 16-bit elements is the smallest.
  const __m128i ones = _mm_set1_epi16(-1);
  const auto largest = static_cast<std::uint32_t>(
      ~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(largest8, ones))) & 0xffff);
  FixedBlockInfo info{};
  info.finite = largest < 0x7f80u;
  info.exponent = static_cast<std::int32_t>((largest + 1) >> 7);
  if (info.exponent < kFixedPointMinExponent) info.exponent = kFixedPointMinExponent;
  if (!info.finite) low = high = _mm256_setzero_si256();
  const __m256 to_integer = _mm256_castsi256_ps(_mm256_set1_epi32((268 - info.exponent) << 23));
  low = PairedIntegers(low, to_integer);
  high = PairedIntegers(high, to_integer);
  auto* target = reinterpret_cast<__m256i*>(out);
  _mm256_store_si256(target, low);
  _mm256_store_si256(target + 1, high);
  const __m256i unit = _mm256_set1_epi16(1);
  const __m256i eight =
      _mm256_add_epi32(_mm256_madd_epi16(low, unit), _mm256_madd_epi16(high, unit));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  info.sum = _mm_cvtsi128_si32(four);
  return info;
}

/// Adds the products of a word of 4 codes of 8 outputs with values 4 j .. 4 j + 3 of every row.
template <int kRows>
MEGALITH_INLINE void AddWord(__m256i codes, int j, const std::byte* x, std::int64_t x_stride,
                             __m256i* sums) {
  const __m256i even = _mm256_and_si256(codes, _mm256_set1_epi16(0x00ff));
  const __m256i odd = _mm256_srli_epi16(codes, 8);
  ForEachConstant<kRows>([&](auto r) MEGALITH_INLINE_LAMBDA {
    const auto* pairs = reinterpret_cast<const std::int32_t*>(x + r * x_stride) + 2 * j;
    sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(even, _mm256_set1_epi32(pairs[0])));
    sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(odd, _mm256_set1_epi32(pairs[1])));
  });
}

/// One half of the outputs; `codes` points at the half's bytes of the first line.
template <int kRows, PanelFormat kFormat>
MEGALITH_INLINE void SumFixedHalf(const std::byte* codes, const std::byte* x, std::int64_t x_stride,
                                  __m256i* sums) {
  if constexpr (kFormat == PanelFormat::kMxfp4) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Offset)));
    const __m256i nibble = _mm256_set1_epi8(15);
    ForEachConstant<kBlockInputs / 8>([&](auto line) MEGALITH_INLINE_LAMBDA {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + line * 64));
      const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(both, nibble));
      const __m256i high =
          _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32(both, 4), nibble));
      AddWord<kRows>(low, 2 * line, x, x_stride, sums);
      AddWord<kRows>(high, 2 * line + 1, x, x_stride, sums);
    });
  } else {
    ForEachConstant<kBlockInputs / 4>([&](auto line) MEGALITH_INLINE_LAMBDA {
      AddWord<kRows>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + line * 64)), line,
                     x, x_stride, sums);
    });
  }
}

template <int kRows, PanelFormat kFormat>
MEGALITH_INLINE void SumFixedBlock(const std::byte* codes, const std::byte* x,
                                   std::int64_t x_stride, const std::int32_t* initial,
                                   std::int64_t initial_stride, Vec* sums) {
  __m256i low[kRows];
  __m256i high[kRows];
  for (int r = 0; r < kRows; ++r) low[r] = _mm256_set1_epi32(initial[r * initial_stride]);
  SumFixedHalf<kRows, kFormat>(codes, x, x_stride, low);
  for (int r = 0; r < kRows; ++r) high[r] = _mm256_set1_epi32(initial[r * initial_stride]);
  SumFixedHalf<kRows, kFormat>(codes + 32, x, x_stride, high);
  for (int r = 0; r < kRows; ++r) {
    sums[r] = {_mm256_cvtepi32_ps(low[r]), _mm256_cvtepi32_ps(high[r])};
  }
}

template <PanelFormat kFormat>
MEGALITH_INLINE Vec LoadScales(const std::byte* p) {
  if constexpr (kFormat == PanelFormat::kInt8) {
    return Load(reinterpret_cast<const Bf16*>(p));
  } else {
    const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i low = _mm256_cvtepu8_epi32(scales);
    const __m256i high = _mm256_cvtepu8_epi32(_mm_srli_si128(scales, 8));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(high, 23))};
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
