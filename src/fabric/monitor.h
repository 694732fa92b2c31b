#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "fabric/job_control.h"
#include "fabric/memory_region.h"

namespace megalith::fabric {

/// The thread of a process that shows that it lives and sees that the others do.
///
/// A process that has ended is noticed at once through its pidfd. One that does not run (stopped,
/// hung host) is noticed by its heartbeat: unchanged while this thread has ticked often enough for
/// the stall timeout. Ticks instead of time: when the whole machine was asleep or overloaded,
/// nobody is blamed.
class Monitor {
 public:
  static constexpr std::int64_t kTickMs = 100;

  struct Options {
    std::uint32_t rank;
    std::vector<std::uint32_t> local_ranks;   ///< of this host, this one included
    std::vector<std::uint32_t> remote_ranks;  ///< of others; their lines are kept up by on_tick
    std::int64_t stall_timeout_ms;            ///< of local ranks; 0: never
    std::int64_t remote_stall_timeout_ms;     ///< of the others; 0: never
    std::function<void()> on_tick;            ///< after each tick and Wake; may be empty
  };

  /// The line of this rank must be present; those of the other local ranks, too.
  static Result<std::unique_ptr<Monitor>> Start(const JobControl& control, Options options);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Ticks now.
  void Wake();

 private:
  struct Watched {
    std::uint32_t rank;
    Descriptor process;  // a pidfd; invalid where there is none
    std::int64_t stall_timeout_ms;
    std::uint64_t heartbeat = 0;
    std::int64_t num_still = 0;  // ticks since it changed
    bool gone = false;           // has left or is known to be dead
  };

  Monitor(const JobControl& control, Options options) : control_(control), options_(options) {}
  void Run();
  void Look(Watched* watched, bool ended);
  void Report(const std::string& message) const;
  void EndStalled(const Watched& watched) const;

  JobControl control_;
  Options options_;
  std::vector<Watched> watched_;
  Descriptor wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// Identifies the pid namespace of this process; 0 if it cannot be told.
std::uint64_t PidNamespace();

}  // namespace megalith::fabric
