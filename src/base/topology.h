#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace megalith {

/// A physical core and its hardware threads, only those this process may use.
struct Core {
  std::vector<int> cpus;  ///< logical CPU numbers, ascending, at least one
  int numa_node;          ///< index into Topology::numa_nodes, -1 if not known
  int package;            ///< socket number
};

struct NumaNode {
  int os_index;
  std::uint64_t memory_bytes;  ///< of the machine, 0 if not known
  std::vector<int> cpus;       ///< allowed ones; may be empty
};

struct Cache {
  int level;  ///< 1 to 5
  bool instructions_only;
  std::uint64_t bytes;
  int line_bytes;        ///< 0 if not known
  int num_sharing_cpus;  ///< logical CPUs behind one, allowed or not
  int num_instances;     ///< over the allowed CPUs
};

struct Topology {
  std::vector<Core> cores;           ///< ordered by NUMA node, then position in the machine
  std::vector<NumaNode> numa_nodes;  ///< at least one
  std::vector<Cache> caches;         ///< one entry per kind, inner first
  std::vector<int> allowed_cpus;     ///< affinity mask and cpuset, ascending
  int num_packages;                  ///< sockets with allowed CPUs
  int num_machine_cores;             ///< physical cores of the machine, allowed or not
  int num_machine_cpus;              ///< logical CPUs of the machine
  double cpu_quota;                  ///< CPU time per wall time of the control group, 0: no limit

  /// Data or unified cache of that level, e.g. the size of L2 for tile planning; 0 if not known.
  std::uint64_t CacheBytes(int level) const;
};

/// What the machine offers this process: the affinity mask of the calling thread, cpusets and the
/// CPU quota of the control group. Errors: kIo if the system does not tell.
Result<Topology> DetectTopology();

/// How many workers to start if the user does not say: one for each allowed physical core, divided
/// by the ranks on this host, and not more than the CPU quota; at least 1.
int DefaultWorkers(const Topology& topology, int num_local_ranks = 1);

/// Where workers run.
struct WorkerPlacement {
  std::vector<int> cpus;    ///< logical CPU of each worker; empty: leave it to the system
  bool shares_cores;        ///< two workers on hardware threads of one core
  bool oversubscribed;      ///< more workers than allowed CPUs or than the quota: no pinning,
                            ///< waits should yield at once
  std::string description;  ///< one line for people
};

/// One worker for each physical core in order, then the second hardware thread of each core, and
/// so on. With more workers than CPUs nothing is pinned, since the system shares the cores out
/// better. num_workers >= 1.
WorkerPlacement PlaceWorkers(const Topology& topology, int num_workers);

}  // namespace megalith
