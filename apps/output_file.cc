#include "output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace megalith::apps {

Result<OutputFile> OutputFile::Create(const std::string& path) {
  if (path.empty()) return Fail(ErrorCode::kUsage, "output file: a path expected, none given");
  if (path == "-") return OutputFile(dup(STDOUT_FILENO), path, "");
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) {
    return Fail(ErrorCode::kUsage, "{}: a file expected, it is a directory", path);
  }
  const bool direct = exists && !S_ISREG(status.st_mode);
  const std::string name = direct ? path : fmt::format("{}.{}.part", path, getpid());
  const int flags = O_WRONLY | O_CLOEXEC | (direct ? 0 : O_CREAT | O_EXCL);
  const int descriptor = open(name.c_str(), flags, 0666);
  if (descriptor < 0) {
    return Fail(ErrorCode::kIo, "{}: cannot be written: {}", path, std::strerror(errno));
  }
  return OutputFile(descriptor, path, direct ? "" : name);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status OutputFile::Commit(std::span<const char> bytes) {
  const auto fail = [this](const char* what) {
    return Fail(ErrorCode::kIo, "{}: {}: {}", path_, what, std::strerror(errno));
  };
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail("cannot be written in full");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (close(std::exchange(descriptor_, -1)) != 0) return fail("cannot be written in full");
  if (temporary_.empty()) return {};
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return fail("cannot be renamed into place");
  temporary_.clear();
  return {};
}

}  // namespace megalith::apps
