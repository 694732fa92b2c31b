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
  const std::int64_t begin = NowNs();
  const TickScale scale(clock);
  const std::int64_t begun = NowNs();
  const std::int64_t before = NowNs();
  const std::int64_t tick = clock.Now();
  const std::int64_t after = NowNs();
  const std::int64_t measure = NowNs();
  const TickScale::Rate rate = scale.Measure();
  const std::int64_t measured = NowNs();
  // A reading that was interrupted is wrong by as much as that took, and no more.
  const std::int64_t slack_ns = (begun - begin) + (measured - measure) + 1'000'000;
  EXPECT_GT(rate.ns_per_tick, 0.0);
  EXPECT_GE(rate.ToNs(tick), before - slack_ns);
  EXPECT_LE(rate.ToNs(tick), after + slack_ns);
}

}  // namespace
}  // namespace megalith
