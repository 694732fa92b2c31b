// Fixed-point products of quantised weights; interface in quantized_portable-inl.h.

namespace megalith::kernels::MEGALITH_PATH {

using IntVec = __m512i;

MEGALITH_INLINE IntVec LoadInts(const std::byte* p) { return _mm512_loadu_si512(p); }
MEGALITH_INLINE IntVec Broadcast(std::int32_t value) { return _mm512_set1_epi32(value); }
MEGALITH_INLINE IntVec BroadcastTable(const std::uint8_t (&table)[16]) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
MEGALITH_INLINE IntVec Lookup(IntVec table, IntVec nibbles) {
  return _mm512_shuffle_epi8(table, nibbles);
}
MEGALITH_INLINE IntVec LowNibbles(IntVec v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
MEGALITH_INLINE IntVec HighNibbles(IntVec v) { return LowNibbles(_mm512_srli_epi32(v, 4)); }
MEGALITH_INLINE IntVec LowBytes(IntVec v) { return _mm512_and_si512(v, _mm512_set1_epi16(0x00ff)); }
MEGALITH_INLINE IntVec HighBytes(IntVec v) { return _mm512_srli_epi16(v, 8); }
MEGALITH_INLINE IntVec Add16(IntVec a, IntVec b) {
  IntVec sum = _mm512_add_epi16(a, b);
  asm("" : "+v"(sum));
  return sum;
}
/// The barrier keeps GCC from computing all products of a block first and spilling them.
MEGALITH_INLINE IntVec Add32(IntVec a, IntVec b) {
  IntVec sum = _mm512_add_epi32(a, b);
  asm("" : "+v"(sum));
  return sum;
}
/// Sums of two products: of unsigned by signed bytes, of signed 16-bit elements.
MEGALITH_INLINE IntVec MultiplyAdd8(IntVec a, IntVec b) { return _mm512_maddubs_epi16(a, b); }
MEGALITH_INLINE IntVec MultiplyAdd16(IntVec a, IntVec b) { return _mm512_madd_epi16(a, b); }

}  // namespace megalith::kernels::MEGALITH_PATH

#ifdef MEGALITH_PATH_VNNI
#include "kernels/cpu/quantized_vnni-inl.h"
#else
#include "kernels/cpu/quantized_madd-inl.h"
#endif

namespace megalith::kernels::MEGALITH_PATH {

template <FixedForm kForm>
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
  if constexpr (kForm == FixedForm::kLimbs) {
    const __m512i upper = _mm512_srai_epi16(_mm512_add_epi16(values, _mm512_set1_epi16(128)), 8);
    auto* target = reinterpret_cast<__m256i*>(out);
    _mm256_store_si256(target, _mm512_cvtepi16_epi8(upper));
    _mm256_store_si256(target + 1, _mm512_cvtepi16_epi8(values));
  } else {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    _mm512_store_si512(out, _mm512_shuffle_epi8(values, order));
  }
  info.sum = _mm512_reduce_add_epi32(_mm512_madd_epi16(values, _mm512_set1_epi16(1)));
  return info;
}

template <int kRows, PanelFormat kFormat>
MEGALITH_INLINE void SumFixedBlock(const std::byte* codes, const std::byte* x,
                                   std::int64_t x_stride, const std::int32_t* initial,
                                   std::int64_t initial_stride, Vec* sums) {
  __m512i sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_set1_epi32(initial[r * initial_stride]);
  AddFixedProducts<kRows, kFormat>(codes, x, x_stride, sum);
  for (int r = 0; r < kRows; ++r) sums[r] = {_mm512_cvtepi32_ps(sum[r])};
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
