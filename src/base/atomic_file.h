#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace megalith {

/// kIo: the path, what happened, and the system's text for errno.
tl::unexpected<Error> SystemError(const std::string& path, std::string_view what);

/// All of `bytes` at byte `offset`. kIo with the path.
Status WriteFully(int descriptor, const std::string& path, std::uint64_t offset,
                  std::span<const std::byte> bytes);

/// What AtomicFile appends to a name until the file is complete.
inline constexpr std::string_view kPartSuffix = ".part";

/// A file that appears under its name complete and on the medium, or not at all. Until then it has
/// a temporary name, PATH.part, which no two writers have at once.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path)
      : path_(std::move(path)), temporary_(path_ + std::string(kPartSuffix)) {}
  /// Takes the temporary file away, if it was not committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Takes the space for `bytes`; the folder is created if its parent exists. kIo: no space, or the
  /// system's reason, with the path; kUsage: another process is writing it.
  Status Create(std::uint64_t bytes);

  /// Calls may overlap.
  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) const {
    return WriteFully(descriptor_, temporary_, offset, bytes);
  }

  Status Commit();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  bool is_mine_ = false;
};

/// Takes a temporary file away that a killed writer left behind; one that is being written stays.
void RemoveAbandonedPart(const std::string& part_path);

}  // namespace megalith
