#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/units.h"

namespace megalith {

tl::unexpected<Error> SystemError(const std::string& path, std::string_view what) {
  return Fail(ErrorCode::kIo, "{}: {}: {}", path, what, std::strerror(errno));
}

Status WriteFully(int descriptor, const std::string& path, std::uint64_t offset,
                  std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(path, "cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  if (is_mine_) ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

Status AtomicFile::Create(std::uint64_t bytes) {
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return SystemError(folder, "cannot be created");
  }
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return SystemError(folder, "no file system");
  const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (free < bytes) {
    return Fail(ErrorCode::kIo, "{}: {} needed, {} free there", path_, FormatBytes(bytes),
                FormatBytes(free));
  }
  descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) return SystemError(temporary_, "cannot be written");
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    return Fail(ErrorCode::kUsage, "{}: another process is writing it", path_);
  }
  // Between opening and locking, another writer may have finished: then what is locked here is
  // its file, under its final name.
  struct stat mine {};
  struct stat named {};
  if (::fstat(descriptor_, &mine) != 0 || ::stat(temporary_.c_str(), &named) != 0 ||
      mine.st_ino != named.st_ino || mine.st_dev != named.st_dev) {
    return Fail(ErrorCode::kUsage, "{}: another process has just written it", path_);
  }
  is_mine_ = true;  // what a killed writer left is overwritten
  if (::ftruncate(descriptor_, 0) != 0) return SystemError(temporary_, "cannot be emptied");
  while (::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP && errno != ENOSYS) {
      return SystemError(temporary_, fmt::format("{} cannot be reserved", FormatBytes(bytes)));
    }
    if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0) break;
    return SystemError(temporary_, "cannot be enlarged");
  }
  return {};
}

Status AtomicFile::Commit() {
  if (::fsync(descriptor_) != 0) return SystemError(temporary_, "cannot be written to the disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return SystemError(temporary_, fmt::format("cannot be renamed to {}", path_));
  }
  is_mine_ = false;
  // The name too; a file system that cannot is no reason to fail, the bytes are checked anyway.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) {
    static_cast<void>(::fsync(descriptor));
    ::close(descriptor);
  }
  return {};
}

void RemoveAbandonedPart(const std::string& part_path) {
  const int descriptor = ::open(part_path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(part_path.c_str());
  ::close(descriptor);
}

}  // namespace megalith
