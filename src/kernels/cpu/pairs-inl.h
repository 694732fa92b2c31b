// Pairs of elements, as the products of attention take them: two vectors of 32 elements are
// multiplied element by element and added up in 16 lanes, in lane j first the odd element of pair
// j, then the even one, each with one rounding (numerics.h, rule 6). vdpbf16ps does that by itself.

namespace megalith::kernels::MEGALITH_PATH {

inline constexpr std::int64_t kPairElements = 2 * kLanes;

/// a * b + c: fused for bf16, whose product is exact, rounded twice for floats.
template <typename Act>
MEGALITH_INLINE Vec AddProduct(Vec a, Vec b, Vec c) {
  if constexpr (std::is_same_v<Act, Bf16>) {
    return FusedMultiplyAdd(a, b, c);
  } else {
    return a * b + c;
  }
}

/// 32 elements of one vector.
template <typename Act>
struct Pairs {
  Vec even;
  Vec odd;
};

/// The same channels of two positions one after the other, to be weighted.
template <typename Act>
struct TwoRows {
  struct Weights {
    Vec even;
    Vec odd;
  };
  /// Probabilities i and i + 1, as kept.
  static MEGALITH_INLINE Weights LoadWeights(const float* probabilities, std::int64_t i) {
    return {Set1(probabilities[i]), Set1(probabilities[i + 1])};
  }
  /// n elements of each row.
  static MEGALITH_INLINE TwoRows Load(const Act* even, const Act* odd, std::int64_t n) {
    return {LoadUpTo(even, n), LoadUpTo(odd, n)};
  }
  MEGALITH_INLINE Vec AddTo(Vec sum, const Weights& weights) const {
    return AddProduct<Act>(weights.even, even_row, AddProduct<Act>(weights.odd, odd_row, sum));
  }
  Vec even_row;
  Vec odd_row;
};

/// The last of an odd number of positions: another of zeros belongs to it.
template <typename Act>
struct OneRow {
  using Weights = Vec;
  static MEGALITH_INLINE Weights LoadWeights(const float* probabilities, std::int64_t i) {
    return Set1(probabilities[i]);
  }
  static MEGALITH_INLINE OneRow Load(const Act* even, const Act*, std::int64_t n) {
    return {LoadUpTo(even, n)};
  }
  MEGALITH_INLINE Vec AddTo(Vec sum, Weights weight) const {
    return AddProduct<Act>(weight, row, sum + Zero());
  }
  Vec row;
};

/// Probabilities, rounded to Act, in the form that LoadWeights reads, in place.
template <typename Act>
inline void KeepProbabilities(float*, std::int64_t) {}

/// Elements 0 .. 31 from p on.
inline Pairs<float> LoadPairs(const float* p) {
  float even[kLanes], odd[kLanes];
  for (int j = 0; j < kLanes; ++j) {
    even[j] = p[2 * j];
    odd[j] = p[2 * j + 1];
  }
  return {Load(even), Load(odd)};
}

#ifdef MEGALITH_PATH_JOINED_PAIRS

template <>
struct Pairs<Bf16> {
  __m512i pairs;
};

MEGALITH_INLINE Pairs<Bf16> LoadPairs(const Bf16* p) { return {_mm512_loadu_si512(p)}; }
MEGALITH_INLINE Vec AddProducts(const Pairs<Bf16>& a, const Pairs<Bf16>& b, Vec sum) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)a.pairs, (__m512bh)b.pairs)};
}

/// Element k of the even row, element k of the odd one, for k = 0 .. 15.
MEGALITH_INLINE __m512i Interleave(__m256i even, __m256i odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1));
}
MEGALITH_INLINE __m256i LoadWordsUpTo(const Bf16* p, std::int64_t n) {
  return n == kLanes ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                     : _mm256_maskz_loadu_epi16(FirstLanes(n), p);
}
template <>
struct TwoRows<Bf16> {
  using Weights = __m512i;  // 16 times the same pair
  static MEGALITH_INLINE Weights LoadWeights(const float* probabilities, std::int64_t i) {
    std::int32_t pair;
    std::memcpy(&pair, reinterpret_cast<const Bf16*>(probabilities) + i, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  static MEGALITH_INLINE TwoRows Load(const Bf16* even, const Bf16* odd, std::int64_t n) {
    return {Interleave(LoadWordsUpTo(even, n), LoadWordsUpTo(odd, n))};
  }
  MEGALITH_INLINE Vec AddTo(Vec sum, Weights weights) const {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)rows, (__m512bh)weights)};
  }
  __m512i rows;
};

template <>
struct OneRow<Bf16> {
  using Weights = __m512i;
  static MEGALITH_INLINE Weights LoadWeights(const float* probabilities, std::int64_t i) {
    return _mm512_set1_epi32(reinterpret_cast<const Bf16*>(probabilities)[i].bits);
  }
  static MEGALITH_INLINE OneRow Load(const Bf16* even, const Bf16*, std::int64_t n) {
    return {_mm512_cvtepu16_epi32(LoadWordsUpTo(even, n))};
  }
  MEGALITH_INLINE Vec AddTo(Vec sum, Weights weight) const {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)row, (__m512bh)weight)};
  }
  __m512i row;
};

template <>
inline void KeepProbabilities<Bf16>(float* probabilities, std::int64_t count) {
  auto* const kept = reinterpret_cast<Bf16*>(probabilities);
  for (std::int64_t i = 0; i < count; i += kLanes) Store(Load(probabilities + i), kept + i);
}

#else

MEGALITH_INLINE Pairs<Bf16> LoadPairs(const Bf16* p) {
  const PairWeights pairs = Bf16Pair(reinterpret_cast<const std::byte*>(p)).template Pair<0>();
  return {pairs.even, pairs.odd};
}
MEGALITH_INLINE Vec AddProducts(const Pairs<Bf16>& a, const Pairs<Bf16>& b, Vec sum) {
  return FusedMultiplyAdd(a.even, b.even, FusedMultiplyAdd(a.odd, b.odd, sum));
}

#endif

MEGALITH_INLINE Vec AddProducts(const Pairs<float>& a, const Pairs<float>& b, Vec sum) {
  return a.even * b.even + (a.odd * b.odd + sum);
}

/// The first n of 32 elements, then zeros.
template <typename Act>
MEGALITH_INLINE Pairs<Act> LoadPairsUpTo(const Act* p, std::int64_t n) {
  if (n == kPairElements) return LoadPairs(p);
  Act elements[kPairElements] = {};
  std::memcpy(elements, p, static_cast<std::size_t>(n) * sizeof(Act));
  return LoadPairs(elements);
}

}  // namespace megalith::kernels::MEGALITH_PATH
