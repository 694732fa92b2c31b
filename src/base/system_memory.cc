#include "base/system_memory.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "base/kernel_text.h"

namespace megalith {
namespace {

/// "always [madvise] never"
TransparentHugePages ReadTransparentMode(const std::string& folder) {
  const auto text = ReadKernelText(folder + "/enabled");
  if (!text) return TransparentHugePages::kAbsent;
  if (text->find("[always]") != std::string::npos) return TransparentHugePages::kAlways;
  if (text->find("[madvise]") != std::string::npos) return TransparentHugePages::kMadvise;
  return TransparentHugePages::kNever;
}

struct DirCloser {
  void operator()(DIR* dir) const { closedir(dir); }
};

std::vector<HugePagePool> ReadPools(const std::string& folder) {
  std::vector<HugePagePool> pools;
  const std::unique_ptr<DIR, DirCloser> dir(opendir(folder.c_str()));
  if (dir == nullptr) return pools;
  while (const dirent* entry = readdir(dir.get())) {
    constexpr std::string_view kPrefix = "hugepages-";
    const std::string name = entry->d_name;
    if (!name.starts_with(kPrefix)) continue;
    const auto kib = ParseNumber(std::string_view(name).substr(kPrefix.size()));
    const auto pages = ReadKernelNumber(folder + "/" + name + "/nr_hugepages");
    const auto free = ReadKernelNumber(folder + "/" + name + "/free_hugepages");
    // Reserved by mappings that have not touched them yet: free, but not for others.
    const auto reserved = ReadKernelNumber(folder + "/" + name + "/resv_hugepages");
    if (!kib || !pages || !free) continue;
    pools.push_back({*kib * 1024, *pages, *free - std::min(*free, reserved.value_or(0))});
  }
  std::sort(pools.begin(), pools.end(), [](const HugePagePool& a, const HugePagePool& b) {
    return a.page_bytes < b.page_bytes;
  });
  return pools;
}

}  // namespace

std::string_view TransparentHugePagesName(TransparentHugePages mode) {
  switch (mode) {
    case TransparentHugePages::kAbsent:
      return "absent";
    case TransparentHugePages::kNever:
      return "never";
    case TransparentHugePages::kMadvise:
      return "madvise";
    case TransparentHugePages::kAlways:
      return "always";
  }
  return "unknown";
}

MemoryStatus ReadMemoryStatus(const KernelFiles& files) {
  MemoryStatus status{};
  if (const auto meminfo = ReadKernelText(files.proc + "/meminfo")) {
    status.total_bytes = FindNumber(*meminfo, "MemTotal:").value_or(0) * 1024;
    status.free_bytes = FindNumber(*meminfo, "MemAvailable:").value_or(0) * 1024;
  }
  status.cgroup = ReadCgroupLimits(files);
  status.available_bytes = status.free_bytes;
  if (status.cgroup.memory_left_bytes) {
    status.available_bytes = std::min(status.available_bytes, *status.cgroup.memory_left_bytes);
  }
  status.page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::string mm = files.sys + "/kernel/mm";
  status.transparent_huge_pages = ReadTransparentMode(mm + "/transparent_hugepage");
  if (status.transparent_huge_pages != TransparentHugePages::kAbsent) {
    status.transparent_page_bytes =
        ReadKernelNumber(mm + "/transparent_hugepage/hpage_pmd_size").value_or(0);
  }
  status.pools = ReadPools(mm + "/hugepages");
  return status;
}

}  // namespace megalith
