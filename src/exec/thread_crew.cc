#include "exec/thread_crew.h"

#include <chrono>
#include <condition_variable>

#include "base/affinity.h"

namespace megalith::exec {

Status RunCrew(std::span<const LoadThread> threads, CrewState* state, std::uint64_t total_bytes,
               const ProgressCallback& progress,
               const std::function<Status(const LoadThread&)>& work) {
  std::mutex mutex;
  std::condition_variable finished;
  std::size_t num_running = threads.size();  // guarded by mutex
  const auto report = [&] {
    if (progress) progress(Progress{state->stage(), state->done_bytes(), total_bytes, true});
  };
  const auto run = [&](const LoadThread& thread) {
    Status status;
    if (thread.cpu >= 0) status = PinThisThread(thread.cpu);
    if (status) status = work(thread);
    if (!status) state->SetError(std::move(status).error());
    const std::lock_guard lock(mutex);
    --num_running;
    finished.notify_one();
  };
  std::vector<std::jthread> running;
  for (const LoadThread& thread : threads) running.emplace_back(run, std::cref(thread));
  {
    std::unique_lock lock(mutex);
    while (!finished.wait_for(lock, std::chrono::milliseconds(100),
                              [&] { return num_running == 0; })) {
      lock.unlock();
      report();
      lock.lock();
    }
  }
  running.clear();
  MEGALITH_RETURN_IF_ERROR(state->TakeStatus());
  report();
  return {};
}

}  // namespace megalith::exec
