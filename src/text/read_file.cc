#include "text/read_file.h"

#include "base/file.h"

namespace megalith::text {

Result<std::string> ReadSmallFile(const std::filesystem::path& path, std::size_t max_bytes) {
  return ReadTextFile(path.string(), max_bytes);
}

}  // namespace megalith::text
