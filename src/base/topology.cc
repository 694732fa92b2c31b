// The only file that knows hwloc.
#include "base/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <type_traits>

#include "base/affinity.h"
#include "base/cgroup.h"

namespace megalith {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using TopologyPtr = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyDeleter>;

Result<TopologyPtr> Load() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Fail(ErrorCode::kIo, "topology: hwloc_topology_init");
  TopologyPtr topology(raw);
  // Machine-wide: what this process may use is read from the affinity mask below.
  if (hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) != 0 ||
      hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
      hwloc_topology_set_icache_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
      hwloc_topology_load(raw) != 0) {
    return Fail(ErrorCode::kIo, "topology: hwloc cannot read this machine");
  }
  return topology;
}

/// The logical CPUs of a set that are allowed, ascending.
std::vector<int> AllowedIn(hwloc_const_cpuset_t set, const std::vector<int>& allowed) {
  std::vector<int> cpus;
  for (const int cpu : allowed) {
    if (hwloc_bitmap_isset(set, static_cast<unsigned>(cpu)) != 0) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<NumaNode> ReadNumaNodes(hwloc_topology_t topology, const std::vector<int>& allowed) {
  std::vector<NumaNode> nodes;
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    nodes.push_back({static_cast<int>(node->os_index), node->attr->numanode.local_memory,
                     AllowedIn(node->cpuset, allowed)});
  }
  return nodes;
}

int NodeOf(int cpu, const std::vector<NumaNode>& nodes) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (std::binary_search(nodes[i].cpus.begin(), nodes[i].cpus.end(), cpu)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<Core> ReadCores(hwloc_topology_t topology, const std::vector<int>& allowed,
                            const std::vector<NumaNode>& nodes) {
  std::vector<Core> cores;
  std::vector<bool> covered(allowed.size(), false);
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, object)) != nullptr) {
    std::vector<int> cpus = AllowedIn(object->cpuset, allowed);
    if (cpus.empty()) continue;
    for (const int cpu : cpus) {
      const auto at = std::lower_bound(allowed.begin(), allowed.end(), cpu) - allowed.begin();
      covered[static_cast<std::size_t>(at)] = true;
    }
    const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, object);
    const int node = NodeOf(cpus.front(), nodes);
    cores.push_back(
        {std::move(cpus), node, package == nullptr ? 0 : static_cast<int>(package->os_index)});
  }
  // Systems that hide their cores: each CPU counts as one.
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (!covered[i]) cores.push_back({{allowed[i]}, NodeOf(allowed[i], nodes), 0});
  }
  std::stable_sort(cores.begin(), cores.end(),
                   [](const Core& a, const Core& b) { return a.numa_node < b.numa_node; });
  return cores;
}

std::vector<Cache> ReadCaches(hwloc_topology_t topology, const std::vector<int>& allowed) {
  constexpr hwloc_obj_type_t kTypes[] = {HWLOC_OBJ_L1CACHE,  HWLOC_OBJ_L1ICACHE, HWLOC_OBJ_L2CACHE,
                                         HWLOC_OBJ_L2ICACHE, HWLOC_OBJ_L3CACHE,  HWLOC_OBJ_L3ICACHE,
                                         HWLOC_OBJ_L4CACHE,  HWLOC_OBJ_L5CACHE};
  std::vector<Cache> caches;
  for (const hwloc_obj_type_t type : kTypes) {
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) {
      if (AllowedIn(object->cpuset, allowed).empty()) continue;
      const auto& cache = object->attr->cache;
      const Cache found{static_cast<int>(cache.depth),
                        cache.type == HWLOC_OBJ_CACHE_INSTRUCTION,
                        cache.size,
                        std::max(0, static_cast<int>(cache.linesize)),
                        hwloc_bitmap_weight(object->cpuset),
                        1};
      // Machines with two sorts of core have two sizes of one level.
      const auto same = std::find_if(caches.begin(), caches.end(), [&](const Cache& other) {
        return other.level == found.level && other.instructions_only == found.instructions_only &&
               other.bytes == found.bytes && other.num_sharing_cpus == found.num_sharing_cpus;
      });
      if (same == caches.end()) {
        caches.push_back(found);
      } else {
        ++same->num_instances;
      }
    }
  }
  return caches;
}

}  // namespace

std::uint64_t Topology::CacheBytes(int level) const {
  // Of several sizes the smallest: a plan for it fits everywhere.
  std::uint64_t bytes = 0;
  for (const Cache& cache : caches) {
    if (cache.level != level || cache.instructions_only) continue;
    bytes = bytes == 0 ? cache.bytes : std::min(bytes, cache.bytes);
  }
  return bytes;
}

Result<Topology> DetectTopology() {
  MEGALITH_ASSIGN_OR_RETURN(const TopologyPtr loaded, Load());
  Topology result{};
  MEGALITH_ASSIGN_OR_RETURN(result.allowed_cpus, AllowedCpus());
  result.numa_nodes = ReadNumaNodes(loaded.get(), result.allowed_cpus);
  result.cores = ReadCores(loaded.get(), result.allowed_cpus, result.numa_nodes);
  result.caches = ReadCaches(loaded.get(), result.allowed_cpus);
  std::vector<int> packages;
  for (const Core& core : result.cores) packages.push_back(core.package);
  std::sort(packages.begin(), packages.end());
  result.num_packages =
      static_cast<int>(std::unique(packages.begin(), packages.end()) - packages.begin());
  result.num_machine_cpus = std::max(hwloc_get_nbobjs_by_type(loaded.get(), HWLOC_OBJ_PU),
                                     static_cast<int>(result.allowed_cpus.size()));
  result.num_machine_cores = std::max(hwloc_get_nbobjs_by_type(loaded.get(), HWLOC_OBJ_CORE),
                                      static_cast<int>(result.cores.size()));
  result.cpu_quota = ReadCgroupLimits().cpus.value_or(0);
  return result;
}

int DefaultWorkers(const Topology& topology, int num_local_ranks) {
  int workers = static_cast<int>(topology.cores.size());
  if (topology.cpu_quota > 0) {
    // Spinning beyond the quota gets the whole process stopped for the rest of each period.
    workers = std::min(workers, static_cast<int>(std::min(topology.cpu_quota, 1e6)));
  }
  return std::max(1, workers / std::max(1, num_local_ranks));
}

WorkerPlacement PlaceWorkers(const Topology& topology, int num_workers) {
  WorkerPlacement placement{};
  const int num_cpus = static_cast<int>(topology.allowed_cpus.size());
  const int num_cores = static_cast<int>(topology.cores.size());
  const bool over_quota =
      topology.cpu_quota > 0 && num_workers > std::max(1.0, std::ceil(topology.cpu_quota));
  placement.shares_cores = num_workers > num_cores;
  placement.oversubscribed = num_workers > num_cpus || over_quota;
  if (num_workers <= num_cpus) {
    for (std::size_t sibling = 0; std::ssize(placement.cpus) < num_workers; ++sibling) {
      for (const Core& core : topology.cores) {
        if (sibling < core.cpus.size() && std::ssize(placement.cpus) < num_workers) {
          placement.cpus.push_back(core.cpus[sibling]);
        }
      }
    }
  }
  placement.description =
      fmt::format("{} worker{} on {} core{} ({} CPUs{})", num_workers, num_workers == 1 ? "" : "s",
                  num_cores, num_cores == 1 ? "" : "s", num_cpus,
                  topology.cpu_quota > 0 ? fmt::format(", quota {:.2f}", topology.cpu_quota) : "");
  if (placement.oversubscribed) {
    placement.description += over_quota ? ", OVERSUBSCRIBED: more workers than the CPU quota"
                                        : ", OVERSUBSCRIBED: more workers than CPUs, not pinned";
  } else if (placement.shares_cores) {
    placement.description += ", sharing cores between hardware threads";
  } else {
    placement.description += ", pinned one to a core";
  }
  return placement;
}

}  // namespace megalith
