#pragma once

#include <atomic>

#include "base/result.h"

namespace megalith {

/// Asks running work to stop. Cancel() may be called from any thread and from a signal handler;
/// the work looks at the flag between steps and returns kCancelled.
class CancelFlag {
 public:
  void Cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  void Reset() noexcept { cancelled_.store(false, std::memory_order_relaxed); }
  bool IsCancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

 private:
  static_assert(std::atomic<bool>::is_always_lock_free, "needed in signal handlers");
  // Relaxed: the flag carries no data, and a step more or less does not matter.
  std::atomic<bool> cancelled_{false};
};

/// kCancelled naming `what` if the flag is set. A null flag never cancels.
inline Status CheckCancelled(const CancelFlag* flag, std::string_view what) {
  if (flag != nullptr && flag->IsCancelled()) {
    return Fail(ErrorCode::kCancelled, "{}: stopped on request", what);
  }
  return {};
}

}  // namespace megalith
