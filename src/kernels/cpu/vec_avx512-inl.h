// 16 float lanes in one AVX-512 register; interface in vec_portable-inl.h. Needs F, BW, DQ, VL.

namespace megalith::kernels::MEGALITH_PATH {

struct Vec {
  __m512 v;
};
struct Mask {
  __mmask16 bits;
};

// 8 rows: 16 chains, 8 sums and 2 weights of 32 registers.
inline constexpr int kMatmulRowsPerPass = 8;
inline constexpr int kKdaVectors = 4;
inline constexpr int kKdaRows = 4;        ///< KDA chunks: rows per pass ...
inline constexpr int kKdaColumns = 4;     ///< ... and state columns, in vectors
inline constexpr int kMlaHeads = 4;       ///< heads that share a cached row
inline constexpr int kMlaPositions = 4;   ///< positions scored together
inline constexpr int kLatentVectors = 4;  ///< latent channels per pass, in vectors
inline constexpr int kDraftKeys = 8;      ///< draft attention: keys or channels per pass
// A vector's exponential is a chain of 70 cycles for 25 instructions: one vector after the other
// takes twice the time of four at once.
inline constexpr int kMathVectors = 4;           ///< vectors that functions take at once
inline constexpr bool kScalesByPowerOf2 = true;  ///< has ScaleByPowerOf2

MEGALITH_INLINE __mmask16 FirstLanes(std::int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
/// One shuffle of words: extension and shift would be two instructions of the same units.
MEGALITH_INLINE __m512 WidenBits(__m256i bits) {
  const __m512i to_high_halves =
      _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 16);
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xaaaaaaaau, to_high_halves, _mm512_castsi256_si512(bits)));
}
/// Round to nearest even as ToBf16 does, the result in the high halves, low halves arbitrary.
MEGALITH_INLINE __m512i RoundToHighHalf(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
}
MEGALITH_INLINE __m256i RoundToBits(__m512 v) {
#ifdef MEGALITH_PATH_JOINED_PAIRS  // AVX512_BF16: the same bits, denormals flushed
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(RoundToHighHalf(v), 16));
#endif
}

MEGALITH_INLINE Vec Zero() { return {_mm512_setzero_ps()}; }
MEGALITH_INLINE Vec Set1(float value) { return {_mm512_set1_ps(value)}; }
MEGALITH_INLINE Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
MEGALITH_INLINE Vec Load(const Bf16* p) {
  return {WidenBits(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
MEGALITH_INLINE Vec LoadN(const float* p, std::int64_t n) {
  return {_mm512_maskz_loadu_ps(FirstLanes(n), p)};
}
MEGALITH_INLINE Vec LoadN(const Bf16* p, std::int64_t n) {
  return {WidenBits(_mm256_maskz_loadu_epi16(FirstLanes(n), p))};
}
MEGALITH_INLINE void Store(Vec v, float* p) { _mm512_storeu_ps(p, v.v); }
MEGALITH_INLINE void Store(Vec v, Bf16* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), RoundToBits(v.v));
}
MEGALITH_INLINE void StoreN(Vec v, float* p, std::int64_t n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), v.v);
}
MEGALITH_INLINE void StoreN(Vec v, Bf16* p, std::int64_t n) {
  _mm256_mask_storeu_epi16(p, FirstLanes(n), RoundToBits(v.v));
}
MEGALITH_INLINE Vec RoundBf16(Vec v) {
#ifdef MEGALITH_PATH_JOINED_PAIRS
  return {WidenBits(RoundToBits(v.v))};
#else
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(RoundToHighHalf(v.v), high))};
#endif
}

MEGALITH_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
MEGALITH_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
MEGALITH_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
MEGALITH_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
MEGALITH_INLINE Vec FusedMultiplyAdd(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
MEGALITH_INLINE Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
MEGALITH_INLINE Vec Abs(Vec v) { return {_mm512_abs_ps(v.v)}; }
MEGALITH_INLINE Vec NegativeAbs(Vec v) { return {_mm512_or_ps(_mm512_set1_ps(-0.0f), v.v)}; }
MEGALITH_INLINE Vec SubtractExactProduct(Vec c, Vec a, Vec b) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
MEGALITH_INLINE Vec CopySign(Vec magnitude, Vec sign) {
  const __m512 sign_bit = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(sign_bit, magnitude.v), _mm512_and_ps(sign_bit, sign.v))};
}
MEGALITH_INLINE Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
/// v * 2^n for integers n; NaN if v is.
MEGALITH_INLINE Vec ScaleByPowerOf2(Vec v, Vec n) { return {_mm512_scalef_ps(v.v, n.v)}; }
MEGALITH_INLINE Vec AddToExponent(Vec v, Vec shifted) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(
      _mm512_castps_si512(v.v), _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23)))};
}

MEGALITH_INLINE Mask Less(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
MEGALITH_INLINE Mask IsNan(Vec v) { return {_mm512_cmp_ps_mask(v.v, v.v, _CMP_UNORD_Q)}; }
MEGALITH_INLINE Vec Select(Mask mask, Vec a, Vec b) {
  return {_mm512_mask_mov_ps(b.v, mask.bits, a.v)};
}
MEGALITH_INLINE Vec SelectFirst(std::int64_t n, Vec a, Vec b) {
  return {_mm512_mask_mov_ps(b.v, FirstLanes(n), a.v)};
}
MEGALITH_INLINE float MaxLanes(Vec v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
MEGALITH_INLINE std::uint32_t EqualBits(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}
MEGALITH_INLINE float SumLanes(Vec v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
MEGALITH_INLINE void SumLanesOfFour(Vec a, Vec b, Vec c, Vec d, float* out) {
  // The lower quarters of both, then the upper ones: 8 apart is 2 quarters apart.
  const auto fold_8 = [](__m512 x, __m512 y) MEGALITH_INLINE_LAMBDA {
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  };
  const __m512 ab = fold_8(a.v, b.v);
  const __m512 cd = fold_8(c.v, d.v);
  const __m512 four =
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  // The first lane of every quarter.
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
}

struct PairWeights {
  Vec even;
  Vec odd;
};
struct Bf16Pair {
  static constexpr int kPairs = 1;
  static constexpr std::int64_t kBytes = 64;
  __m512i pairs;

  explicit Bf16Pair(const std::byte* p) {
    // Keeps GCC from loading once for each half: the loads, not the additions, would be the limit.
    __m512i loaded = _mm512_loadu_si512(p);
    asm("" : "+v"(loaded));
    pairs = loaded;
  }
  template <int kPair>
  PairWeights Pair() const {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
            {_mm512_castsi512_ps(_mm512_and_si512(pairs, high))}};
  }
};
MEGALITH_INLINE void PrefetchLine(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace megalith::kernels::MEGALITH_PATH
