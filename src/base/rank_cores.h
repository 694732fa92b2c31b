#pragma once

// Cores for each of several ranks that share a host.

#include <span>
#include <string>
#include <vector>

#include "base/topology.h"

namespace megalith {

/// What one rank may use, as it finds it.
struct RankHost {
  std::string host;         ///< equal for ranks whose CPU numbers mean the same CPUs
  std::string quota_group;  ///< equal for ranks that share Topology::cpu_quota
  std::vector<int> cpus;    ///< Topology::allowed_cpus
};

/// Of the process that calls it. kIo.
Result<RankHost> DescribeHost(const Topology& topology);

struct RankCores {
  Topology topology;  ///< with this rank's cores and CPUs alone, and its part of the quota
  /// Other ranks compute on the same CPUs: workers should not be pinned, and waits yield at once.
  bool shares_cpus = false;
};

/// The part of `topology`, which is that of rank `rank`, that is the rank's own; `ranks`: all of
/// the job. Ranks that the launcher has bound to CPUs that no other rank may use keep exactly
/// those. Others divide their cores evenly, in order, each in whole NUMA nodes, or several in one,
/// where numbers allow.
RankCores DivideCores(const Topology& topology, std::span<const RankHost> ranks, std::size_t rank);

}  // namespace megalith
