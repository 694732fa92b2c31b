#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace megalith {

/// Which pages back an arena.
enum class HugePages : std::uint8_t {
  kOff,       ///< ordinary pages, also where the system would use huge ones by itself
  kMadvise,   ///< transparent huge pages, as far as the kernel finds them at first touch
  kReserved,  ///< only from the pool the administrator reserved (vm.nr_hugepages)
};
/// "off", "madvise", "reserved".
std::string_view HugePagesName(HugePages mode);
/// kUsage with the list of names otherwise.
Result<HugePages> ParseHugePages(std::string_view name);
/// kMadvise where the kernel honours it, else kOff.
HugePages PreferredHugePages();

/// What the kernel really gave, from /proc/self/smaps. Pages not yet touched count nowhere.
struct PageReport {
  std::uint64_t mapped_bytes;    ///< the whole arena
  std::uint64_t resident_bytes;  ///< touched so far, huge pages included
  std::uint64_t huge_bytes;      ///< of these, on huge pages of either kind
};

/// One region of zeroed memory, owned; the space before and after it is inaccessible, so that an
/// overrun by more than the rounding to whole pages faults. Its pages are placed on the NUMA node
/// of the thread that first touches them. Movable, not copyable; the address stays the same when
/// moved.
class Arena {
 public:
  /// Start of every arena is a multiple of this, also with ordinary pages.
  static constexpr std::size_t kAlignmentBytes = std::size_t{2} << 20;

  /// Reserves `bytes` (> 0) rounded up to whole pages of the kind; nothing is touched. Errors:
  /// kOutOfMemory if the machine or its control group has less left, or the pool has fewer free
  /// pages (both with sizes); kUnsupported if kMadvise is asked for where it would have no effect;
  /// kUsage for 0 bytes.
  static Result<Arena> Allocate(std::size_t bytes, HugePages mode);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return bytes_; }  ///< as asked for
  HugePages mode() const { return mode_; }

  /// kIo if smaps cannot be read or lacks the arena, e.g. because a part of it was unmapped or
  /// protected by others.
  Result<PageReport> Report() const;

 private:
  void Release();

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t mapped_bytes_ = 0;
  HugePages mode_ = HugePages::kOff;
  // The arena and the inaccessible space around it.
  std::byte* reservation_ = nullptr;
  std::size_t reservation_bytes_ = 0;
};

}  // namespace megalith
