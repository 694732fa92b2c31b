#include "fabric/monitor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/clock.h"
#include "base/log.h"

namespace megalith::fabric {
namespace {

/// A descriptor that becomes readable when the process ends; invalid if the kernel has none, or if
/// the process is of another pid namespace.
Descriptor OpenProcess(const RankLine& line) {
  const std::uint64_t space = line.pid_namespace.load(std::memory_order_relaxed);
  if (space == 0 || space != PidNamespace()) return Descriptor();
  return Descriptor(
      static_cast<int>(::syscall(SYS_pidfd_open, line.pid.load(std::memory_order_relaxed), 0)));
}

}  // namespace

std::uint64_t PidNamespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

Result<std::unique_ptr<Monitor>> Monitor::Start(const JobControl& control, Options options) {
  std::unique_ptr<Monitor> monitor(new Monitor(control, std::move(options)));
  for (const std::uint32_t rank : monitor->options_.local_ranks) {
    if (rank == monitor->options_.rank) continue;
    monitor->watched_.push_back(
        {rank, OpenProcess(control.line(rank)), monitor->options_.stall_timeout_ms});
  }
  for (const std::uint32_t rank : monitor->options_.remote_ranks) {
    monitor->watched_.push_back({rank, Descriptor(), monitor->options_.remote_stall_timeout_ms});
  }
  monitor->wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!monitor->wake_.valid()) {
    return Fail(ErrorCode::kIo, "monitor of ranks: eventfd: {}", std::strerror(errno));
  }
  // Signals are for the program's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    monitor->thread_ = std::thread([raw = monitor.get()] { raw->Run(); });
  } catch (const std::system_error& error) {
    started = Fail(ErrorCode::kIo, "monitor of ranks: no thread: {}", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  MEGALITH_RETURN_IF_ERROR(std::move(started));
  return monitor;
}

Monitor::~Monitor() {
  stop_.store(true, std::memory_order_relaxed);
  Wake();
  if (thread_.joinable()) thread_.join();
}

void Monitor::Wake() {
  const std::uint64_t one = 1;
  // Full means that it is awake.
  static_cast<void>(!::write(wake_.number(), &one, sizeof one));
}

void Monitor::Run() {
  std::int64_t last_tick_ns = 0;
  std::vector<pollfd> polled;
  while (!stop_.load(std::memory_order_relaxed)) {
    polled.assign(1, {wake_.number(), POLLIN, 0});
    // poll skips negative numbers.
    for (const Watched& watched : watched_) {
      polled.push_back({watched.gone ? -1 : watched.process.number(), POLLIN, 0});
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(kTickMs));
    if (polled[0].revents != 0) {
      std::uint64_t ignored = 0;
      static_cast<void>(!::read(wake_.number(), &ignored, sizeof ignored));
    }
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      if (polled[i + 1].revents != 0) Look(&watched_[i], true);
    }
    const std::int64_t now_ns = NowNs();
    if (now_ns - last_tick_ns >= kTickMs * 900'000) {  // not those that were woken early
      last_tick_ns = now_ns;
      control_.line(options_.rank).heartbeat.fetch_add(1, std::memory_order_relaxed);
      for (Watched& watched : watched_) Look(&watched, false);
    }
    if (options_.on_tick) options_.on_tick();
  }
}

/// `ended`: the process is known to have ended.
void Monitor::Look(Watched* watched, bool ended) {
  if (watched->gone) return;
  const RankLine& line = control_.line(watched->rank);
  // Acquire is not needed for the state alone; the order of leaving and ending is the kernel's.
  if (line.state.load(std::memory_order_acquire) == RankState::kLeft) {
    watched->gone = true;
    return;
  }
  const auto who = [&] {
    return fmt::format("rank {} (process {})", watched->rank,
                       line.pid.load(std::memory_order_relaxed));
  };
  if (ended) {
    watched->gone = true;
    Report(fmt::format("{} has died; last seen: {}", who(), line.Describe()));
    return;
  }
  const std::uint64_t heartbeat = line.heartbeat.load(std::memory_order_relaxed);
  if (heartbeat != watched->heartbeat) {
    watched->heartbeat = heartbeat;
    watched->num_still = 0;
    return;
  }
  ++watched->num_still;
  if (watched->stall_timeout_ms == 0 || watched->num_still * kTickMs < watched->stall_timeout_ms) {
    return;
  }
  watched->gone = true;
  Report(fmt::format("{} has not run for {} ms: stopped, or its host is gone; last seen: {}", who(),
                     watched->stall_timeout_ms, line.Describe()));
  EndStalled(*watched);
}

/// Into the log at once: a launcher that kills the remaining processes may be faster than whoever
/// waits for the failed rank.
void Monitor::Report(const std::string& message) const {
  if (control_.Fail(message)) Log(LogLevel::kError, message);
}

/// A stopped process would keep its memory, and its terminal or launcher waiting, for ever.
void Monitor::EndStalled(const Watched& watched) const {
  if (!watched.process.valid()) return;
  ::syscall(SYS_pidfd_send_signal, watched.process.number(), SIGKILL, nullptr, 0);
}

}  // namespace megalith::fabric
