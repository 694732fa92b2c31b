// Fixed-point products of quantised weights; interface in quantized_portable-inl.h.

namespace megalith::kernels::MEGALITH_PATH {

using IntVec = __m256i;

MEGALITH_INLINE IntVec LoadInts(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
MEGALITH_INLINE IntVec Broadcast(std::int32_t value) { return _mm256_set1_epi32(value); }
MEGALITH_INLINE IntVec BroadcastTable(const std::uint8_t (&table)[16]) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
MEGALITH_INLINE IntVec Lookup(IntVec table, IntVec nibbles) {
  return _mm256_shuffle_epi8(table, nibbles);
}
MEGALITH_INLINE IntVec LowNibbles(IntVec v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
MEGALITH_INLINE IntVec HighNibbles(IntVec v) { return LowNibbles(_mm256_srli_epi32(v, 4)); }
MEGALITH_INLINE IntVec LowBytes(IntVec v) { return _mm256_and_si256(v, _mm256_set1_epi16(0x00ff)); }
MEGALITH_INLINE IntVec HighBytes(IntVec v) { return _mm256_srli_epi16(v, 8); }
MEGALITH_INLINE IntVec Add16(IntVec a, IntVec b) {
  IntVec sum = _mm256_add_epi16(a, b);
  asm("" : "+x"(sum));
  return sum;
}
/// The barrier keeps GCC from computing all products of a block first and spilling them.
MEGALITH_INLINE IntVec Add32(IntVec a, IntVec b) {
  IntVec sum = _mm256_add_epi32(a, b);
  asm("" : "+x"(sum));
  return sum;
}
/// Sums of two products: of unsigned by signed bytes, of signed 16-bit elements.
MEGALITH_INLINE IntVec MultiplyAdd8(IntVec a, IntVec b) { return _mm256_maddubs_epi16(a, b); }
MEGALITH_INLINE IntVec MultiplyAdd16(IntVec a, IntVec b) { return _mm256_madd_epi16(a, b); }

}  // namespace megalith::kernels::MEGALITH_PATH

#include "kernels/cpu/quantized_madd-inl.h"

namespace megalith::kernels::MEGALITH_PATH {

/// Integers of 16 bf16, in order.
MEGALITH_INLINE __m256i ToIntegers(__m256i bits, __m256 to_integer) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i even = _mm256_cvtps_epi32(
      _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)), to_integer));
  const __m256i odd = _mm256_cvtps_epi32(
      _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(bits, high)), to_integer));
  return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
}

/// 32 bytes of 32 16-bit elements in -128 .. 127.
MEGALITH_INLINE __m256i PackBytes(__m256i low, __m256i high) {
  // The pack works within 128-bit lanes: quarters come out as 0 2 1 3.
  return _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
}

template <FixedForm kForm>
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
  low = ToIntegers(low, to_integer);
  high = ToIntegers(high, to_integer);
  auto* target = reinterpret_cast<__m256i*>(out);
  if constexpr (kForm == FixedForm::kLimbs) {
    const __m256i half = _mm256_set1_epi16(128);
    const __m256i low_upper = _mm256_srai_epi16(_mm256_add_epi16(low, half), 8);
    const __m256i high_upper = _mm256_srai_epi16(_mm256_add_epi16(high, half), 8);
    _mm256_store_si256(target, PackBytes(low_upper, high_upper));
    _mm256_store_si256(target + 1, PackBytes(_mm256_srai_epi16(_mm256_slli_epi16(low, 8), 8),
                                             _mm256_srai_epi16(_mm256_slli_epi16(high, 8), 8)));
  } else {
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    _mm256_store_si256(target, _mm256_shuffle_epi8(low, order));
    _mm256_store_si256(target + 1, _mm256_shuffle_epi8(high, order));
  }
  const __m256i unit = _mm256_set1_epi16(1);
  const __m256i eight =
      _mm256_add_epi32(_mm256_madd_epi16(low, unit), _mm256_madd_epi16(high, unit));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  info.sum = _mm_cvtsi128_si32(four);
  return info;
}

template <int kRows, PanelFormat kFormat>
MEGALITH_INLINE void SumFixedBlock(const std::byte* codes, const std::byte* x,
                                   std::int64_t x_stride, const std::int32_t* initial,
                                   std::int64_t initial_stride, Vec* sums) {
  // Here and below: or GCC keeps, and spills, the broadcast values for the other half or panel.
  asm("" : "+r"(x));
  __m256i low[kRows];
  __m256i high[kRows];
  for (int r = 0; r < kRows; ++r) low[r] = _mm256_set1_epi32(initial[r * initial_stride]);
  AddFixedProducts<kRows, kFormat>(codes, x, x_stride, low);
  asm("" : "+r"(x));
  for (int r = 0; r < kRows; ++r) high[r] = _mm256_set1_epi32(initial[r * initial_stride]);
  AddFixedProducts<kRows, kFormat>(codes + 32, x, x_stride, high);
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
