#pragma once

// The two storage types of activations, Bf16 and float, behind one spelling.

#include <type_traits>

#include "base/bf16.h"

namespace megalith::kernels {

inline float Widen(Bf16 value) { return ToFloat(value); }
inline float Widen(float value) { return value; }

/// To the activation type: bf16 rounds to nearest even, float keeps the value.
template <typename Act>
Act RoundTo(float value) {
  static_assert(std::is_same_v<Act, Bf16> || std::is_same_v<Act, float>);
  if constexpr (std::is_same_v<Act, Bf16>) {
    return ToBf16(value);
  } else {
    return value;
  }
}

/// The float that the rounded value stands for.
template <typename Act>
float Rounded(float value) {
  return Widen(RoundTo<Act>(value));
}

}  // namespace megalith::kernels
