#include "serve/ping_timer.h"

#include <algorithm>

namespace megalith::serve {

PingTimer::PingTimer(std::chrono::milliseconds interval)
    : interval_(std::max(interval, std::chrono::milliseconds(1))), thread_([this] { Run(); }) {}

PingTimer::~PingTimer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void PingTimer::Add(std::weak_ptr<GenerationJob> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
}

void PingTimer::Run() {
  // Looking four times per interval keeps the silence below one and a quarter of it.
  const auto pause = std::max(interval_ / 4, std::chrono::milliseconds(1));
  const std::int64_t interval_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(interval_).count();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, pause, [this] { return stop_; });
      if (stop_) return;
    }
    for (const auto& job : TakeLiving()) job->Ping(interval_ns);
  }
}

std::vector<std::shared_ptr<GenerationJob>> PingTimer::TakeLiving() {
  std::vector<std::shared_ptr<GenerationJob>> living;
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [&living](const std::weak_ptr<GenerationJob>& weak) {
    auto job = weak.lock();
    if (job == nullptr) return true;
    living.push_back(std::move(job));
    return false;
  });
  return living;
}

}  // namespace megalith::serve
