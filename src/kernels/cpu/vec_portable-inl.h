// 16 float lanes in plain C++: the vector type of the portable path, and the description of the
// interface that the other vec_*-inl.h implement. Included once per path, see kernels_portable.cc.

namespace megalith::kernels::MEGALITH_PATH {

struct Vec {
  float lane[kLanes];
};
struct Mask {
  bool lane[kLanes];
};

// How the shared kernels are shaped for the registers of this path.
inline constexpr int kMatmulRowsPerPass = 2;  ///< rows that share one reading of a weight block
inline constexpr int kKdaVectors = 4;         ///< state columns per pass, in vectors
inline constexpr int kKdaRows = 2;            ///< KDA chunks: rows per pass ...
inline constexpr int kKdaColumns = 2;         ///< ... and state columns, in vectors
inline constexpr int kMlaHeads = 2;           ///< heads that share a cached row
inline constexpr int kMlaPositions = 2;       ///< positions scored together
inline constexpr int kLatentVectors = 2;      ///< latent channels per pass, in vectors
inline constexpr int kDraftKeys = 2;          ///< draft attention: keys or channels per pass
inline constexpr int kMathVectors = 1;        ///< vectors that functions take at once
/// Whether there are Min and ScaleByPowerOf2, see vec_avx512-inl.h.
inline constexpr bool kScalesByPowerOf2 = false;

template <typename Function>
inline Vec ForEachLane(Function function) {
  Vec result;
  for (int j = 0; j < kLanes; ++j) result.lane[j] = function(j);
  return result;
}

inline Vec Zero() { return Vec{}; }
inline Vec Set1(float value) {
  return ForEachLane([=](int) { return value; });
}

/// 16 elements, any alignment.
inline Vec Load(const float* p) {
  Vec result;
  std::memcpy(result.lane, p, sizeof(result.lane));
  return result;
}
inline Vec Load(const Bf16* p) {
  return ForEachLane([=](int j) { return ToFloat(p[j]); });
}
/// The first n elements (0 <= n <= 16), then zeros; nothing beyond is read.
template <typename T>
inline Vec LoadN(const T* p, std::int64_t n) {
  return ForEachLane([=](int j) { return j < n ? Widen(p[j]) : 0.0f; });
}
inline void Store(Vec v, float* p) { std::memcpy(p, v.lane, sizeof(v.lane)); }
/// Rounds to nearest even.
inline void Store(Vec v, Bf16* p) {
  for (int j = 0; j < kLanes; ++j) p[j] = ToBf16(v.lane[j]);
}
/// The first n elements; nothing beyond is written.
template <typename T>
inline void StoreN(Vec v, T* p, std::int64_t n) {
  for (int j = 0; j < kLanes && j < n; ++j) p[j] = RoundTo<T>(v.lane[j]);
}
/// Rounded to bf16 and widened again.
inline Vec RoundBf16(Vec v) {
  return ForEachLane([&](int j) { return Rounded<Bf16>(v.lane[j]); });
}

inline Vec operator+(Vec a, Vec b) {
  return ForEachLane([&](int j) { return a.lane[j] + b.lane[j]; });
}
inline Vec operator-(Vec a, Vec b) {
  return ForEachLane([&](int j) { return a.lane[j] - b.lane[j]; });
}
inline Vec operator*(Vec a, Vec b) {
  return ForEachLane([&](int j) { return a.lane[j] * b.lane[j]; });
}
inline Vec operator/(Vec a, Vec b) {
  return ForEachLane([&](int j) { return a.lane[j] / b.lane[j]; });
}
/// a * b + c with one rounding, under the condition of kernels::FusedMultiplyAdd.
inline Vec FusedMultiplyAdd(Vec a, Vec b, Vec c) {
  return ForEachLane(
      [&](int j) { return kernels::FusedMultiplyAdd(a.lane[j], b.lane[j], c.lane[j]); });
}
/// a > b ? a : b, so b where either is NaN.
inline Vec Max(Vec a, Vec b) {
  return ForEachLane([&](int j) { return a.lane[j] > b.lane[j] ? a.lane[j] : b.lane[j]; });
}
inline Vec Abs(Vec v) {
  return ForEachLane([&](int j) { return std::fabs(v.lane[j]); });
}
inline Vec NegativeAbs(Vec v) {
  return ForEachLane([&](int j) { return -std::fabs(v.lane[j]); });
}
/// c - a * b, where a * b needs no rounding.
inline Vec SubtractExactProduct(Vec c, Vec a, Vec b) { return c - a * b; }
inline Vec CopySign(Vec magnitude, Vec sign) {
  return ForEachLane([&](int j) { return std::copysign(magnitude.lane[j], sign.lane[j]); });
}
/// bits(v) + (bits(shifted) << 23): v * 2^n if the low bits of `shifted` are n.
inline Vec AddToExponent(Vec v, Vec shifted) {
  return ForEachLane([&](int j) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v.lane[j]) +
                                (std::bit_cast<std::uint32_t>(shifted.lane[j]) << 23));
  });
}

/// False where either is NaN.
inline Mask Less(Vec a, Vec b) {
  Mask result;
  for (int j = 0; j < kLanes; ++j) result.lane[j] = a.lane[j] < b.lane[j];
  return result;
}
inline Mask IsNan(Vec v) {
  Mask result;
  for (int j = 0; j < kLanes; ++j) result.lane[j] = v.lane[j] != v.lane[j];
  return result;
}
/// mask ? a : b
inline Vec Select(Mask mask, Vec a, Vec b) {
  return ForEachLane([&](int j) { return mask.lane[j] ? a.lane[j] : b.lane[j]; });
}
/// The first n lanes of a, the others of b.
inline Vec SelectFirst(std::int64_t n, Vec a, Vec b) {
  return ForEachLane([&](int j) { return j < n ? a.lane[j] : b.lane[j]; });
}
/// The largest lane; any of them if one is NaN.
inline float MaxLanes(Vec v) {
  float largest = v.lane[0];
  for (int j = 1; j < kLanes; ++j) largest = v.lane[j] > largest ? v.lane[j] : largest;
  return largest;
}
/// Bit j: a[j] == b[j].
inline std::uint32_t EqualBits(Vec a, Vec b) {
  std::uint32_t bits = 0;
  for (int j = 0; j < kLanes; ++j) bits |= (a.lane[j] == b.lane[j] ? 1u : 0u) << j;
  return bits;
}
/// Fold of rule 2.
inline float SumLanes(Vec v) { return FoldLanes(v.lane); }
/// out[0 .. 3] = SumLanes of each.
inline void SumLanesOfFour(Vec a, Vec b, Vec c, Vec d, float* out) {
  out[0] = SumLanes(a);
  out[1] = SumLanes(b);
  out[2] = SumLanes(c);
  out[3] = SumLanes(d);
}

/// An input pair of 16 outputs.
struct PairWeights {
  Vec even;
  Vec odd;
};
/// 64 bytes of a bf16 panel: one pair.
struct Bf16Pair {
  static constexpr int kPairs = 1;
  static constexpr std::int64_t kBytes = 64;
  std::uint32_t words[kLanes];

  explicit Bf16Pair(const std::byte* p) { std::memcpy(words, p, sizeof(words)); }
  template <int kPair>
  PairWeights Pair() const {
    return {ForEachLane([&](int j) { return std::bit_cast<float>(words[j] << 16); }),
            ForEachLane([&](int j) { return std::bit_cast<float>(words[j] & 0xffff0000u); })};
  }
};
/// Requests a cache line into the L2.
inline void PrefetchLine(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace megalith::kernels::MEGALITH_PATH
