#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace megalith {

/// What the control groups of this process leave it, the tightest of all levels. Absent: no limit.
struct CgroupLimits {
  int version;                                ///< 2; 1 also if both are in use; 0 if there are none
  std::optional<std::uint64_t> memory_bytes;  ///< the limit of the level with the least left
  std::optional<std::uint64_t> memory_left_bytes;  ///< that limit less what is used and not cache
  std::optional<double> cpus;                      ///< CPU time per wall time, e.g. 1.5
};

/// Where the kernel shows its files; tests point this at a folder of their own.
struct KernelFiles {
  std::string proc = "/proc";
  std::string sys = "/sys";
};

/// Never fails: what cannot be read counts as no limit.
CgroupLimits ReadCgroupLimits(const KernelFiles& files = {});

}  // namespace megalith
