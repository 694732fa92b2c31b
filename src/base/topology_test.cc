#include "base/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/affinity.h"

namespace megalith {
namespace {

/// `nodes` x `cores` x `threads`; CPU numbers run over all first threads, then all second ones.
Topology Machine(int nodes, int cores, int threads) {
  Topology machine{};
  for (int node = 0; node < nodes; ++node) {
    machine.numa_nodes.push_back({node, 0, {}});
    for (int core = 0; core < cores; ++core) {
      Core made{{}, node, node};
      for (int thread = 0; thread < threads; ++thread) {
        made.cpus.push_back((thread * nodes + node) * cores + core);
      }
      machine.cores.push_back(made);
    }
  }
  for (int cpu = 0; cpu < nodes * cores * threads; ++cpu) machine.allowed_cpus.push_back(cpu);
  machine.num_packages = nodes;
  machine.num_machine_cores = nodes * cores;
  machine.num_machine_cpus = nodes * cores * threads;
  return machine;
}

TEST(DetectTopology, CoresCoverExactlyTheAllowedCpus) {
  const auto topology = DetectTopology();
  ASSERT_TRUE(topology) << topology.error().message;
  std::vector<int> covered;
  for (const Core& core : topology->cores) {
    EXPECT_FALSE(core.cpus.empty());
    EXPECT_GE(core.numa_node, 0);
    EXPECT_LT(core.numa_node, std::ssize(topology->numa_nodes));
    covered.insert(covered.end(), core.cpus.begin(), core.cpus.end());
  }
  std::sort(covered.begin(), covered.end());
  EXPECT_EQ(covered, topology->allowed_cpus);
  EXPECT_EQ(topology->allowed_cpus, AllowedCpus().value());
  EXPECT_GE(topology->num_packages, 1);
  EXPECT_GE(topology->num_machine_cores, std::ssize(topology->cores));
}

TEST(DetectTopology, CachesGrowOutwards) {
  const auto topology = DetectTopology();
  ASSERT_TRUE(topology);
  for (const Cache& cache : topology->caches) {
    EXPECT_GT(cache.bytes, 0U);
    EXPECT_GE(cache.num_instances, 1);
  }
  if (topology->CacheBytes(1) > 0 && topology->CacheBytes(2) > 0) {
    EXPECT_LT(topology->CacheBytes(1), topology->CacheBytes(2));
  }
  EXPECT_EQ(topology->CacheBytes(9), 0U);
}

TEST(DetectTopology, AffinityMaskOfTheCallerIsHonoured) {
  const int cpu = AllowedCpus().value().back();
  std::thread([&] {
    ASSERT_TRUE(PinThisThread(cpu));
    const auto topology = DetectTopology();
    ASSERT_TRUE(topology) << topology.error().message;
    ASSERT_EQ(topology->cores.size(), 1U);
    EXPECT_EQ(topology->cores[0].cpus, std::vector<int>{cpu});
    EXPECT_EQ(DefaultWorkers(*topology), 1);
  }).join();
}

TEST(DefaultWorkers, IsThePhysicalCoresSharedByTheRanks) {
  EXPECT_EQ(DefaultWorkers(Machine(2, 8, 2)), 16);
  EXPECT_EQ(DefaultWorkers(Machine(2, 8, 2), 2), 8);
  EXPECT_EQ(DefaultWorkers(Machine(2, 8, 2), 3), 5);
  EXPECT_EQ(DefaultWorkers(Machine(1, 2, 1), 8), 1);
  EXPECT_EQ(DefaultWorkers(Machine(6, 1, 1)), 6);
}

TEST(DefaultWorkers, QuotaOfTheControlGroupLimits) {
  Topology machine = Machine(1, 8, 2);
  machine.cpu_quota = 3.5;
  EXPECT_EQ(DefaultWorkers(machine), 3);
  machine.cpu_quota = 0.25;
  EXPECT_EQ(DefaultWorkers(machine), 1);
  machine.cpu_quota = 100;
  EXPECT_EQ(DefaultWorkers(machine), 8);
}

TEST(PlaceWorkers, FillsCoresBeforeHardwareThreads) {
  const Topology machine = Machine(2, 2, 2);  // cores {0,4} {1,5} | {2,6} {3,7}
  EXPECT_EQ(PlaceWorkers(machine, 3).cpus, (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(PlaceWorkers(machine, 4).shares_cores);
  const WorkerPlacement six = PlaceWorkers(machine, 6);
  EXPECT_EQ(six.cpus, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(six.shares_cores);
  EXPECT_FALSE(six.oversubscribed);
  EXPECT_EQ(PlaceWorkers(machine, 8).cpus.size(), 8U);
}

TEST(PlaceWorkers, CoresWithDifferentNumbersOfThreadsAreAllUsed) {
  Topology machine = Machine(1, 3, 1);
  machine.cores[1].cpus = {1, 3, 4};
  machine.allowed_cpus = {0, 1, 2, 3, 4};
  EXPECT_EQ(PlaceWorkers(machine, 5).cpus, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(PlaceWorkers, MoreWorkersThanCpusAreNotPinnedAndReported) {
  const WorkerPlacement placement = PlaceWorkers(Machine(1, 2, 1), 3);
  EXPECT_TRUE(placement.oversubscribed);
  EXPECT_TRUE(placement.cpus.empty());
  EXPECT_NE(placement.description.find("OVERSUBSCRIBED"), std::string::npos)
      << placement.description;
}

TEST(PlaceWorkers, MoreWorkersThanTheQuotaAreReported) {
  Topology machine = Machine(1, 8, 1);
  machine.cpu_quota = 2.5;
  EXPECT_FALSE(PlaceWorkers(machine, 3).oversubscribed);
  EXPECT_TRUE(PlaceWorkers(machine, 4).oversubscribed);
  EXPECT_EQ(PlaceWorkers(machine, 4).cpus.size(), 4U);
}

}  // namespace
}  // namespace megalith
