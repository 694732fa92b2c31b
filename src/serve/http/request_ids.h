#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace megalith::serve::http {

/// Names of the requests that are open. Thread-safe.
class RequestIds {
 public:
  RequestIds();

  /// `wanted`, if it is 1 to 128 letters, digits, "-", "_", "." or ":" and no open request has it;
  /// otherwise a new one. To be released when the request is done.
  std::string Acquire(std::string_view wanted);
  void Release(const std::string& id);

 private:
  const std::string prefix_;  ///< differs between processes, so that logs can be merged
  std::mutex mutex_;
  std::uint64_t next_ = 1;
  std::unordered_set<std::string> open_;
};

}  // namespace megalith::serve::http
