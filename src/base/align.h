#pragma once

namespace megalith {

/// Smallest multiple of `multiple` that is >= value. Both non-negative, multiple > 0.
template <typename T>
constexpr T RoundUp(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <typename T>
constexpr T CeilDiv(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace megalith
