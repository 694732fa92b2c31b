#include "base/rank_cores.h"

#include <gtest/gtest.h>

#include <set>

namespace megalith {
namespace {

/// One thread to a core; CPU numbers in order of the nodes, which have so many cores each.
Topology Machine(const std::vector<int>& cores_of_node) {
  Topology machine{};
  int cpu = 0;
  for (int node = 0; node < std::ssize(cores_of_node); ++node) {
    machine.numa_nodes.push_back({node, 0, {}});
    for (int i = 0; i < cores_of_node[static_cast<std::size_t>(node)]; ++i, ++cpu) {
      machine.cores.push_back({{cpu}, node, node});
      machine.numa_nodes.back().cpus.push_back(cpu);
      machine.allowed_cpus.push_back(cpu);
    }
  }
  machine.num_packages = static_cast<int>(cores_of_node.size());
  machine.num_machine_cores = machine.num_machine_cpus = cpu;
  return machine;
}

/// CPUs of each rank when all may use the whole machine.
std::vector<std::vector<int>> Divide(const Topology& machine, std::size_t num_ranks) {
  const std::vector<RankHost> ranks(num_ranks, RankHost{"a", "q", machine.allowed_cpus});
  std::vector<std::vector<int>> cpus;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    const RankCores mine = DivideCores(machine, ranks, rank);
    EXPECT_EQ(mine.shares_cpus, num_ranks > machine.cores.size());
    cpus.push_back(mine.topology.allowed_cpus);
  }
  return cpus;
}

using Cpus = std::vector<std::vector<int>>;

TEST(DivideCores, TakesWholeNodesOrPartsOfOne) {
  EXPECT_EQ(Divide(Machine({2, 4}), 2), (Cpus{{0, 1}, {2, 3, 4, 5}}));
  EXPECT_EQ(Divide(Machine({2, 2, 2, 2}), 2), (Cpus{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(Divide(Machine({2, 4}), 4), (Cpus{{0}, {1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(Divide(Machine({4, 4}), 3), (Cpus{{0, 1}, {2, 3, 4}, {5, 6, 7}}));
  EXPECT_EQ(Divide(Machine({1, 5}), 4), (Cpus{{0}, {1, 2}, {3}, {4, 5}}));
  EXPECT_EQ(Divide(Machine({8}), 1), (Cpus{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(DivideCores, GivesEveryCoreToOneRank) {
  for (const auto& nodes : std::vector<std::vector<int>>{{7}, {3, 8}, {4, 4, 4}, {16, 16}}) {
    const Topology machine = Machine(nodes);
    for (std::size_t num_ranks = 1; num_ranks <= machine.cores.size(); ++num_ranks) {
      std::set<int> seen;
      for (const auto& cpus : Divide(machine, num_ranks)) {
        EXPECT_FALSE(cpus.empty());
        for (const int cpu : cpus) EXPECT_TRUE(seen.insert(cpu).second) << cpu;
      }
      EXPECT_EQ(seen.size(), machine.cores.size());
    }
  }
}

TEST(DivideCores, SharesWhatIsTooFew) {
  EXPECT_EQ(Divide(Machine({2}), 4), (Cpus{{0}, {1}, {0}, {1}}));
}

TEST(DivideCores, KeepsWhatALauncherHasBound) {
  const Topology machine = Machine({4, 4});
  const std::vector<RankHost> ranks = {{"a", "q", {0, 1}}, {"a", "q", {2, 3, 4}}};
  Topology bound = machine;
  bound.cores.erase(bound.cores.begin() + 5, bound.cores.end());
  bound.cores.erase(bound.cores.begin(), bound.cores.begin() + 2);
  bound.allowed_cpus = ranks[1].cpus;
  bound.cpu_quota = 3.0;
  const RankCores mine = DivideCores(bound, ranks, 1);
  EXPECT_EQ(mine.topology.allowed_cpus, ranks[1].cpus);
  EXPECT_EQ(mine.topology.cores.size(), 3u);
  EXPECT_FALSE(mine.shares_cpus);
  EXPECT_EQ(mine.topology.cpu_quota, 1.5);
}

TEST(DivideCores, HostsAndQuotasAreApart) {
  Topology machine = Machine({4});
  machine.cpu_quota = 3.0;
  const std::vector<int>& all = machine.allowed_cpus;
  const std::vector<RankHost> ranks = {
      {"a", "x", all}, {"b", "x", all}, {"b", "y", all}, {"a", "x", all}};
  const RankCores mine = DivideCores(machine, ranks, 3);
  EXPECT_EQ(mine.topology.allowed_cpus, (std::vector<int>{2, 3}));
  EXPECT_EQ(mine.topology.numa_nodes[0].cpus, (std::vector<int>{2, 3}));
  EXPECT_EQ(mine.topology.cpu_quota, 1.5);
  EXPECT_EQ(DivideCores(machine, ranks, 1).topology.cpu_quota, 3.0);
  EXPECT_EQ(DefaultWorkers(mine.topology), 1);
}

TEST(DivideCores, SetsThatOverlapInPartAreNotPinned) {
  const Topology machine = Machine({4});
  const std::vector<RankHost> ranks = {{"a", "q", machine.allowed_cpus}, {"a", "q", {3}}};
  const RankCores mine = DivideCores(machine, ranks, 0);
  EXPECT_TRUE(mine.shares_cpus);
  EXPECT_EQ(mine.topology.cores.size(), 2u);
}

TEST(DescribeHost, IsTheSameTwice) {
  const Topology topology = DetectTopology().value();
  const auto host = DescribeHost(topology);
  ASSERT_TRUE(host) << host.error().message;
  EXPECT_FALSE(host->host.empty());
  EXPECT_EQ(host->host, DescribeHost(topology)->host);
  EXPECT_EQ(host->cpus, topology.allowed_cpus);
}

}  // namespace
}  // namespace megalith
