#include "bench/turns.h"

#include <algorithm>

namespace megalith::bench {

int StepsPerTurn(double step_seconds, int wanted, std::int64_t room) {
  constexpr double kTurnSeconds = 0.2;
  constexpr int kMostSteps = 512;
  int steps = wanted;
  if (wanted <= 0) {
    const double fitting = std::min<double>(kTurnSeconds / step_seconds + 1, kMostSteps);
    steps = std::max(static_cast<int>(fitting), 2);
  }
  return static_cast<int>(std::min<std::int64_t>(steps, room));
}

}  // namespace megalith::bench
