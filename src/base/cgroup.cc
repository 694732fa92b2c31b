#include "base/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "base/kernel_text.h"

namespace megalith {
namespace {

/// Version 1 writes "no limit" as the largest page multiple.
constexpr std::uint64_t kUnlimitedBytes = std::uint64_t{1} << 60;

struct Names {
  const char* limit;
  const char* used;
  const char* active_cache;
  const char* inactive_cache;
};
// The "total_" keys count the children too, as the limit does.
constexpr Names kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file",
                             "total_inactive_file"};
constexpr Names kVersion2 = {"memory.max", "memory.current", "active_file", "inactive_file"};

/// The folder of a group below a mount, then those of its parents up to the mount itself. In a
/// container the group's path is often the host's and does not exist below the mount; the mount
/// itself is then the container's group.
std::vector<std::string> GroupFolders(const std::string& mount, std::string_view group) {
  std::vector<std::string> folders;
  while (!group.empty() && group != "/") {
    folders.push_back(fmt::format("{}/{}", mount, group));
    const std::size_t slash = group.rfind('/');
    group = slash == std::string_view::npos ? std::string_view() : group.substr(0, slash);
  }
  folders.push_back(mount);
  return folders;
}

void TightenMemory(const std::string& folder, const Names& names, CgroupLimits* limits) {
  const auto limit = ReadKernelNumber(folder + "/" + names.limit);
  if (!limit || *limit >= kUnlimitedBytes) return;
  const std::uint64_t used = ReadKernelNumber(folder + "/" + names.used).value_or(0);
  // File cache is charged to the group but given up when memory is needed.
  std::uint64_t cache = 0;
  if (const auto stat = ReadKernelText(folder + "/memory.stat")) {
    cache = FindNumber(*stat, names.active_cache).value_or(0) +
            FindNumber(*stat, names.inactive_cache).value_or(0);
  }
  const std::uint64_t firm = used - std::min(used, cache);
  const std::uint64_t left = *limit - std::min(*limit, firm);
  if (!limits->memory_left_bytes || left < *limits->memory_left_bytes) {
    limits->memory_bytes = limit;
    limits->memory_left_bytes = left;
  }
}

void TightenCpus(std::optional<std::uint64_t> quota, std::optional<std::uint64_t> period,
                 CgroupLimits* limits) {
  if (!quota || !period || *period == 0) return;
  const double cpus = static_cast<double>(*quota) / static_cast<double>(*period);
  if (!limits->cpus || cpus < *limits->cpus) limits->cpus = cpus;
}

/// "100000 100000" or "max 100000".
void TightenCpuMax(const std::string& path, CgroupLimits* limits) {
  const auto text = ReadKernelText(path);
  if (!text) return;
  const std::size_t blank = text->find(' ');
  if (blank == std::string::npos) return;
  TightenCpus(ParseNumber(*text), ParseNumber(std::string_view(*text).substr(blank)), limits);
}

bool ListContains(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

CgroupLimits ReadCgroupLimits(const KernelFiles& files) {
  CgroupLimits limits{};
  const auto membership = ReadKernelText(files.proc + "/self/cgroup");
  if (!membership) return limits;
  const std::string root = files.sys + "/fs/cgroup";
  // Lines "hierarchy:controllers:path"; hierarchy 0 without controllers is version 2.
  std::string_view rest = *membership;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = line.substr(second + 1);
    if (controllers.empty()) {
      if (limits.version == 0) limits.version = 2;
      for (const std::string& folder : GroupFolders(root, group)) {
        TightenMemory(folder, kVersion2, &limits);
        TightenCpuMax(folder + "/cpu.max", &limits);
      }
    }
    if (ListContains(controllers, "memory")) {
      limits.version = 1;
      for (const std::string& folder : GroupFolders(root + "/memory", group)) {
        TightenMemory(folder, kVersion1, &limits);
      }
    }
    if (ListContains(controllers, "cpu")) {
      limits.version = 1;
      for (const std::string& folder : GroupFolders(root + "/cpu", group)) {
        // Version 1 writes "no quota" as -1, which is not a number here.
        TightenCpus(ReadKernelNumber(folder + "/cpu.cfs_quota_us"),
                    ReadKernelNumber(folder + "/cpu.cfs_period_us"), &limits);
      }
    }
  }
  return limits;
}

}  // namespace megalith
