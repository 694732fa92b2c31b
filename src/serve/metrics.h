#pragma once

// What the service itself counts; the generator's counters stay in its GeneratorStatus. Written as
// Prometheus text.

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/generator.h"

namespace megalith::serve {

/// Counts durations in fixed buckets. Thread-safe.
class Histogram {
 public:
  static constexpr std::array<double, 16> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

  void Observe(double seconds);
  /// Appends `# HELP`, `# TYPE` and the series of a histogram.
  void Write(std::string_view name, std::string_view help, std::string& out) const;

 private:
  mutable std::mutex mutex_;
  std::array<std::uint64_t, kBounds.size() + 1> counts_{};  // the last: beyond all bounds
  double sum_ = 0.0;
};

/// Thread-safe.
class Metrics {
 public:
  void CountResponse(std::string_view endpoint, int status);
  void CountDisconnect() { num_disconnects_.fetch_add(1, std::memory_order_relaxed); }
  void CountReplay(bool hit) {
    (hit ? num_replays_ : num_replay_misses_).fetch_add(1, std::memory_order_relaxed);
  }

  Histogram first_token_seconds;  ///< from the request's arrival
  Histogram queue_seconds;
  Histogram token_seconds;  ///< between two tokens of one generation

  /// Everything, with the generator's state if there is one.
  std::string Prometheus(const std::optional<engine::GeneratorStatus>& status, bool ready) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> responses_;  // by endpoint and status
  std::atomic<std::uint64_t> num_disconnects_ = 0;
  std::atomic<std::uint64_t> num_replays_ = 0;
  std::atomic<std::uint64_t> num_replay_misses_ = 0;
};

}  // namespace megalith::serve
