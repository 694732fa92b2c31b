#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace megalith::text {

/// A whole small file. kNotFound if it is not there or cannot be opened, kBadFile if it is longer
/// than `max_bytes` or no regular file, kIo if reading fails half way.
Result<std::string> ReadSmallFile(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace megalith::text
