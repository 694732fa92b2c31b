#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace megalith::apps {

/// To stdout: a result. A write that fails shows when main flushes at the end.
template <typename... Args>
void Put(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stdout);
}

/// To stderr: a message. Nobody reading it must not keep the work from being done.
template <typename... Args>
void Note(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stderr);
}

}  // namespace megalith::apps
