#include "base/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/align.h"
#include "base/system_memory.h"

namespace megalith {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool IsAligned(const Arena& arena) {
  return std::bit_cast<std::uintptr_t>(arena.data()) % Arena::kAlignmentBytes == 0;
}

TEST(ArenaAllocate, OrdinaryPagesAreAlignedZeroedAndNotHuge) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, 5 * kMiB + 3}) {
    const auto arena = Arena::Allocate(bytes, HugePages::kOff);
    ASSERT_TRUE(arena) << arena.error().message;
    EXPECT_TRUE(IsAligned(*arena));
    EXPECT_EQ(arena->size_bytes(), bytes);
    for (std::size_t i = 0; i < bytes; i += 1021) {
      ASSERT_EQ(arena->data()[i], std::byte{0}) << i;
    }
    std::memset(arena->data(), 1, bytes);
    const auto report = arena->Report();
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->mapped_bytes, report->resident_bytes);
    EXPECT_EQ(report->huge_bytes, 0U);
  }
}

TEST(ArenaAllocate, MadviseReportsWhatTheKernelGaveOrIsRefused) {
  const TransparentHugePages system = ReadMemoryStatus().transparent_huge_pages;
  const auto arena = Arena::Allocate(3 * kMiB, HugePages::kMadvise);
  if (system == TransparentHugePages::kAbsent || system == TransparentHugePages::kNever) {
    ASSERT_FALSE(arena) << "a request without effect was accepted";
    EXPECT_EQ(arena.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(PreferredHugePages(), HugePages::kOff);
    return;
  }
  EXPECT_EQ(PreferredHugePages(), HugePages::kMadvise);
  ASSERT_TRUE(arena) << arena.error().message;
  EXPECT_TRUE(IsAligned(*arena));
  EXPECT_EQ(arena->Report()->resident_bytes, 0U);
  std::memset(arena->data(), 1, arena->size_bytes());
  const auto report = arena->Report();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->mapped_bytes, 4 * kMiB);
  EXPECT_GE(report->resident_bytes, 3 * kMiB);
  // How many huge pages are free is the machine's affair.
  EXPECT_EQ(report->huge_bytes % (2 * kMiB), 0U);
  EXPECT_LE(report->huge_bytes, report->mapped_bytes);
}

TEST(ArenaAllocate, ReservedPagesComeFromThePoolOrAreRefusedWithItsState) {
  std::uint64_t free_bytes = 0;
  for (const HugePagePool& pool : ReadMemoryStatus().pools) {
    free_bytes = std::max(free_bytes, pool.num_free * pool.page_bytes);
  }
  const auto arena = Arena::Allocate(kMiB, HugePages::kReserved);
  if (free_bytes == 0) {
    ASSERT_FALSE(arena);
    EXPECT_EQ(arena.error().code, ErrorCode::kOutOfMemory);
    EXPECT_NE(arena.error().message.find("vm.nr_hugepages"), std::string::npos);
    return;
  }
  ASSERT_TRUE(arena) << arena.error().message;
  std::memset(arena->data(), 1, arena->size_bytes());
  const auto report = arena->Report();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->huge_bytes, report->resident_bytes);
  EXPECT_GE(report->huge_bytes, kMiB);
}

TEST(ArenaAllocate, MoreThanTheMachineHasIsRefusedWithSizes) {
  const MemoryStatus memory = ReadMemoryStatus();
  ASSERT_GT(memory.total_bytes, 0U);
  const auto arena = Arena::Allocate(memory.total_bytes + kMiB, HugePages::kOff);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(arena.error().message.find("needed"), std::string::npos) << arena.error().message;
  EXPECT_NE(arena.error().message.find("available"), std::string::npos) << arena.error().message;
}

TEST(ArenaAllocate, SizesThatCannotBeAreRefused) {
  EXPECT_EQ(Arena::Allocate(0, HugePages::kOff).error().code, ErrorCode::kUsage);
  EXPECT_EQ(Arena::Allocate(SIZE_MAX, HugePages::kOff).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(Arena::Allocate(SIZE_MAX, HugePages::kReserved).error().code, ErrorCode::kOutOfMemory);
}

TEST(Arena, MovingKeepsTheAddressAndEmptiesTheSource) {
  auto first = Arena::Allocate(100, HugePages::kOff);
  ASSERT_TRUE(first);
  std::byte* const address = first->data();
  address[99] = std::byte{7};
  Arena second = std::move(*first);
  EXPECT_EQ(first->data(), nullptr);  // NOLINT(bugprone-use-after-move): the contract
  EXPECT_EQ(second.data(), address);
  second = Arena::Allocate(200, HugePages::kOff).value();
  EXPECT_NE(second.data(), nullptr);
  EXPECT_EQ(second.size_bytes(), 200U);
  EXPECT_EQ(Arena().Report()->mapped_bytes, 0U);
}

TEST(Arena, NeighboursAreReportedApart) {
  const auto first = Arena::Allocate(kMiB, HugePages::kOff);
  const auto second = Arena::Allocate(kMiB, HugePages::kOff);
  ASSERT_TRUE(first && second);
  std::memset(first->data(), 1, kMiB);
  EXPECT_EQ(first->Report()->resident_bytes, kMiB);
  EXPECT_EQ(second->Report()->resident_bytes, 0U);
}

TEST(ArenaDeathTest, OverrunIntoTheNextArenaFaults) {
  const std::size_t page_bytes = ReadMemoryStatus().page_bytes;
  const auto arena = Arena::Allocate(4096, HugePages::kOff);
  ASSERT_TRUE(arena);
  volatile std::byte* end = arena->data() + RoundUp(arena->size_bytes(), page_bytes);
  EXPECT_DEATH(*end = std::byte{1}, "");
  volatile std::byte* before = arena->data() - 1;
  EXPECT_DEATH(*before = std::byte{1}, "");
}

TEST(ParseHugePages, NamesRoundTripAndOthersAreRefused) {
  for (const HugePages mode : {HugePages::kOff, HugePages::kMadvise, HugePages::kReserved}) {
    EXPECT_EQ(ParseHugePages(HugePagesName(mode)).value(), mode);
  }
  for (const char* name : {"", "on", "OFF", "madvise "}) {
    EXPECT_EQ(ParseHugePages(name).error().code, ErrorCode::kUsage) << name;
  }
}

}  // namespace
}  // namespace megalith
