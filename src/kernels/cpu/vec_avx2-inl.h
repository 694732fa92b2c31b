// 16 float lanes in two AVX2 registers; interface in vec_portable-inl.h. Needs AVX2 and FMA.

namespace megalith::kernels::MEGALITH_PATH {

struct Vec {
  __m256 low;
  __m256 high;
};
struct Mask {
  __m256 low;
  __m256 high;
};

// 2 rows: 8 registers of chains and 4 of weights of 16.
inline constexpr int kMatmulRowsPerPass = 2;
inline constexpr int kKdaVectors = 2;
inline constexpr int kKdaRows = 2;        ///< KDA chunks: rows per pass ...
inline constexpr int kKdaColumns = 2;     ///< ... and state columns, in vectors
inline constexpr int kMlaHeads = 2;       ///< heads that share a cached row
inline constexpr int kMlaPositions = 2;   ///< positions scored together
inline constexpr int kLatentVectors = 2;  ///< latent channels per pass, in vectors
inline constexpr int kDraftKeys = 4;      ///< draft attention: keys or channels per pass
inline constexpr int kMathVectors = 2;    ///< vectors that functions take at once
inline constexpr bool kScalesByPowerOf2 = false;

/// 8 bf16 as floats.
MEGALITH_INLINE __m256 WidenBits(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
/// Round to nearest even as ToBf16 does, the result in the high halves, low halves arbitrary.
MEGALITH_INLINE __m256i RoundToHighHalf(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

MEGALITH_INLINE Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
MEGALITH_INLINE Vec Set1(float value) {
  const __m256 v = _mm256_set1_ps(value);
  return {v, v};
}
MEGALITH_INLINE Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
MEGALITH_INLINE Vec Load(const Bf16* p) {
  const auto* source = reinterpret_cast<const __m128i*>(p);
  return {WidenBits(_mm_loadu_si128(source)), WidenBits(_mm_loadu_si128(source + 1))};
}
template <typename T>
MEGALITH_INLINE Vec LoadN(const T* p, std::int64_t n) {
  T elements[kLanes] = {};
  std::memcpy(elements, p, static_cast<std::size_t>(n) * sizeof(T));
  return Load(elements);
}
MEGALITH_INLINE void Store(Vec v, float* p) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
MEGALITH_INLINE void Store(Vec v, Bf16* p) {
  const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(RoundToHighHalf(v.low), 16),
                                             _mm256_srli_epi32(RoundToHighHalf(v.high), 16));
  // The pack works within 128-bit lanes: quarters come out as 0 2 1 3.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
template <typename T>
MEGALITH_INLINE void StoreN(Vec v, T* p, std::int64_t n) {
  T elements[kLanes];
  Store(v, elements);
  std::memcpy(p, elements, static_cast<std::size_t>(n) * sizeof(T));
}
MEGALITH_INLINE Vec RoundBf16(Vec v) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(RoundToHighHalf(v.low), high)),
          _mm256_castsi256_ps(_mm256_and_si256(RoundToHighHalf(v.high), high))};
}

MEGALITH_INLINE Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
MEGALITH_INLINE Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
MEGALITH_INLINE Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
MEGALITH_INLINE Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
MEGALITH_INLINE Vec FusedMultiplyAdd(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
MEGALITH_INLINE Vec Max(Vec a, Vec b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
MEGALITH_INLINE Vec Abs(Vec v) {
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign_bit, v.low), _mm256_andnot_ps(sign_bit, v.high)};
}
MEGALITH_INLINE Vec NegativeAbs(Vec v) {
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(sign_bit, v.low), _mm256_or_ps(sign_bit, v.high)};
}
MEGALITH_INLINE Vec SubtractExactProduct(Vec c, Vec a, Vec b) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
MEGALITH_INLINE Vec CopySign(Vec magnitude, Vec sign) {
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  const Vec m = Abs(magnitude);
  return {_mm256_or_ps(m.low, _mm256_and_ps(sign_bit, sign.low)),
          _mm256_or_ps(m.high, _mm256_and_ps(sign_bit, sign.high))};
}
MEGALITH_INLINE __m256 AddToExponentHalf(__m256 v, __m256 shifted) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v),
                                              _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}
MEGALITH_INLINE Vec AddToExponent(Vec v, Vec shifted) {
  return {AddToExponentHalf(v.low, shifted.low), AddToExponentHalf(v.high, shifted.high)};
}

MEGALITH_INLINE Mask Less(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
}
MEGALITH_INLINE Mask IsNan(Vec v) {
  return {_mm256_cmp_ps(v.low, v.low, _CMP_UNORD_Q), _mm256_cmp_ps(v.high, v.high, _CMP_UNORD_Q)};
}
MEGALITH_INLINE Vec Select(Mask mask, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.low, a.low, mask.low), _mm256_blendv_ps(b.high, a.high, mask.high)};
}
MEGALITH_INLINE Vec SelectFirst(std::int64_t n, Vec a, Vec b) {
  const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
  const __m256i low = _mm256_cmpgt_epi32(count, _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  const __m256i high = _mm256_cmpgt_epi32(count, _mm256_set_epi32(15, 14, 13, 12, 11, 10, 9, 8));
  return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(low)),
          _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(high))};
}
MEGALITH_INLINE float MaxLanes(Vec v) {
  const __m256 eight = _mm256_max_ps(v.low, v.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
MEGALITH_INLINE std::uint32_t EqualBits(Vec a, Vec b) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ));
  return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 8;
}
MEGALITH_INLINE float SumLanes(Vec v) {
  const __m256 eight = _mm256_add_ps(v.low, v.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
MEGALITH_INLINE void SumLanesOfFour(Vec a, Vec b, Vec c, Vec d, float* out) {
  const auto fold_4 = [](Vec x, Vec y) MEGALITH_INLINE_LAMBDA {
    const __m256 x_eight = _mm256_add_ps(x.low, x.high);
    const __m256 y_eight = _mm256_add_ps(y.low, y.high);
    return _mm256_add_ps(_mm256_permute2f128_ps(x_eight, y_eight, 0x20),
                         _mm256_permute2f128_ps(x_eight, y_eight, 0x31));
  };
  const __m256 ab = fold_4(a, b);
  const __m256 cd = fold_4(c, d);
  // Lanes of a, a, c, c in the lower half, b, b, d, d in the upper one.
  const __m256 two =
      _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  const __m256 one = _mm256_add_ps(two, _mm256_shuffle_ps(two, two, 0xb1));
  _mm_storeu_ps(
      out, _mm_unpacklo_ps(
               _mm_shuffle_ps(_mm256_castps256_ps128(one), _mm256_castps256_ps128(one), 0x08),
               _mm_shuffle_ps(_mm256_extractf128_ps(one, 1), _mm256_extractf128_ps(one, 1), 0x08)));
}

struct PairWeights {
  Vec even;
  Vec odd;
};
struct Bf16Pair {
  static constexpr int kPairs = 1;
  static constexpr std::int64_t kBytes = 64;
  __m256i low;
  __m256i high;

  explicit Bf16Pair(const std::byte* p)
      : low(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
        high(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + 1)) {}
  template <int kPair>
  PairWeights Pair() const {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
             _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))},
            {_mm256_castsi256_ps(_mm256_and_si256(low, mask)),
             _mm256_castsi256_ps(_mm256_and_si256(high, mask))}};
  }
};
MEGALITH_INLINE void PrefetchLine(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace megalith::kernels::MEGALITH_PATH
