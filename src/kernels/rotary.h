#pragma once

#include <cstdint>

namespace megalith::kernels {

/// cos[j], sin[j] of position * theta^(-2 j / head_dim) for j < head_dim / 2, what
/// HeadNormRotaryArgs takes. Computed in double: a position of a million still has all digits of
/// the angle.
void RotaryAngles(std::int64_t position, double theta, std::int64_t head_dim, float* cos,
                  float* sin);

}  // namespace megalith::kernels
