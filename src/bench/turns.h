#pragma once

#include <cstdint>

namespace megalith::bench {

/// Shorter steps are warmed up after a probe, which has emptied the caches.
inline constexpr double kLongStepSeconds = 0.05;

/// Positions kept free behind the context for measured steps; when they are used up the sequences
/// start over.
inline constexpr std::int32_t kMeasuredPositions = 2048;

/// Steps of one turn: `wanted`; if that is 0 as many as take about 0.2 s, 2 to 512. At most `room`.
int StepsPerTurn(double step_seconds, int wanted, std::int64_t room);

}  // namespace megalith::bench
