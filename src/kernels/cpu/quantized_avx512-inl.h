// Fixed-point products of quantised weights, by vpdpbusd where MEGALITH_PATH_VNNI is defined, else
// by vpmaddwd; interface in quantized_portable-inl.h.

namespace megalith::kernels::MEGALITH_PATH {

// A block of activations. VNNI: the upper limbs of the 32 values, then the lower ones, in order, as
// signed bytes. Else 16-bit pairs: of inputs 4 j .. 4 j + 3, first (0, 2), then (1, 3), the bytes
// that a mask and a shift of a word of 4 codes leave next to each other.

MEGALITH_INLINE FixedBlockInfo ConvertFixedBlock(const Bf16* x, std::byte* out) {
  __m512i bits = _mm512_loadu_si512(x);
  const __m512i magnitudes = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
  const __m256i largest16 = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes),
                                             _mm512_extracti64x4_epi64(magnitudes, 1));
  const __m128i largest8 =
      _mm_max_epu16(_mm256_castsi256_si128(largest16), _mm256_extracti128_si256(largest16, 1));
  // The only horizontal extreme of 16-bit elements is the smallest.
  const __m128i ones = _mm_set1_epi16(-1);
  const auto largest = static_cast<std::uint32_t>(
      ~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(largest8, ones))) & 0xffff);
  FixedBlockInfo info{};
  info.finite = largest < 0x7f80u;
  info.exponent = static_cast<std::int32_t>((largest + 1) >> 7);
  if (info.exponent < kFixedPointMinExponent) info.exponent = kFixedPointMinExponent;
  if (!info.finite) bits = _mm512_setzero_si512();
  const __m512 to_integer = _mm512_castsi512_ps(_mm512_set1_epi32((268 - info.exponent) << 23));
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i even = _mm512_cvtps_epi32(
      _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), to_integer));
  const __m512i odd = _mm512_cvtps_epi32(
      _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(bits, high)), to_integer));
  const __m512i values = _mm512_mask_mov_epi16(even, 0xaaaaaaaau, _mm512_slli_epi32(odd, 16));
#ifdef MEGALITH_PATH_VNNI
  const __m512i upper = _mm512_srai_epi16(_mm512_add_epi16(values, _mm512_set1_epi16(128)), 8);
  auto* target = reinterpret_cast<__m256i*>(out);
  _mm256_store_si256(target, _mm512_cvtepi16_epi8(upper));
  _mm256_store_si256(target + 1, _mm512_cvtepi16_epi8(values));
#else
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  _mm512_store_si512(out, _mm512_shuffle_epi8(values, order));
#endif
  info.sum = _mm512_reduce_add_epi32(_mm512_madd_epi16(values, _mm512_set1_epi16(1)));
  return info;
}

/// Codes of a block as words of 4 inputs: calls function(j, unsigned codes of inputs 4 j ..).
template <PanelFormat kFormat, typename Function>
MEGALITH_INLINE void ForEachWord(const std::byte* codes, Function function) {
  if constexpr (kFormat == PanelFormat::kMxfp4) {
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Offset)));
    const __m512i nibble = _mm512_set1_epi8(15);
    ForEachConstant<kBlockInputs / 8>([&](auto line) MEGALITH_INLINE_LAMBDA {
      const __m512i both = _mm512_loadu_si512(codes + line * 64);
      function(2 * line, _mm512_shuffle_epi8(table, _mm512_and_si512(both, nibble)));
      function(2 * line + 1,
               _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi32(both, 4), nibble)));
    });
  } else {
    ForEachConstant<kBlockInputs / 4>([&](auto line) MEGALITH_INLINE_LAMBDA {
      function(line, _mm512_loadu_si512(codes + line * 64));
    });
  }
}

template <int kRows, PanelFormat kFormat>
MEGALITH_INLINE void SumFixedBlock(const std::byte* codes, const std::byte* x,
                                   std::int64_t x_stride, const std::int32_t* initial,
                                   std::int64_t initial_stride, Vec* sums) {
#ifdef MEGALITH_PATH_VNNI
  __m512i upper[kRows];
  __m512i lower[kRows];
  for (int r = 0; r < kRows; ++r) {
    upper[r] = _mm512_setzero_si512();
    lower[r] = _mm512_set1_epi32(initial[r * initial_stride]);
  }
  ForEachWord<kFormat>(codes, [&](int j, __m512i word) MEGALITH_INLINE_LAMBDA {
    ForEachConstant<kRows>([&](auto r) MEGALITH_INLINE_LAMBDA {
      const auto* limbs = reinterpret_cast<const std::int32_t*>(x + r * x_stride);
      upper[r] = _mm512_dpbusd_epi32(upper[r], word, _mm512_set1_epi32(limbs[j]));
      lower[r] = _mm512_dpbusd_epi32(lower[r], word, _mm512_set1_epi32(limbs[8 + j]));
    });
  });
  for (int r = 0; r < kRows; ++r) {
    sums[r] = {_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(upper[r], 8), lower[r]))};
  }
#else
  __m512i sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_set1_epi32(initial[r * initial_stride]);
  ForEachWord<kFormat>(codes, [&](int j, __m512i word) MEGALITH_INLINE_LAMBDA {
    const __m512i even = _mm512_and_si512(word, _mm512_set1_epi16(0x00ff));
    const __m512i odd = _mm512_srli_epi16(word, 8);
    ForEachConstant<kRows>([&](auto r) MEGALITH_INLINE_LAMBDA {
      const auto* pairs = reinterpret_cast<const std::int32_t*>(x + r * x_stride) + 2 * j;
      sum[r] = _mm512_add_epi32(sum[r], _mm512_madd_epi16(even, _mm512_set1_epi32(pairs[0])));
      sum[r] = _mm512_add_epi32(sum[r], _mm512_madd_epi16(odd, _mm512_set1_epi32(pairs[1])));
    });
  });
  for (int r = 0; r < kRows; ++r) sums[r] = {_mm512_cvtepi32_ps(sum[r])};
#endif
}

template <PanelFormat kFormat>
MEGALITH_INLINE Vec LoadScales(const std::byte* p) {
  if constexpr (kFormat == PanelFormat::kInt8) {
    return Load(reinterpret_cast<const Bf16*>(p));
  } else {
    const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(scales), 23))};
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
