#pragma once

#include <sched.h>

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
/// quantum when there are more threads than cores.
///
/// `SpinThenYield wait; while (!ready()) wait.Once();`
class SpinThenYield {
 public:
  /// About 40 us at 40 ns per pause (the slow end: Skylake and later); a join of a step takes less.
  static constexpr std::uint32_t kDefaultMaxSpins = 1000;

  /// max_spins 0: yield at once, for when there are known to be more threads than cores.
  explicit SpinThenYield(std::uint32_t max_spins = kDefaultMaxSpins) : max_spins_(max_spins) {}

  /// Pauses or yields once. Returns true if it yielded.
  bool Once() {
    if (spins_ < max_spins_) {
      ++spins_;
      CpuPause();
      return false;
    }
    sched_yield();
    return true;
  }

  /// Before waiting for another value.
  void Reset() { spins_ = 0; }

 private:
  std::uint32_t max_spins_;
  std::uint32_t spins_ = 0;
};

}  // namespace megalith
