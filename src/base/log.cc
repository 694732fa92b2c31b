#include "base/log.h"

#include <atomic>
#include <mutex>

namespace megalith {
namespace {

struct Logger {
  std::mutex mutex;
  LogSink sink;  // guarded by mutex
  std::atomic<bool> enabled{false};
};

Logger& TheLogger() {
  // Never destroyed: threads may log while static destructors run.
  static Logger& logger = *new Logger;
  return logger;
}

}  // namespace

std::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

void SetLogSink(LogSink sink) {
  Logger& logger = TheLogger();
  const std::lock_guard lock(logger.mutex);
  logger.sink = std::move(sink);
  logger.enabled.store(static_cast<bool>(logger.sink), std::memory_order_relaxed);
}

bool LogEnabled() { return TheLogger().enabled.load(std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view message) {
  Logger& logger = TheLogger();
  const std::lock_guard lock(logger.mutex);
  if (logger.sink) logger.sink(level, message);
}

}  // namespace megalith
