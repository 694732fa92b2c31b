#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "serve/http/server.h"

namespace megalith::apps {

/// One JSON object a line for every request. Holds no text of users: paths, sizes and times only.
class AccessLog {
 public:
  /// Appends to the file; "-" is stdout. kIo with the system's reason.
  static Result<std::unique_ptr<AccessLog>> Open(const std::string& path);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  /// Thread-safe.
  void Write(const serve::http::AccessRecord& record);

 private:
  explicit AccessLog(std::FILE* file) : file_(file) {}

  std::mutex mutex_;
  std::FILE* file_;
};

}  // namespace megalith::apps
