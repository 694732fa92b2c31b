#include "bench/process_memory.h"

#include <cstdio>
#include <cstring>

namespace megalith::bench {

Result<ProcessMemory> ReadProcessMemory() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) {
    return Fail(ErrorCode::kIo, "/proc/self/status: {}", std::strerror(errno));
  }
  ProcessMemory memory;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    unsigned long long kib = 0;
    if (std::sscanf(line, "VmRSS: %llu kB", &kib) == 1) memory.resident_bytes = kib << 10;
    if (std::sscanf(line, "RssAnon: %llu kB", &kib) == 1) memory.anonymous_bytes = kib << 10;
    if (std::sscanf(line, "VmHWM: %llu kB", &kib) == 1) memory.peak_bytes = kib << 10;
  }
  std::fclose(file);
  return memory;
}

Status ResetPeakMemory() {
  std::FILE* file = std::fopen("/proc/self/clear_refs", "w");
  if (file == nullptr) {
    return Fail(ErrorCode::kIo, "/proc/self/clear_refs: {}", std::strerror(errno));
  }
  const bool written = std::fputs("5", file) >= 0;
  if (std::fclose(file) != 0 || !written) {
    return Fail(ErrorCode::kIo, "/proc/self/clear_refs: {}", std::strerror(errno));
  }
  return {};
}

}  // namespace megalith::bench
