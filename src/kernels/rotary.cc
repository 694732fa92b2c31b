#include "kernels/rotary.h"

#include <cmath>

namespace megalith::kernels {

void RotaryAngles(std::int64_t position, double theta, std::int64_t head_dim, float* cos,
                  float* sin) {
  for (std::int64_t j = 0; j < head_dim / 2; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(head_dim);
    const double angle = static_cast<double>(position) * std::pow(theta, exponent);
    cos[j] = static_cast<float>(std::cos(angle));
    sin[j] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace megalith::kernels
