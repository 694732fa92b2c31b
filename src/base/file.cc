#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace megalith {
namespace {

// Linux moves at most 0x7ffff000 bytes per read; smaller pieces also keep signals responsive.
constexpr std::size_t kMaxReadBytes = std::size_t{1} << 30;

std::string ErrnoText(int error) { return std::strerror(error); }

/// kIo where the system ran out of something or the medium failed; else the path is at fault.
ErrorCode CodeOfOpenError(int error) {
  switch (error) {
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return ErrorCode::kIo;
    case ENXIO:  // a socket, or a device that is not there
    case ENODEV:
      return ErrorCode::kBadFile;
    default:
      return ErrorCode::kNotFound;
  }
}

std::string_view KindOfFile(mode_t mode) {
  if (S_ISDIR(mode)) return "is a directory";
  if (S_ISFIFO(mode)) return "is a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "is a device";
  if (S_ISSOCK(mode)) return "is a socket";
  return "is something else";
}

}  // namespace

Result<RandomAccessFile> RandomAccessFile::Open(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return Fail(ErrorCode::kUsage, "a path holds a zero byte");
  }
  // Without O_NONBLOCK opening a FIFO waits for a writer. On regular files it has no effect.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), kFlags);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    const int error = errno;
    return Fail(CodeOfOpenError(error), "{}: {}", path, ErrnoText(error));
  }
  RandomAccessFile file(path, descriptor, 0);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    return Fail(ErrorCode::kIo, "{}: {}", path, ErrnoText(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    return Fail(ErrorCode::kBadFile, "{}: a regular file expected, it {}", path,
                KindOfFile(status.st_mode));
  }
  file.size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  return file;
}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

RandomAccessFile& RandomAccessFile::operator=(RandomAccessFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

RandomAccessFile::~RandomAccessFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status RandomAccessFile::ReadAt(std::uint64_t offset, std::span<std::byte> destination) const {
  constexpr auto kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (offset > kMaxOffset || destination.size() > kMaxOffset - offset) {
    return Fail(ErrorCode::kUsage, "{}: read at offset {} is out of range", path_, offset);
  }
  std::size_t done = 0;
  while (done < destination.size()) {
    const std::size_t want = std::min(destination.size() - done, kMaxReadBytes);
    const ssize_t got =
        ::pread(descriptor_, destination.data() + done, want, static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      return Fail(ErrorCode::kIo, "{}, offset {}: {}", path_, offset + done, ErrnoText(errno));
    }
    if (got == 0) {
      return Fail(ErrorCode::kIo, "{}, offset {}: {} bytes expected, the file ended after {}",
                  path_, offset, destination.size(), done);
    }
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Result<MappedFile> MappedFile::Map(const RandomAccessFile& file) {
  if (file.size_bytes() == 0) return MappedFile(std::span<const std::byte>());
  if (file.size_bytes() > std::numeric_limits<std::size_t>::max()) {
    return Fail(ErrorCode::kUnsupported, "{}: {} bytes do not fit the address space", file.path(),
                file.size_bytes());
  }
  const auto size = static_cast<std::size_t>(file.size_bytes());
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    return Fail(ErrorCode::kIo, "{}: cannot map {} bytes: {}", file.path(), size, ErrnoText(errno));
  }
  return MappedFile({static_cast<const std::byte*>(address), size});
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  MEGALITH_ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
  return Map(file);  // the map outlives the descriptor
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, std::span<const std::byte>())) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

bool IsAbsent(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

Result<std::string> ReadTextFile(const std::string& path, std::uint64_t max_bytes) {
  MEGALITH_ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
  if (file.size_bytes() > max_bytes) {
    return Fail(ErrorCode::kBadFile, "{}: at most {} bytes expected, {} found", path, max_bytes,
                file.size_bytes());
  }
  std::string text(static_cast<std::size_t>(file.size_bytes()), '\0');
  MEGALITH_RETURN_IF_ERROR(
      file.ReadAt(0, std::as_writable_bytes(std::span<char>(text.data(), text.size()))));
  return text;
}

}  // namespace megalith
