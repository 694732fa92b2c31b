#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace megalith::text {

/// A whole small file. kNotFound if it is not there, kBadFile if it is longer than `max_bytes` or
/// no regular file, kIo if it cannot be read.
Result<std::string> ReadSmallFile(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace megalith::text
