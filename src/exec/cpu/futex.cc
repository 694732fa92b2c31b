#include "exec/cpu/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace megalith::exec::cpu {

void FutexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
               std::int64_t timeout_ns) {
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000);
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? nullptr : &timeout,
          nullptr, 0);
}

void FutexWakeAll(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace megalith::exec::cpu
