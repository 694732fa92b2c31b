#include "base/rank_cores.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace megalith {
namespace {

std::string ReadLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::uint64_t NamespaceNumber(const char* path) {
  struct stat info {};
  return ::stat(path, &info) == 0 ? info.st_ino : 0;
}

bool Intersect(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&b](int cpu) { return std::binary_search(b.begin(), b.end(), cpu); });
}

/// The `index`th of `count` even parts.
std::span<const Core> Part(std::span<const Core> cores, std::size_t index, std::size_t count) {
  const std::size_t begin = index * cores.size() / count;
  return cores.subspan(begin, (index + 1) * cores.size() / count - begin);
}

/// The cores of each NUMA node, which are neighbours.
std::vector<std::span<const Core>> ByNode(std::span<const Core> cores) {
  std::vector<std::span<const Core>> nodes;
  while (!cores.empty()) {
    std::size_t size = 1;
    while (size < cores.size() && cores[size].numa_node == cores[0].numa_node) ++size;
    nodes.push_back(cores.first(size));
    cores = cores.subspan(size);
  }
  return nodes;
}

std::span<const Core> CoresOf(std::span<const Core> cores, std::size_t index, std::size_t count) {
  const auto nodes = ByNode(cores);
  const std::size_t num_nodes = nodes.size();
  if (num_nodes > 0 && num_nodes % count == 0) {
    // Nodes are neighbours, too.
    const std::size_t each = num_nodes / count;
    std::size_t begin = 0;
    std::size_t size = 0;
    for (std::size_t i = 0; i < (index + 1) * each; ++i) {
      (i < index * each ? begin : size) += nodes[i].size();
    }
    return cores.subspan(begin, size);
  }
  if (num_nodes > 0 && count % num_nodes == 0) {
    const std::size_t each = count / num_nodes;
    const bool all_fit = std::all_of(nodes.begin(), nodes.end(),
                                     [each](const auto& node) { return node.size() >= each; });
    if (all_fit) return Part(nodes[index / each], index % each, each);
  }
  return Part(cores, index, count);
}

void Keep(std::span<const Core> cores, Topology* topology) {
  std::vector<Core> kept(cores.begin(), cores.end());
  std::vector<int> cpus;
  for (const Core& core : kept) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  for (NumaNode& node : topology->numa_nodes) {
    std::erase_if(node.cpus,
                  [&cpus](int cpu) { return !std::binary_search(cpus.begin(), cpus.end(), cpu); });
  }
  topology->cores = std::move(kept);
  topology->allowed_cpus = std::move(cpus);
}

}  // namespace

Result<RankHost> DescribeHost(const Topology& topology) {
  RankHost host;
  host.host = ReadLine("/proc/sys/kernel/random/boot_id");
  if (host.host.empty()) {
    return Fail(ErrorCode::kIo, "/proc/sys/kernel/random/boot_id: cannot be read");
  }
  host.quota_group =
      fmt::format("{} {}", NamespaceNumber("/proc/self/ns/cgroup"), ReadLine("/proc/self/cgroup"));
  host.cpus = topology.allowed_cpus;
  return host;
}

RankCores DivideCores(const Topology& topology, std::span<const RankHost> ranks, std::size_t rank) {
  RankCores result{topology, false};
  const RankHost& mine = ranks[rank];
  std::size_t index = 0;
  std::size_t count = 0;
  std::size_t num_quota = 0;
  bool all_equal = true;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].host != mine.host) continue;
    if (ranks[i].quota_group == mine.quota_group) ++num_quota;
    if (!Intersect(ranks[i].cpus, mine.cpus)) continue;
    if (i < rank) ++index;
    ++count;
    all_equal = all_equal && ranks[i].cpus == mine.cpus;
  }
  if (num_quota > 0) result.topology.cpu_quota /= static_cast<double>(num_quota);
  if (count < 2) return result;
  // Sets that overlap in part cannot be divided without knowing which CPUs the others choose.
  result.shares_cpus = !all_equal || count > topology.cores.size();
  const std::span<const Core> all = topology.cores;
  if (count <= all.size()) {
    Keep(CoresOf(all, index, count), &result.topology);
  } else {
    Keep(all.subspan(index % all.size(), 1), &result.topology);
  }
  return result;
}

}  // namespace megalith
