#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

namespace megalith {

/// Tells the core that this is a wait loop: saves power and leaves the other hardware thread room.
inline void CpuPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

/// What a waiting thread does between two looks at the value it waits for: the first `max_spins`
/// times a pause, then it gives its core away. Spinning alone stops all progress for a scheduler
/// quantum when there are more threads than cores. Where that is known beforehand, a thread that
/// has yielded for long sleeps: threads that only yield share the cores with those that have work,
/// and the more processes do so the longer a thread with work waits for its turn.
///
/// `SpinThenYield wait; while (!ready()) wait.Once();`
class SpinThenYield {
 public:
  /// About 40 us at 40 ns per pause (the slow end: Skylake and later); a join of a step takes less.
  static constexpr std::uint32_t kDefaultMaxSpins = 1000;

  /// max_spins 0: for when there are known to be more threads than cores.
  explicit SpinThenYield(std::uint32_t max_spins = kDefaultMaxSpins) : max_spins_(max_spins) {}

  /// Pauses, yields or sleeps once. Returns true if it gave its core away.
  bool Once() {
    if (spins_ < max_spins_) {
      ++spins_;
      CpuPause();
      return false;
    }
    if (max_spins_ > 0 || yields_ < kMaxYields) {
      ++yields_;
      sched_yield();
      return true;
    }
    const timespec nap{0, kNapNs};
    nanosleep(&nap, nullptr);
    return true;
  }

  /// Before waiting for another value.
  void Reset() { spins_ = yields_ = 0; }

 private:
  /// A yield takes 0.3 to 1 us where nobody else wants the core, and as long as others want it
  /// else.
  static constexpr std::uint32_t kMaxYields = 50;
  static constexpr long kNapNs = 30'000;

  std::uint32_t max_spins_;
  std::uint32_t yields_ = 0;
  std::uint32_t spins_ = 0;
};

}  // namespace megalith
