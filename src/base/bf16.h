#pragma once

#include <bit>
#include <cstdint>

namespace megalith {

/// bfloat16: the upper half of an IEEE binary32. Storage only; arithmetic happens in float.
struct Bf16 {
  std::uint16_t bits;
  friend bool operator==(Bf16, Bf16) = default;
};

/// Exact.
inline float ToFloat(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Round to nearest, ties to even. NaN stays NaN (made quiet); overflow goes to infinity.
inline Bf16 ToBf16(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return Bf16{static_cast<std::uint16_t>(bits >> 16)};
}

}  // namespace megalith
