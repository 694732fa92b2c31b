#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/api/generation_job.h"

namespace megalith::serve {

/// A small thread that lets jobs say something while nothing else does: clients and proxies close
/// connections that are silent during a long prompt.
class PingTimer {
 public:
  explicit PingTimer(std::chrono::milliseconds interval);
  ~PingTimer();

  void Add(std::weak_ptr<GenerationJob> job);

 private:
  void Run();
  // The jobs that still live; forgets the others.
  std::vector<std::shared_ptr<GenerationJob>> TakeLiving();

  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<std::weak_ptr<GenerationJob>> jobs_;
  std::thread thread_;
};

}  // namespace megalith::serve
