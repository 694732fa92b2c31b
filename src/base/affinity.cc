#include "base/affinity.h"

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

namespace megalith {
namespace {

// The kernel wants a mask at least as large as its own, whose size is not published.
constexpr int kMaxMaskCpus = 1 << 20;

struct CpuSetDeleter {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

struct CpuSet {
  explicit CpuSet(int cpus)
      : num_cpus(cpus),
        bytes(CPU_ALLOC_SIZE(cpus)),
        set(CPU_ALLOC(static_cast<std::size_t>(cpus))) {
    if (set != nullptr) CPU_ZERO_S(bytes, set.get());
  }
  int num_cpus;
  std::size_t bytes;
  std::unique_ptr<cpu_set_t, CpuSetDeleter> set;
};

}  // namespace

Result<std::vector<int>> AllowedCpus() {
  for (int num_cpus = 1024; num_cpus <= kMaxMaskCpus; num_cpus *= 4) {
    CpuSet mask(num_cpus);
    if (mask.set == nullptr) return Fail(ErrorCode::kOutOfMemory, "CPU mask of {} bits", num_cpus);
    if (sched_getaffinity(0, mask.bytes, mask.set.get()) != 0) {
      if (errno == EINVAL) continue;
      return Fail(ErrorCode::kIo, "sched_getaffinity: {}", std::strerror(errno));
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < num_cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), mask.bytes, mask.set.get())) {
        cpus.push_back(cpu);
      }
    }
    return cpus;
  }
  return Fail(ErrorCode::kIo, "sched_getaffinity: a mask of {} CPUs is too small", kMaxMaskCpus);
}

Status SetThisThreadCpus(const std::vector<int>& cpus) {
  int num_cpus = 1024;
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= kMaxMaskCpus) {
      return Fail(ErrorCode::kUsage, "pin thread: there is no CPU {}", cpu);
    }
    while (cpu >= num_cpus) num_cpus *= 4;
  }
  CpuSet mask(num_cpus);
  if (mask.set == nullptr) return Fail(ErrorCode::kOutOfMemory, "CPU mask of {} bits", num_cpus);
  for (const int cpu : cpus) {
    CPU_SET_S(static_cast<std::size_t>(cpu), mask.bytes, mask.set.get());
  }
  if (sched_setaffinity(0, mask.bytes, mask.set.get()) != 0) {
    if (errno == EINVAL) {
      return Fail(ErrorCode::kUsage, "pin thread: none of CPUs [{}] exists or is allowed here",
                  fmt::format("{}", fmt::join(cpus, ", ")));
    }
    return Fail(ErrorCode::kIo, "sched_setaffinity: {}", std::strerror(errno));
  }
  return {};
}

Status PinThisThread(int cpu) { return SetThisThreadCpus({cpu}); }

}  // namespace megalith
