#pragma once

// Threads that load weights, and the caller who watches them.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "exec/weight_packer.h"

namespace megalith::exec {

/// What the threads of one operation share.
class CrewState {
 public:
  CrewState(std::string_view stage, const CancelFlag* cancel) : stage_(stage), cancel_(cancel) {}

  /// To be asked between pieces of work.
  bool Continue() {
    if (cancel_ != nullptr && cancel_->IsCancelled()) {
      SetError(Error{ErrorCode::kCancelled, fmt::format("{}: stopped on request", stage_)});
    }
    return !stop_.load(std::memory_order_relaxed);
  }
  /// The first error counts; all threads stop.
  void SetError(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    stop_.store(true, std::memory_order_relaxed);
  }
  void AddDone(std::uint64_t bytes) { done_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  std::uint64_t done_bytes() const { return done_bytes_.load(std::memory_order_relaxed); }
  std::string_view stage() const { return stage_; }
  /// After all threads have ended.
  Status TakeStatus() {
    if (error_) return tl::unexpected<Error>(*std::move(error_));
    return {};
  }

 private:
  std::string_view stage_;
  const CancelFlag* cancel_;
  // Relaxed: both only say how far things are; ending the threads publishes what they wrote.
  std::atomic<std::uint64_t> done_bytes_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::optional<Error> error_;  ///< guarded by mutex_ while threads run
};

/// Runs work(thread) for each of `threads`, bound to its CPU, and reports progress towards
/// `total_bytes` from the calling thread until all have ended. A failure of work stops the others
/// (see CrewState::Continue) and is returned.
Status RunCrew(std::span<const LoadThread> threads, CrewState* state, std::uint64_t total_bytes,
               const ProgressCallback& progress,
               const std::function<Status(const LoadThread&)>& work);

}  // namespace megalith::exec
