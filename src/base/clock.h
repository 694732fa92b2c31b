#pragma once

#include <chrono>
#include <cstdint>

namespace megalith {

/// Nanoseconds on the steady clock; only differences mean anything.
inline std::int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Seconds since an earlier NowNs().
inline double SecondsSince(std::int64_t start_ns) {
  return static_cast<double>(NowNs() - start_ns) * 1e-9;
}

}  // namespace megalith
