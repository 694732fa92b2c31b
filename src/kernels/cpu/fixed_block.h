#pragma once

#include <cstdint>

namespace megalith::kernels {

/// Bytes that a block of 32 activations takes in the form a path multiplies.
inline constexpr std::int64_t kFixedBlockBytes = 64;

/// How its 32 values lie in them: see where FormFor is defined for a path.
enum class FixedForm : std::uint8_t { kInOrder, kPairs, kLimbs };

/// What of a converted block does not depend on that form.
struct FixedBlockInfo {
  std::int32_t exponent;  ///< as in FixedPointBlock
  bool finite;
  std::int32_t sum;  ///< of the values
};

}  // namespace megalith::kernels
