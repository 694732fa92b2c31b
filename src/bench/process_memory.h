#pragma once

#include <cstdint>

#include "base/result.h"

namespace megalith::bench {

/// Memory of this process, from /proc/self/status.
struct ProcessMemory {
  std::uint64_t resident_bytes = 0;   ///< now, mapped files included
  std::uint64_t anonymous_bytes = 0;  ///< now, without files: what nobody else could use
  std::uint64_t peak_bytes = 0;       ///< most resident since the start or the last reset
};
/// kIo.
Result<ProcessMemory> ReadProcessMemory();

/// Makes the peak start over at what is resident now. kIo where the kernel does not allow it.
Status ResetPeakMemory();

}  // namespace megalith::bench
