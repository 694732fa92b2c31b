#pragma once

// Reading files: positioned reads that any number of threads may do at once, and read-only memory
// maps.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace megalith {

/// A regular file opened for reading. Const after Open; reads may overlap in time.
class RandomAccessFile {
 public:
  /// Never waits, also not for the writer of a FIFO. kNotFound with the system's text when the path
  /// does not exist or cannot be opened (no permission, a loop of links); kBadFile when it is no
  /// regular file, saying what it is; kIo when the system lacks descriptors or the medium fails.
  static Result<RandomAccessFile> Open(const std::string& path);

  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&& other) noexcept;
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;
  ~RandomAccessFile();

  const std::string& path() const { return path_; }
  /// Size when it was opened.
  std::uint64_t size_bytes() const { return size_bytes_; }
  int descriptor() const { return descriptor_; }

  /// Fills all of `destination` from byte `offset`, or fails with kIo: a short read is an error.
  Status ReadAt(std::uint64_t offset, std::span<std::byte> destination) const;

 private:
  RandomAccessFile(std::string path, int descriptor, std::uint64_t size_bytes)
      : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
};

/// A whole file mapped read-only and shared: pages come from the page cache on first touch. The
/// file must not be cut short while it is mapped: touching a page past the new end raises SIGBUS.
class MappedFile {
 public:
  static Result<MappedFile> Map(const RandomAccessFile& file);
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// Starts at a page boundary. Empty for an empty file.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

/// Nothing is at `path`. False when something may be there that cannot be looked at: opening it
/// tells why.
bool IsAbsent(const std::string& path);

/// The whole file as text. Errors as RandomAccessFile; kBadFile when it is larger than `max_bytes`.
Result<std::string> ReadTextFile(const std::string& path, std::uint64_t max_bytes);

}  // namespace megalith
