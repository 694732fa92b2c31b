#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"

namespace megalith::fabric {

/// Memory from mmap, owned: zero at first, taken from the machine page by page as it is touched.
class MemoryRegion {
 public:
  /// Of this process. kOutOfMemory.
  static Result<MemoryRegion> Private(std::size_t bytes);
  /// A part of a file made by SharedFile. `offset`: a multiple of the page size.
  static Result<MemoryRegion> Shared(int descriptor, std::size_t offset, std::size_t bytes);

  MemoryRegion() = default;
  MemoryRegion(MemoryRegion&& other) noexcept;
  MemoryRegion& operator=(MemoryRegion&& other) noexcept;
  ~MemoryRegion();

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A file descriptor, owned.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int number() const { return number_; }
  bool valid() const { return number_ >= 0; }

 private:
  int number_;
};

/// Shared memory without a name: it is gone with the last process that holds it, however that ends.
/// kIo with the system's reason.
Result<Descriptor> MakeSharedFile();
/// Makes it at least `bytes` long. Not with two callers at once.
Status GrowSharedFile(const Descriptor& file, std::size_t bytes);
/// Takes pages for a part of it from the machine now, so that a lack is an error here rather than a
/// signal later. kOutOfMemory.
Status ReserveShared(const Descriptor& file, std::size_t offset, std::size_t bytes);

}  // namespace megalith::fabric
