#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Small text files of /proc and /sys. They are made by the kernel, so what does not parse is
// treated as absent, not as an error.

namespace megalith {

/// The whole file, or nothing if it cannot be read. At most 64 MiB.
std::optional<std::string> ReadKernelText(const std::string& path);

/// A decimal number in front, blanks before and anything after it ignored; nothing if there is
/// none or it does not fit.
std::optional<std::uint64_t> ParseNumber(std::string_view text);

/// The number in a file that holds one.
std::optional<std::uint64_t> ReadKernelNumber(const std::string& path);

/// The number after the first line start `key` ("MemAvailable:", "inactive_file"), units ignored.
std::optional<std::uint64_t> FindNumber(std::string_view text, std::string_view key);

}  // namespace megalith
