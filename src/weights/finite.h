#pragma once

// Finding NaN and infinity in stored values by their exponent bits.

#include <cstddef>
#include <optional>
#include <span>

#include "base/dtype.h"

namespace megalith::weights {

/// Index of the first element that is NaN or infinite, or nothing. `bytes` are BF16 or F32 elements
/// of any alignment; any other dtype has none.
std::optional<std::size_t> FindNonFinite(std::span<const std::byte> bytes, DType dtype);

}  // namespace megalith::weights
