// Vector forms of the functions of numerics.h: the same operations in the same order.

namespace megalith::kernels::MEGALITH_PATH {

template <typename Act>
MEGALITH_INLINE Vec RoundToAct(Vec v) {
  if constexpr (std::is_same_v<Act, Bf16>) {
    return RoundBf16(v);
  } else {
    return v;
  }
}

template <int kCount>
MEGALITH_INLINE Vec PolynomialOf(const float (&c)[kCount], Vec x) {
  Vec sum = Set1(c[kCount - 1]);
  for (int i = kCount - 2; i >= 0; --i) sum = sum * x + Set1(c[i]);
  return sum;
}

MEGALITH_INLINE Vec ExpOf(Vec x) {
  using namespace constants;
  const Vec magic = Set1(kRoundToInteger);
  const Vec shifted = x * Set1(kLog2E) + magic;
  const Vec n = shifted - magic;
  const Vec r = (x - n * Set1(kLn2High)) - n * Set1(kLn2Low);
  const Vec y = Set1(1.0f) + (r + (r * r) * PolynomialOf(kExp, r));
  Vec result = AddToExponent(y, shifted);
  result = Select(Less(x, Set1(kExpMin)), Zero(), result);
  result = Select(Less(Set1(kExpMax), x), Set1(std::numeric_limits<float>::infinity()), result);
  return Select(IsNan(x), x, result);
}

MEGALITH_INLINE Vec SigmoidOf(Vec x) {
  const Vec one = Set1(1.0f);
  const Vec z = ExpOf(Zero() - Abs(x));
  return Select(Less(x, Zero()), z, one) / (one + z);
}

MEGALITH_INLINE Vec TanhOf(Vec x) {
  using namespace constants;
  const Vec one = Set1(1.0f);
  const Vec magnitude = Abs(x);
  const Vec square = x * x;
  const Vec small = magnitude + (magnitude * square) * PolynomialOf(kTanh, square);
  const Vec e = ExpOf(magnitude + magnitude);
  const Vec large = one - Set1(2.0f) / (e + one);
  return CopySign(Select(Less(magnitude, Set1(kTanhSmall)), small, large), x);
}

MEGALITH_INLINE Vec SoftplusOf(Vec x) {
  const Vec z = ExpOf(Zero() - Abs(x));
  const Vec twice_s = (z + z) / (Set1(2.0f) + z);
  const Vec s = twice_s * Set1(0.5f);
  const Vec square = s * s;
  const Vec log = twice_s + (s * square) * PolynomialOf(constants::kLog1p, square);
  return Select(Less(Zero(), x), x, Zero()) + log;
}

MEGALITH_INLINE Vec SiluOf(Vec x) { return x * SigmoidOf(x); }

MEGALITH_INLINE Vec SituOf(Vec gate, Vec up, float beta, float linear_beta) {
  const Vec capped_up =
      linear_beta > 0.0f ? Set1(linear_beta) * TanhOf(up / Set1(linear_beta)) : up;
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
