#include "base/cgroup.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/system_memory.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

/// A folder that looks like /proc and /sys of another machine.
class KernelFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) /
            fmt::format("megalith_kernel_files_{}_{}", ::getpid(), test->name());
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  KernelFiles Files() const { return {(root_ / "proc").string(), (root_ / "sys").string()}; }

 private:
  fs::path root_;
};
using CgroupLimitsTest = KernelFilesTest;
using MemoryStatusTest = KernelFilesTest;

TEST_F(CgroupLimitsTest, NoControlGroupsMeansNoLimit) {
  const CgroupLimits limits = ReadCgroupLimits(Files());
  EXPECT_EQ(limits.version, 0);
  EXPECT_FALSE(limits.memory_bytes);
  EXPECT_FALSE(limits.cpus);
}

TEST_F(CgroupLimitsTest, Version2TakesTheTightestLevelAndForgivesCache) {
  Write("proc/self/cgroup", "0::/outer/inner\n");
  // The inner limit is smaller, but the outer group has less left.
  Write("sys/fs/cgroup/outer/inner/memory.max", "4000000\n");
  Write("sys/fs/cgroup/outer/inner/memory.current", "1000000\n");
  Write("sys/fs/cgroup/outer/memory.max", "5000000\n");
  Write("sys/fs/cgroup/outer/memory.current", "4600000\n");
  Write("sys/fs/cgroup/outer/memory.stat",
        "anon 4000000\nactive_file 100000\ninactive_file 200000\ninactive_file_other 7\n");
  Write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  const CgroupLimits limits = ReadCgroupLimits(Files());
  EXPECT_EQ(limits.version, 2);
  EXPECT_EQ(limits.memory_bytes, 5000000U);
  EXPECT_EQ(limits.memory_left_bytes, 5000000U - 4600000U + 300000U);
  EXPECT_EQ(limits.cpus, 1.5);
}

TEST_F(CgroupLimitsTest, Version2WithoutLimitsGivesNone) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "max\n");
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  const CgroupLimits limits = ReadCgroupLimits(Files());
  EXPECT_EQ(limits.version, 2);
  EXPECT_FALSE(limits.memory_bytes);
  EXPECT_FALSE(limits.cpus);
}

TEST_F(CgroupLimitsTest, ContainerWhoseGroupIsNotBelowTheMountUsesTheMount) {
  Write("proc/self/cgroup", "0::/docker/0123456789abcdef\n");
  Write("sys/fs/cgroup/memory.max", "1000\n");
  Write("sys/fs/cgroup/memory.current", "400\n");
  EXPECT_EQ(ReadCgroupLimits(Files()).memory_left_bytes, 600U);
}

TEST_F(CgroupLimitsTest, Version1ReadsMemoryAndQuota) {
  Write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n");
  Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000000\n");
  Write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "900000\n");
  Write("sys/fs/cgroup/memory/job/memory.stat",
        "active_file 1\ntotal_active_file 0\ntotal_inactive_file 400000\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  Write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const CgroupLimits limits = ReadCgroupLimits(Files());
  EXPECT_EQ(limits.version, 1);
  EXPECT_EQ(limits.memory_bytes, 2000000U);
  EXPECT_EQ(limits.memory_left_bytes, 1500000U);
  EXPECT_EQ(limits.cpus, 3.0);
}

TEST_F(CgroupLimitsTest, UsageAboveTheLimitLeavesNothing) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "1000\n");
  Write("sys/fs/cgroup/memory.current", "1500\n");
  EXPECT_EQ(ReadCgroupLimits(Files()).memory_left_bytes, 0U);
}

TEST_F(CgroupLimitsTest, GarbageCountsAsNoLimit) {
  Write("proc/self/cgroup", "\n:\n0:\nx::y\n0::/../..\n1:memory\n");
  Write("sys/fs/cgroup/memory.max", "lots\n");
  Write("sys/fs/cgroup/cpu.max", "10000\n");
  const CgroupLimits limits = ReadCgroupLimits(Files());
  EXPECT_FALSE(limits.memory_bytes);
  EXPECT_FALSE(limits.cpus);
}

TEST_F(MemoryStatusTest, AvailableIsTheLeastOfMachineAndGroup) {
  Write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n");
  EXPECT_EQ(ReadMemoryStatus(Files()).total_bytes, 1000U * 1024);
  EXPECT_EQ(ReadMemoryStatus(Files()).available_bytes, 800U * 1024);
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "409600\n");
  Write("sys/fs/cgroup/memory.current", "4096\n");
  EXPECT_EQ(ReadMemoryStatus(Files()).available_bytes, 405504U);
  EXPECT_EQ(ReadMemoryStatus(Files()).free_bytes, 800U * 1024);
}

TEST_F(MemoryStatusTest, HugePagesAreReadAsTheKernelWritesThem) {
  const std::string mm = "sys/kernel/mm/";
  EXPECT_EQ(ReadMemoryStatus(Files()).transparent_huge_pages, TransparentHugePages::kAbsent);
  EXPECT_TRUE(ReadMemoryStatus(Files()).pools.empty());
  Write(mm + "transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(ReadMemoryStatus(Files()).transparent_huge_pages, TransparentHugePages::kNever);
  Write(mm + "transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(ReadMemoryStatus(Files()).transparent_huge_pages, TransparentHugePages::kMadvise);
  Write(mm + "transparent_hugepage/enabled", "[always] madvise never\n");
  Write(mm + "transparent_hugepage/hpage_pmd_size", "2097152\n");
  Write(mm + "hugepages/hugepages-1048576kB/nr_hugepages", "1\n");
  Write(mm + "hugepages/hugepages-1048576kB/free_hugepages", "1\n");
  Write(mm + "hugepages/hugepages-2048kB/nr_hugepages", "10\n");
  Write(mm + "hugepages/hugepages-2048kB/free_hugepages", "7\n");
  Write(mm + "hugepages/hugepages-2048kB/resv_hugepages", "3\n");
  const MemoryStatus status = ReadMemoryStatus(Files());
  EXPECT_EQ(status.transparent_huge_pages, TransparentHugePages::kAlways);
  EXPECT_EQ(status.transparent_page_bytes, 2097152U);
  ASSERT_EQ(status.pools.size(), 2U);
  EXPECT_EQ(status.pools[0].page_bytes, 2097152U);
  EXPECT_EQ(status.pools[0].num_pages, 10U);
  EXPECT_EQ(status.pools[0].num_free, 4U);
  EXPECT_EQ(status.pools[1].page_bytes, 1073741824U);
}

TEST(MemoryStatus, ThisMachineHasMemory) {
  const MemoryStatus status = ReadMemoryStatus();
  EXPECT_GT(status.total_bytes, 0U);
  EXPECT_GT(status.available_bytes, 0U);
  EXPECT_LE(status.available_bytes, status.total_bytes);
  EXPECT_GT(status.page_bytes, 0U);
}

}  // namespace
}  // namespace megalith
