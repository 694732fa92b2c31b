#include "text/read_file.h"

#include <fstream>
#include <system_error>

namespace megalith::text {

Result<std::string> ReadSmallFile(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return Fail(ErrorCode::kNotFound, "{}: file expected, none found", path.string());
  }
  if (!std::filesystem::is_regular_file(status)) {
    return Fail(error ? ErrorCode::kIo : ErrorCode::kBadFile, "{}: regular file expected, {}",
                path.string(), error ? error.message() : "something else found");
  }
  const auto num_bytes = std::filesystem::file_size(path, error);
  if (error) return Fail(ErrorCode::kIo, "{}: {}", path.string(), error.message());
  if (num_bytes > max_bytes) {
    return Fail(ErrorCode::kBadFile, "{}: at most {} bytes expected, {} found", path.string(),
                max_bytes, num_bytes);
  }
  std::ifstream file(path, std::ios::binary);
  std::string contents(num_bytes, '\0');
  if (!file || !file.read(contents.data(), static_cast<std::streamsize>(num_bytes))) {
    return Fail(ErrorCode::kIo, "{}: cannot be read in full ({} bytes)", path.string(), num_bytes);
  }
  return contents;
}

}  // namespace megalith::text
