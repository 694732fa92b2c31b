// Vector forms of the functions of numerics.h: the same operations in the same order.

namespace megalith::kernels::MEGALITH_PATH {

/// Calls function(std::integral_constant<int, 0>), ... up to kCount - 1: shift counts must be
/// constants, and arrays indexed by constants stay in registers whatever the compiler thinks of
/// unrolling a loop.
template <int kCount, int kIndex = 0, typename Function>
MEGALITH_INLINE void ForEachConstant(Function function) {
  if constexpr (kIndex < kCount) {
    function(std::integral_constant<int, kIndex>());
    ForEachConstant<kCount, kIndex + 1>(function);
  }
}

/// Vectors that are computed on together, operation by operation: a function is a long chain of
/// operations that wait for each other, and the processor looks too few instructions ahead to
/// overlap one chain with the next. Functions below that take a `V` take a Vec or these.
template <int kCount>
struct Vecs {
  Vec v[kCount];
};
template <int kCount>
struct Masks {
  Mask m[kCount];
};

/// Vectors in a V, 0 if it is a single one.
template <typename T>
inline constexpr int kVecsOf = 0;
template <int kCount>
inline constexpr int kVecsOf<Vecs<kCount>> = kCount;
template <typename... T>
inline constexpr int kMostVecsOf = 0;
template <typename First, typename... Rest>
inline constexpr int kMostVecsOf<First, Rest...> =
    kVecsOf<First> > 0 ? kVecsOf<First> : kMostVecsOf<Rest...>;
template <typename... T>
concept AnyVecs = (kMostVecsOf<T...> > 0);

MEGALITH_INLINE const Vec& At(const Vec& x, int) { return x; }
template <int kCount>
MEGALITH_INLINE const Vec& At(const Vecs<kCount>& x, int i) {
  return x.v[i];
}

/// function(0), ...: what they return, side by side.
template <int kCount, typename Function>
MEGALITH_INLINE auto EachVec(Function function) {
  if constexpr (std::is_same_v<decltype(function(0)), Mask>) {
    Masks<kCount> result;
    ForEachConstant<kCount>([&](auto i) MEGALITH_INLINE_LAMBDA { result.m[i] = function(i); });
    return result;
  } else {
    Vecs<kCount> result;
    ForEachConstant<kCount>([&](auto i) MEGALITH_INLINE_LAMBDA { result.v[i] = function(i); });
    return result;
  }
}

/// The operations of a Vec, an operand that is a single vector standing for every one.
#define MEGALITH_EACH_VEC(expression) \
  return EachVec<kMostVecsOf<A, B>>([&](int i) MEGALITH_INLINE_LAMBDA { return expression; })
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto operator+(const A& a, const B& b) {
  MEGALITH_EACH_VEC(At(a, i) + At(b, i));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto operator-(const A& a, const B& b) {
  MEGALITH_EACH_VEC(At(a, i) - At(b, i));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto operator*(const A& a, const B& b) {
  MEGALITH_EACH_VEC(At(a, i) * At(b, i));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto operator/(const A& a, const B& b) {
  MEGALITH_EACH_VEC(At(a, i) / At(b, i));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto Max(const A& a, const B& b) {
  MEGALITH_EACH_VEC(Max(At(a, i), At(b, i)));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto Min(const A& a, const B& b) {
  MEGALITH_EACH_VEC(Min(At(a, i), At(b, i)));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto Less(const A& a, const B& b) {
  MEGALITH_EACH_VEC(Less(At(a, i), At(b, i)));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto CopySign(const A& a, const B& b) {
  MEGALITH_EACH_VEC(CopySign(At(a, i), At(b, i)));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto AddToExponent(const A& a, const B& b) {
  MEGALITH_EACH_VEC(AddToExponent(At(a, i), At(b, i)));
}
template <typename A, typename B>
requires AnyVecs<A, B> MEGALITH_INLINE auto ScaleByPowerOf2(const A& a, const B& b) {
  MEGALITH_EACH_VEC(ScaleByPowerOf2(At(a, i), At(b, i)));
}
#undef MEGALITH_EACH_VEC
template <int kCount>
MEGALITH_INLINE auto Abs(const Vecs<kCount>& a) {
  return EachVec<kCount>([&](int i) MEGALITH_INLINE_LAMBDA { return Abs(a.v[i]); });
}
template <int kCount>
MEGALITH_INLINE auto NegativeAbs(const Vecs<kCount>& a) {
  return EachVec<kCount>([&](int i) MEGALITH_INLINE_LAMBDA { return NegativeAbs(a.v[i]); });
}
template <int kCount>
MEGALITH_INLINE auto SubtractExactProduct(const Vecs<kCount>& c, const Vecs<kCount>& a, Vec b) {
  return EachVec<kCount>(
      [&](int i) MEGALITH_INLINE_LAMBDA { return SubtractExactProduct(c.v[i], a.v[i], b); });
}
template <int kCount>
MEGALITH_INLINE auto IsNan(const Vecs<kCount>& a) {
  return EachVec<kCount>([&](int i) MEGALITH_INLINE_LAMBDA { return IsNan(a.v[i]); });
}
template <int kCount>
MEGALITH_INLINE auto RoundBf16(const Vecs<kCount>& a) {
  return EachVec<kCount>([&](int i) MEGALITH_INLINE_LAMBDA { return RoundBf16(a.v[i]); });
}
template <int kCount, typename A, typename B>
MEGALITH_INLINE auto Select(const Masks<kCount>& mask, const A& a, const B& b) {
  return EachVec<kCount>(
      [&](int i) MEGALITH_INLINE_LAMBDA { return Select(mask.m[i], At(a, i), At(b, i)); });
}

template <typename Act, typename V>
MEGALITH_INLINE V RoundToAct(V v) {
  if constexpr (std::is_same_v<Act, Bf16>) {
    return RoundBf16(v);
  } else {
    return v;
  }
}

template <int kCount, typename V>
MEGALITH_INLINE V PolynomialOf(const float (&c)[kCount], V x) {
  V sum = x * Set1(c[kCount - 1]) + Set1(c[kCount - 2]);
  for (int i = kCount - 3; i >= 0; --i) sum = sum * x + Set1(c[i]);
  return sum;
}

/// kIsNegative: x is not above zero.
template <bool kIsNegative = false, typename V>
MEGALITH_INLINE V ExpOf(V x) {
  using namespace constants;
  if constexpr (kScalesByPowerOf2) {
    // Far enough for the scale to overflow or, denormals being flushed, to give zero. A NaN stays.
    x = Max(Set1(kExpMin - 18.0f), x);
    if constexpr (!kIsNegative) x = Min(Set1(kExpMax + 1.0f), x);
  }
  const Vec magic = Set1(kRoundToInteger);
  const V shifted = x * Set1(kLog2E) + magic;
  const V n = shifted - magic;
  const V r = SubtractExactProduct(x, n, Set1(kLn2High)) - n * Set1(kLn2Low);
  const V y = Set1(1.0f) + (r + (r * r) * PolynomialOf(kExp, r));
  if constexpr (kScalesByPowerOf2) {
    return ScaleByPowerOf2(y, n);
  } else {
    V result = AddToExponent(y, shifted);
    result = Select(Less(x, Set1(kExpMin)), Zero(), result);
    if constexpr (!kIsNegative) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      result = Select(Less(Set1(kExpMax), x), Set1(kInfinity), result);
    }
    return Select(IsNan(x), x, result);
  }
}

template <typename V>
MEGALITH_INLINE V SigmoidOf(V x) {
  const Vec one = Set1(1.0f);
  const V z = ExpOf<true>(NegativeAbs(x));
  return Select(Less(x, Zero()), z, one) / (one + z);
}

template <typename V>
MEGALITH_INLINE V TanhOf(V x) {
  using namespace constants;
  const Vec one = Set1(1.0f);
  const V magnitude = Abs(x);
  const V square = x * x;
  const V small = magnitude + (magnitude * square) * PolynomialOf(kTanh, square);
  const V e = ExpOf(magnitude + magnitude);
  const V large = one - Set1(2.0f) / (e + one);
  return CopySign(Select(Less(magnitude, Set1(kTanhSmall)), small, large), x);
}

template <typename V>
MEGALITH_INLINE V SoftplusOf(V x) {
  const V z = ExpOf<true>(NegativeAbs(x));
  const V twice_s = (z + z) / (Set1(2.0f) + z);
  const V s = twice_s * Set1(0.5f);
  const V square = s * s;
  const V log = twice_s + (s * square) * PolynomialOf(constants::kLog1p, square);
  return Select(Less(Zero(), x), x, Zero()) + log;
}

template <typename V>
MEGALITH_INLINE V SiluOf(V x) {
  return x * SigmoidOf(x);
}

template <typename V>
MEGALITH_INLINE V SituOf(V gate, V up, float beta, float linear_beta) {
  const V capped_up = linear_beta > 0.0f ? Set1(linear_beta) * TanhOf(up / Set1(linear_beta)) : up;
  return ((Set1(beta) * TanhOf(gate / Set1(beta))) * SigmoidOf(gate)) * capped_up;
}

/// Calls function(offset, n) for every vector of `count` elements; n < 16 only for the last.
template <typename Function>
MEGALITH_INLINE void ForEachVector(std::int64_t count, Function function) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) function(i, std::int64_t{kLanes});
  if (i < count) function(i, count - i);
}

/// LoadN that is Load for a full vector.
template <typename T>
MEGALITH_INLINE Vec LoadUpTo(const T* p, std::int64_t n) {
  return n == kLanes ? Load(p) : LoadN(p, n);
}
template <typename T>
MEGALITH_INLINE void StoreUpTo(Vec v, T* p, std::int64_t n) {
  if (n == kLanes) {
    Store(v, p);
  } else {
    StoreN(v, p, n);
  }
}

/// What ForEachBlock hands out: so many full vectors, or one of which n elements exist.
template <int kCount>
struct FullVectors {};
struct OneVector {
  std::int64_t n;
};
template <int kCount, typename T>
MEGALITH_INLINE Vecs<kCount> LoadBlock(const T* p, FullVectors<kCount>) {
  return EachVec<kCount>([&](int i) MEGALITH_INLINE_LAMBDA { return Load(p + i * kLanes); });
}
template <typename T>
MEGALITH_INLINE Vec LoadBlock(const T* p, OneVector part) {
  return LoadUpTo(p, part.n);
}
template <int kCount, typename T>
MEGALITH_INLINE void StoreBlock(const Vecs<kCount>& v, T* p, FullVectors<kCount>) {
  ForEachConstant<kCount>([&](auto i) MEGALITH_INLINE_LAMBDA { Store(v.v[i], p + i * kLanes); });
}
template <typename T>
MEGALITH_INLINE void StoreBlock(Vec v, T* p, OneVector part) {
  StoreUpTo(v, p, part.n);
}
/// The same without regard to how many elements exist.
MEGALITH_INLINE void StoreWhole(Vec v, float* p) { Store(v, p); }
template <int kCount>
MEGALITH_INLINE void StoreWhole(const Vecs<kCount>& v, float* p) {
  StoreBlock(v, p, FullVectors<kCount>());
}
template <int kCount>
MEGALITH_INLINE Vecs<kCount> ZeroBlock(FullVectors<kCount>) {
  return EachVec<kCount>([](int) MEGALITH_INLINE_LAMBDA { return Zero(); });
}
MEGALITH_INLINE Vec ZeroBlock(OneVector) { return Zero(); }
/// Adds the vectors to the sum, one after the other.
MEGALITH_INLINE void AddInOrder(Vec& sum, Vec v) { sum = sum + v; }
template <int kCount>
MEGALITH_INLINE void AddInOrder(Vec& sum, const Vecs<kCount>& v) {
  ForEachConstant<kCount>([&](auto i) MEGALITH_INLINE_LAMBDA { sum = sum + v.v[i]; });
}

/// ForEachVector by kMathVectors vectors while there are as many: function(offset, FullVectors or
/// OneVector).
template <typename Function>
MEGALITH_INLINE void ForEachBlock(std::int64_t count, Function function) {
  std::int64_t i = 0;
  if constexpr (kMathVectors > 1) {
    constexpr std::int64_t kElements = kMathVectors * kLanes;
    for (; i + kElements <= count; i += kElements) function(i, FullVectors<kMathVectors>());
  }
  for (; i + kLanes <= count; i += kLanes) function(i, OneVector{kLanes});
  if (i < count) function(i, OneVector{count - i});
}

/// out[i] = SumLanes(v[i]). Four folds share their shuffles: a third of the instructions.
template <int kCount>
MEGALITH_INLINE void SumLanesOf(const Vec (&v)[kCount], float (&out)[kCount]) {
  ForEachConstant<kCount / 4>([&](auto i) MEGALITH_INLINE_LAMBDA {
    SumLanesOfFour(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3], out + 4 * i);
  });
  ForEachConstant<kCount % 4>(
      [&](auto i) MEGALITH_INLINE_LAMBDA { out[kCount - 1 - i] = SumLanes(v[kCount - 1 - i]); });
}

}  // namespace megalith::kernels::MEGALITH_PATH
