#include "base/kernel_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>

namespace megalith {

std::optional<std::string> ReadKernelText(const std::string& path) {
  // Such files have no size that stat knows, and must be read in few large reads to be consistent.
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string text;
  bool complete = false;
  while (!complete && text.size() < kMaxBytes) {
    const std::size_t used = text.size();
    text.resize(used + 65536);
    const ssize_t got = read(fd, text.data() + used, text.size() - used);
    text.resize(used + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    complete = got == 0;
  }
  close(fd);
  if (!complete) return std::nullopt;
  return text;
}

std::optional<std::uint64_t> ParseNumber(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> ReadKernelNumber(const std::string& path) {
  const std::optional<std::string> text = ReadKernelText(path);
  if (!text) return std::nullopt;
  return ParseNumber(*text);
}

std::optional<std::uint64_t> FindNumber(std::string_view text, std::string_view key) {
  std::size_t line = 0;
  while (line < text.size()) {
    const std::string_view rest = text.substr(line);
    if (rest.starts_with(key)) {
      const std::string_view value = rest.substr(key.size());
      // "inactive_file" must not find "inactive_file_pages".
      if (key.ends_with(':') || value.starts_with(' ')) return ParseNumber(value);
    }
    const std::size_t end = text.find('\n', line);
    if (end == std::string_view::npos) break;
    line = end + 1;
  }
  return std::nullopt;
}

}  // namespace megalith
