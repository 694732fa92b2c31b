#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cgroup.h"

namespace megalith {

/// One pool of reserved huge pages (hugetlbfs).
struct HugePagePool {
  std::uint64_t page_bytes;
  std::uint64_t num_pages;
  std::uint64_t num_free;
};

/// The system's rule for transparent huge pages.
enum class TransparentHugePages : std::uint8_t {
  kAbsent,   ///< the kernel has none
  kNever,    ///< switched off, madvise has no effect
  kMadvise,  ///< on request
  kAlways,   ///< everywhere, unless refused with madvise
};
/// "absent", "never", "madvise", "always".
std::string_view TransparentHugePagesName(TransparentHugePages mode);

struct MemoryStatus {
  std::uint64_t total_bytes;  ///< MemTotal
  std::uint64_t free_bytes;   ///< MemAvailable: free plus what can be reclaimed
  CgroupLimits cgroup;
  std::uint64_t available_bytes;  ///< what this process may still take: the least of both
  std::uint64_t page_bytes;       ///< the ordinary page
  TransparentHugePages transparent_huge_pages;
  std::uint64_t transparent_page_bytes;  ///< 0 if absent
  std::vector<HugePagePool> pools;       ///< by page size, ascending
};

/// Reads /proc/meminfo, /sys/kernel/mm and the control groups. Never fails: without /proc/meminfo
/// the sizes are 0, and callers that check before allocating must not rely on them.
MemoryStatus ReadMemoryStatus(const KernelFiles& files = {});

}  // namespace megalith
