#include "base/tick_clock.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(TickClock, DoesNotRunBackwards) {
  const TickClock clock;
  std::int64_t last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = clock.Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(TickScale, TicksBecomeTimesOfTheSteadyClock) {
  const TickClock clock;
  const TickScale scale(clock);
  const std::int64_t before = NowNs();
  const std::int64_t tick = clock.Now();
  const std::int64_t after = NowNs();
  const TickScale::Rate rate = scale.Measure();
  // Loose: only a wrong unit or origin is an error here, an interrupted reading is not.
  constexpr std::int64_t kSlackNs = 50'000'000;
  EXPECT_GT(rate.ns_per_tick, 0.0);
  EXPECT_GE(rate.ToNs(tick), before - kSlackNs);
  EXPECT_LE(rate.ToNs(tick), after + kSlackNs);
}

}  // namespace
}  // namespace megalith
