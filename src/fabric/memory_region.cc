#include "fabric/memory_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace megalith::fabric {
namespace {

Result<std::byte*> Map(std::size_t bytes, int flags, int descriptor, std::size_t offset) {
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, static_cast<off_t>(offset));
  if (address == MAP_FAILED) {
    return Fail(ErrorCode::kOutOfMemory, "mailboxes: mapping {}: {}", FormatBytes(bytes),
                std::strerror(errno));
  }
  return static_cast<std::byte*>(address);
}

}  // namespace

Result<MemoryRegion> MemoryRegion::Private(std::size_t bytes) {
  MemoryRegion region;
  MEGALITH_ASSIGN_OR_RETURN(region.data_,
                            Map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  region.bytes_ = bytes;
  return region;
}

Result<MemoryRegion> MemoryRegion::Shared(int descriptor, std::size_t offset, std::size_t bytes) {
  MemoryRegion region;
  MEGALITH_ASSIGN_OR_RETURN(region.data_, Map(bytes, MAP_SHARED, descriptor, offset));
  region.bytes_ = bytes;
  return region;
}

MemoryRegion::MemoryRegion(MemoryRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryRegion::~MemoryRegion() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Result<Descriptor> MakeSharedFile() {
  Descriptor file(::memfd_create("megalith", MFD_CLOEXEC));
  if (!file.valid()) {
    return Fail(ErrorCode::kIo, "shared memory between ranks: memfd_create: {}",
                std::strerror(errno));
  }
  return file;
}

Status GrowSharedFile(const Descriptor& file, std::size_t bytes) {
  struct stat info {};
  if (::fstat(file.number(), &info) != 0 ||
      (static_cast<std::size_t>(info.st_size) < bytes &&
       ::ftruncate(file.number(), static_cast<off_t>(bytes)) != 0)) {
    return Fail(ErrorCode::kIo, "shared memory between ranks of {}: {}", FormatBytes(bytes),
                std::strerror(errno));
  }
  return {};
}

Status ReserveShared(const Descriptor& file, std::size_t offset, std::size_t bytes) {
  int result = 0;
  do {
    result =
        ::posix_fallocate(file.number(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result == EINTR);
  if (result != 0) {
    return Fail(ErrorCode::kOutOfMemory, "mailboxes: taking {} of shared memory: {}",
                FormatBytes(bytes), std::strerror(result));
  }
  return {};
}

}  // namespace megalith::fabric
