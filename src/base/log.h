#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

// Libraries never print. What they have to say goes to a sink the program sets; without one it is
// dropped.

namespace megalith {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

/// "debug", "info", "warning", "error".
std::string_view LogLevelName(LogLevel level);

/// Receives one message without a newline at its end. Called from any thread, one call at a time;
/// it must not log itself.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Replaces the sink; an empty one drops messages. Safe at any time: when it returns, the old sink
/// is not running and will not be called again.
void SetLogSink(LogSink sink);

/// Whether a sink is set, to skip building an expensive message.
bool LogEnabled();

/// Not for the hot path: takes a lock.
void Log(LogLevel level, std::string_view message);

/// `LogFormat(LogLevel::kInfo, "{} layers", count);` formats only if a sink is set.
template <typename... Args>
void LogFormat(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled()) Log(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megalith
