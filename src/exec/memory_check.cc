#include "exec/memory_check.h"

#include "base/system_memory.h"

namespace megalith::exec {

Status CheckMemory(std::string_view what, std::int64_t bytes) {
  const MemoryStatus memory = ReadMemoryStatus();
  if (memory.total_bytes == 0) return {};  // the system does not say
  if (static_cast<std::uint64_t>(bytes) > memory.available_bytes) {
    return Fail(ErrorCode::kOutOfMemory, "{}: {} bytes needed, {} available", what, bytes,
                memory.available_bytes);
  }
  return {};
}

}  // namespace megalith::exec
