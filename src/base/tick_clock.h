#pragma once

// A clock for time stamps that must cost almost nothing: the processor's time stamp counter where
// it runs at a constant rate in all power states, the steady clock elsewhere.

#include <cstdint>

#include "base/clock.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace megalith {

/// Whether ticks come from the time stamp counter. Asked of the processor once.
bool HasInvariantTsc();

/// Ticks since some moment before the process. Compared between cores: the operating system and the
/// processor keep the counters of all cores together. Not serialising: instructions shortly before
/// may still be running, so one time stamp is good to some ten nanoseconds.
class TickClock {
 public:
  std::int64_t Now() const {
#if defined(__x86_64__)
    if (uses_tsc_) return static_cast<std::int64_t>(__rdtsc());
#endif
    return NowNs();
  }

 private:
  bool uses_tsc_ = HasInvariantTsc();
};

/// Ticks to nanoseconds on the steady clock (NowNs), measured between construction and Convert.
class TickScale {
 public:
  explicit TickScale(TickClock clock) : clock_(clock), first_(ReadBoth()) {}

  /// Nanoseconds a tick lasts, and the pair of equal times it counts from.
  struct Rate {
    std::int64_t tick;
    std::int64_t ns;
    double ns_per_tick;

    /// Never decreasing in `at`.
    std::int64_t ToNs(std::int64_t at) const {
      return ns + static_cast<std::int64_t>(static_cast<double>(at - tick) * ns_per_tick);
    }
  };
  /// Waits until a few milliseconds have passed since construction, so that the rate is good to
  /// about 1e-5.
  Rate Measure() const;

 private:
  struct Both {
    std::int64_t tick;
    std::int64_t ns;
  };
  Both ReadBoth() const;

  TickClock clock_;
  Both first_;
};

}  // namespace megalith
