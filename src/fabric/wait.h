#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

#include "base/spin.h"

namespace megalith::fabric {

/// What a thread does between two looks at a mailbox: pause, then give the core away, then sleep.
/// Unlike SpinThenYield it always ends up sleeping, since a rank may wait for minutes for the next
/// step, and sleeps longer the longer it has waited.
///
/// `PatientWait wait(max_spins); while (!ready()) wait.Once();`
class PatientWait {
 public:
  /// max_spins 0: for when there are known to be more threads than cores.
  explicit PatientWait(std::uint32_t max_spins)
      : max_spins_(max_spins), max_yields_(max_spins > 0 ? kMaxYields : kMaxYieldsCrowded) {}

  /// Pauses, yields or sleeps once. Returns true if it gave its core away.
  bool Once() {
    if (spins_ < max_spins_) {
      ++spins_;
      CpuPause();
      return false;
    }
    if (yields_ < max_yields_) {
      ++yields_;
      sched_yield();
      return true;
    }
    // The kernel adds its timer slack of 50 us.
    const bool idle = naps_ >= kShortNaps;
    if (!idle) ++naps_;
    const timespec nap{0, idle ? kLongNapNs : kShortNapNs};
    nanosleep(&nap, nullptr);
    return true;
  }

 private:
  /// About a millisecond where nobody else wants the core: longer than a layer takes.
  static constexpr std::uint32_t kMaxYields = 2000;
  /// Threads that yield compete with those that have work.
  static constexpr std::uint32_t kMaxYieldsCrowded = 50;
  static constexpr std::uint32_t kShortNaps = 2000;
  static constexpr long kShortNapNs = 20'000;
  static constexpr long kLongNapNs = 1'000'000;

  std::uint32_t max_spins_;
  std::uint32_t max_yields_;
  std::uint32_t spins_ = 0;
  std::uint32_t yields_ = 0;
  std::uint32_t naps_ = 0;
};

}  // namespace megalith::fabric
