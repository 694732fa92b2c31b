#pragma once

// The numeric contract: how every value in Megalith is computed, whatever the instruction set, the
// number of workers or the number of rows. The scalar functions here *are* the definition; every
// vector kernel gives the same bits (tests compare with ==; any NaN equals any NaN).
// docs/design/numerics.md gives the reasons.
//
// 1. Dot products (matmul) run over blocks of 32 inputs; inputs and weights beyond the end are +0.
//    kSplitPairs: inside a block the even and the odd inputs are two chains of fused multiply-adds
//    that start at +0; then acc = acc + (even + odd). This is the order of an AMX bf16 tile.
//    kJoinedPairs: one chain per block, odd input before even input of each pair, then
//    acc = acc + chain: the order of vdpbf16ps.
//    bf16 x bf16 products are exact in float, so fusing saves no rounding: it only keeps products
//    outside float's range. With float inputs products are rounded first: multiply, then add (never
//    fused), in kSplitPairs order.
//    Quantised weights (MXFP4, int8: a block is one scale group) times bf16 activations are exact
//    integers (kFixedPoint): ToFixedPoint turns the block of activations into 16-bit integers with
//    one power of two, the weights are integers by themselves (twice the E2M1 value; the int8
//    code), their dot product fits in 32 bits in any order of additions, and
//    acc = acc + (float(sum) * x_scale) * w_scale, with one rounding each for the conversion, the
//    two products and the sum. x_scale holds the half of E2M1.
//    kExpanded is the definition where the multiply instructions take bf16 only (AMX tiles): the
//    weights are round(value * w_scale), bf16, and the chains above run on them. Scaling an E2M1
//    value is exact; an int8 weight loses as much as it did when it was quantised.
//    kFloatChains is the third definition: the chains above run on the unscaled weights (E2M1
//    values; int8 codes), then acc = acc + sum * w_scale, multiply then add. It holds for float
//    activations, which have no fixed-point form.
// 2. Sums over a vector (norms, softmax) use 16 lanes: lane j adds elements j, j + 16, ... in
//    order; then lanes fold 8, 4, 2, 1 apart. Elements beyond the end count as +0. Not so in the
//    attention of a drafter's block, where lanes are queries: its sums are chains (rule 3).
// 3. Everything else is element-wise or a chain in index order from +0, with separate multiply and
//    add.
//    MLA attention multiplies in pairs instead (MlaAttentionArgs): rule 6.
// 4. exp, tanh, sigmoid, softplus are the functions below. sqrt and division are IEEE.
// 5. Denormals: workers run with flush-to-zero and denormals-are-zero (as AMX and AVX-512 BF16 do);
//    see flush_denormals.h.
// 6. MLA attention rounds latent queries and the exponentials of a part to the activation type, so
//    with bf16 activations all its products are exact. Scores: 16 lanes, in blocks of 32 elements,
//    lane j adds the product of element 2 j + 1, then that of element 2 j; elements beyond the end
//    count as +0, the extra key begins a block of its own, lanes fold as in rule 2. Weighted
//    latents: a chain from +0 over the positions of a part two by two, the odd one first; a
//    missing last one counts as +0. Each addition is fused (with float activations products are
//    rounded first). The total of a part is the sum (rule 2) of the rounded exponentials.

#include <bit>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>

#include "base/align.h"
#include "base/bf16.h"

namespace megalith::kernels {

inline constexpr int kLanes = 16;
inline constexpr int kBlockInputs = 32;   ///< inputs per dot-product block and per weight scale
inline constexpr int kPanelOutputs = 16;  ///< outputs per packed panel

enum class DotOrder : std::uint8_t { kSplitPairs, kJoinedPairs };
enum class QuantizedDot : std::uint8_t { kFixedPoint, kExpanded, kFloatChains };

/// What rule 1 leaves to the instruction-set path.
struct DotNumerics {
  DotOrder order = DotOrder::kSplitPairs;
  QuantizedDot quantized = QuantizedDot::kFixedPoint;
  friend auto operator<=>(const DotNumerics&, const DotNumerics&) = default;
};

/// a * b + c with one rounding, for factors whose product has at most 24 significant bits (bf16 x
/// bf16). Computed in double: the product is exact there, and where the double sum is inexact one
/// operand is below 2^-28 of the other, which is itself a float and so not near a rounding
/// boundary; the second rounding therefore gives what one rounding of the exact sum gives.
inline float FusedMultiplyAdd(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) +
                            static_cast<double>(c));
}

/// x to the nearest integer, ties to even, |x| < 2^22: the sum with 1.5 * 2^23 has it in its low
/// bits.
inline std::int32_t RoundToInteger(float x) {
  constexpr float kShift = 0x1.8p+23f;
  return std::bit_cast<std::int32_t>(x + kShift) - std::bit_cast<std::int32_t>(kShift);
}

/// 32 activations as x[k] = value[k] * 2^(exponent - 141), rounded to nearest even.
struct FixedPointBlock {
  std::int16_t value[kBlockInputs];
  std::int32_t exponent;
  bool finite;
};

/// Largest |value|. 32640 would be the most that 16 bits hold of 8 significant ones; an all-ones
/// significand takes the next exponent instead, so that value = 256 high + low with both limbs in
/// -128 .. 127.
inline constexpr int kFixedPointMax = 32512;
/// Exponent fields below this one count as it: the scale of a block stays a normal number. What is
/// below 2^-126, denormals among it, becomes zero.
inline constexpr std::int32_t kFixedPointMinExponent = 16;

/// The first `count` elements (the others count as zero). The exponent is that of the block's
/// largest magnitude plus one unit of its last place: elements down to 2^-7 of that power of two
/// are exact, smaller ones are rounded by at most 2^-15 of it. A block with a NaN or an infinity
/// is not finite and has no values: its scale is NaN, which every output of the row shows.
inline FixedPointBlock ToFixedPoint(const Bf16* x, std::int64_t count) {
  FixedPointBlock block{};
  std::uint32_t largest = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    const std::uint32_t magnitude = x[k].bits & 0x7fffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  block.finite = largest < 0x7f80u;
  block.exponent = static_cast<std::int32_t>((largest + 1) >> 7);
  if (block.exponent < kFixedPointMinExponent) block.exponent = kFixedPointMinExponent;
  if (!block.finite) return block;
  const float to_integer =
      std::bit_cast<float>(static_cast<std::uint32_t>(268 - block.exponent) << 23);
  for (std::int64_t k = 0; k < count; ++k) {
    block.value[k] = static_cast<std::int16_t>(RoundToInteger(ToFloat(x[k]) * to_integer));
  }
  return block;
}

/// What a unit of value[k] times a unit of the weight is worth: 2^(exponent - 141), halved for
/// weights that are stored doubled; NaN if the block is not finite.
inline float FixedPointScale(std::int32_t exponent, bool finite, bool doubled_weights) {
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent - (doubled_weights ? 15 : 14))
                              << 23);
}

/// 2^(s - 127) for the E8M0 bytes 1..254. Loaders reject 0 and 255, which are outside float's
/// normal range; here they give 0 and infinity.
inline float E8m0Value(std::uint8_t s) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(s) << 23);
}

/// Lanes j and j + 8 add, then 4, 2 and 1 apart.
inline float FoldLanes(const float (&lanes)[kLanes]) {
  float sums[kLanes];
  for (int j = 0; j < kLanes; ++j) sums[j] = lanes[j];
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    for (int j = 0; j < apart; ++j) sums[j] = sums[j] + sums[j + apart];
  }
  return sums[0];
}

/// Sum of element(0) .. element(count - 1), floats, in the order of rule 2.
template <typename Element>
float LaneSum(std::int64_t count, Element element) {
  float lanes[kLanes] = {};
  const std::int64_t padded = RoundUp<std::int64_t>(count, kLanes);
  for (std::int64_t i = 0; i < padded; ++i) {
    const float value = i < count ? element(i) : 0.0f;
    lanes[i % kLanes] = lanes[i % kLanes] + value;
  }
  return FoldLanes(lanes);
}

/// Constants of the functions below, shared with their vector forms (cpu/math-inl.h). The
/// coefficients are Remez fits of the relative error, rounded to float.
namespace constants {

inline constexpr float kExpMax = 0x1.62e42ep+6f;   ///< the largest x with a finite exp(x)
inline constexpr float kExpMin = -0x1.5d589ep+6f;  ///< the smallest x with exp(x) >= 2^-126
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kRoundToInteger = 0x1.8p+23f;  ///< adding it leaves round(x) in the low bits
// ln 2 in two parts; the first has 9 significant bits, so n * kLn2High is exact.
inline constexpr float kLn2High = 0x1.63p-1f;
inline constexpr float kLn2Low = -0x1.bd0106p-13f;
// exp(r) = 1 + r + r^2 (c0 + c1 r + ...), |r| <= 0.3468.
inline constexpr float kExp[] = {0x1.fffffcp-2f, 0x1.555490p-3f, 0x1.5558f4p-5f, 0x1.123a36p-7f,
                                 0x1.6a23a4p-10f};
// tanh(x) = x + x^3 (c0 + c1 x^2 + ...), |x| < kTanhSmall.
inline constexpr float kTanhSmall = 0.625f;
inline constexpr float kTanh[] = {-0x1.555532p-2f, 0x1.110726p-3f, -0x1.b83c5ap-5f, 0x1.52269cp-6f,
                                  -0x1.75e1d0p-8f};
// log(1 + z) = 2 s + s^3 (c0 + c1 s^2 + ...), s = z / (2 + z), 0 <= z <= 1.
inline constexpr float kLog1p[] = {0x1.555502p-1f, 0x1.99d208p-2f, 0x1.1ebd0cp-2f, 0x1.1ed7c0p-2f};

}  // namespace constants

/// c[0] + c[1] x + ..., Horner's rule with separate multiply and add.
template <int kCount>
float Polynomial(const float (&c)[kCount], float x) {
  float sum = c[kCount - 1];
  for (int i = kCount - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

/// e^x for kExpMin <= x <= kExpMax.
inline float ExpInRange(float x) {
  using namespace constants;
  const float shifted = x * kLog2E + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  const float y = 1.0f + (r + (r * r) * Polynomial(kExp, r));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) +
                              (std::bit_cast<std::uint32_t>(shifted) << 23));
}

/// e^x. Infinity above kExpMax, 0 where the result would be denormal.
inline float Exp(float x) {
  if (x != x) return x;
  if (x > constants::kExpMax) return std::numeric_limits<float>::infinity();
  if (x < constants::kExpMin) return 0.0f;
  return ExpInRange(x);
}

/// 1 / (1 + e^-x), through e^-|x| so that nothing overflows and no result is denormal.
inline float Sigmoid(float x) {
  const float z = Exp(-std::fabs(x));
  return (x < 0.0f ? z : 1.0f) / (1.0f + z);
}

inline float Tanh(float x) {
  using namespace constants;
  const float magnitude = std::fabs(x);
  if (magnitude < kTanhSmall) {
    const float square = x * x;
    return std::copysign(magnitude + (magnitude * square) * Polynomial(kTanh, square), x);
  }
  const float e = Exp(magnitude + magnitude);
  return std::copysign(1.0f - 2.0f / (e + 1.0f), x);
}

/// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|).
inline float Softplus(float x) {
  const float z = Exp(-std::fabs(x));
  const float twice_s = (z + z) / (2.0f + z);  // s itself would underflow before z does
  const float s = twice_s * 0.5f;
  const float square = s * s;
  const float log = twice_s + (s * square) * Polynomial(constants::kLog1p, square);
  return (x > 0.0f ? x : 0.0f) + log;
}

/// x * sigmoid(x). NaN at -infinity: an infinite activation is an overflow that should stay
/// visible.
inline float Silu(float x) { return x * Sigmoid(x); }

inline float Rsqrt(float x) { return 1.0f / std::sqrt(x); }

/// Gated activation of one (gate, up) pair: beta tanh(g / beta) sigmoid(g) * (linear_beta tanh(u /
/// linear_beta)), the up factor being u itself if linear_beta <= 0.
inline float Situ(float gate, float up, float beta, float linear_beta) {
  const float capped_up = linear_beta > 0.0f ? linear_beta * Tanh(up / linear_beta) : up;
  return ((beta * Tanh(gate / beta)) * Sigmoid(gate)) * capped_up;
}

}  // namespace megalith::kernels
