#include "base/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/align.h"
#include "base/kernel_text.h"
#include "base/system_memory.h"
#include "base/units.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

namespace megalith {
namespace {

bool TransparentUsable(const MemoryStatus& memory) {
  return memory.transparent_huge_pages == TransparentHugePages::kMadvise ||
         memory.transparent_huge_pages == TransparentHugePages::kAlways;
}

/// Address range without access. Arenas lie inside one, with inaccessible space on both sides: an
/// overrun faults, and the kernel cannot merge two arenas into one mapping, so that smaps has one
/// entry for each.
class Reservation {
 public:
  static std::optional<Reservation> Make(std::size_t bytes) {
    void* address =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return std::nullopt;
    return Reservation(static_cast<std::byte*>(address), bytes);
  }
  Reservation(Reservation&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Reservation& operator=(Reservation&&) = delete;
  ~Reservation() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  std::byte* AlignedStart(std::size_t guard_bytes, std::size_t alignment) const {
    const auto address = std::bit_cast<std::uintptr_t>(data_) + guard_bytes;
    return data_ + (RoundUp(address, alignment) - std::bit_cast<std::uintptr_t>(data_));
  }
  void Disown() { data_ = nullptr; }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Reservation(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  std::size_t bytes_;
};

Status CheckFits(std::size_t bytes, const MemoryStatus& memory) {
  if (memory.total_bytes == 0 || bytes <= memory.available_bytes) return {};
  std::string group;
  if (memory.cgroup.memory_bytes) {
    group = fmt::format("; the control group allows {} and has {} left",
                        FormatBytes(*memory.cgroup.memory_bytes),
                        FormatBytes(*memory.cgroup.memory_left_bytes));
  }
  return Fail(ErrorCode::kOutOfMemory, "memory: {} needed, {} available (machine: {} of {}{})",
              FormatBytes(bytes), FormatBytes(memory.available_bytes),
              FormatBytes(memory.free_bytes), FormatBytes(memory.total_bytes), group);
}

/// The pool with the smallest pages that has enough of them.
Result<HugePagePool> ChoosePool(std::size_t bytes, const MemoryStatus& memory) {
  std::string found;
  for (const HugePagePool& pool : memory.pools) {
    if (CeilDiv<std::uint64_t>(bytes, pool.page_bytes) <= pool.num_free) return pool;
    found += fmt::format("{}{} free of {} pages of {}", found.empty() ? "" : ", ", pool.num_free,
                         pool.num_pages, FormatBytes(pool.page_bytes));
  }
  return Fail(ErrorCode::kOutOfMemory,
              "reserved huge pages: {} needed in one pool, found {}; reserve more with "
              "vm.nr_hugepages, or use madvise or off",
              FormatBytes(bytes), found.empty() ? "no pool" : found);
}

}  // namespace

std::string_view HugePagesName(HugePages mode) {
  switch (mode) {
    case HugePages::kOff:
      return "off";
    case HugePages::kMadvise:
      return "madvise";
    case HugePages::kReserved:
      return "reserved";
  }
  return "unknown";
}

Result<HugePages> ParseHugePages(std::string_view name) {
  for (const HugePages mode : {HugePages::kOff, HugePages::kMadvise, HugePages::kReserved}) {
    if (name == HugePagesName(mode)) return mode;
  }
  return Fail(ErrorCode::kUsage, "huge pages '{}': off, madvise or reserved expected", name);
}

HugePages PreferredHugePages() {
  return TransparentUsable(ReadMemoryStatus()) ? HugePages::kMadvise : HugePages::kOff;
}

Result<Arena> Arena::Allocate(std::size_t bytes, HugePages mode) {
  if (bytes == 0) return Fail(ErrorCode::kUsage, "arena: size is 0");
  // Leaves room to round up without overflow; no address space is larger.
  constexpr std::size_t kMaxBytes = std::size_t{1} << 48;
  const MemoryStatus memory = ReadMemoryStatus();
  std::size_t page_bytes = memory.page_bytes;
  int huge_flags = 0;
  if (mode == HugePages::kReserved) {
    MEGALITH_ASSIGN_OR_RETURN(const HugePagePool pool, ChoosePool(bytes, memory));
    page_bytes = pool.page_bytes;
    huge_flags = MAP_HUGETLB | std::countr_zero(pool.page_bytes) << MAP_HUGE_SHIFT;
  } else {
    MEGALITH_RETURN_IF_ERROR(CheckFits(bytes, memory));
  }
  if (mode == HugePages::kMadvise) {
    if (!TransparentUsable(memory)) {
      return Fail(ErrorCode::kUnsupported,
                  "huge pages 'madvise': transparent huge pages are '{}' on this system "
                  "(/sys/kernel/mm/transparent_hugepage/enabled); use off or reserved",
                  TransparentHugePagesName(memory.transparent_huge_pages));
    }
    // The last part of a page would stay on ordinary pages.
    page_bytes = kAlignmentBytes;
  }
  if (bytes > kMaxBytes) {
    return Fail(ErrorCode::kOutOfMemory, "arena: {} is more than an address space",
                FormatBytes(bytes));
  }

  const std::size_t mapped_bytes = RoundUp(bytes, page_bytes);
  const std::size_t alignment = std::max(page_bytes, kAlignmentBytes);
  const std::size_t guard_bytes = memory.page_bytes;
  const auto no_memory = [&](const char* call) {
    return Fail(ErrorCode::kOutOfMemory, "arena of {} ({} pages): {}: {}",
                FormatBytes(mapped_bytes), HugePagesName(mode), call, std::strerror(errno));
  };
  std::optional<Reservation> reservation =
      Reservation::Make(mapped_bytes + alignment + 2 * guard_bytes);
  if (!reservation) return no_memory("mmap");
  std::byte* start = reservation->AlignedStart(guard_bytes, alignment);
  void* mapped = mmap(start, mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | huge_flags, -1, 0);
  if (mapped == MAP_FAILED) return no_memory("mmap");

  Arena arena;
  arena.data_ = start;
  arena.bytes_ = bytes;
  arena.mapped_bytes_ = mapped_bytes;
  arena.mode_ = mode;
  arena.reservation_ = reservation->data();
  arena.reservation_bytes_ = reservation->bytes();
  reservation->Disown();
  if (mode == HugePages::kMadvise && madvise(start, mapped_bytes, MADV_HUGEPAGE) != 0) {
    return Fail(ErrorCode::kUnsupported, "huge pages 'madvise': madvise: {}", std::strerror(errno));
  }
  if (mode == HugePages::kOff) {
    // Fails only on kernels without huge pages, where they are off anyway.
    (void)madvise(start, mapped_bytes, MADV_NOHUGEPAGE);
  }
  return arena;
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  Release();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  reservation_ = std::exchange(other.reservation_, nullptr);
  reservation_bytes_ = std::exchange(other.reservation_bytes_, 0);
  mode_ = other.mode_;
  return *this;
}

Arena::~Arena() { Release(); }

void Arena::Release() {
  if (reservation_ == nullptr) return;
  munmap(reservation_, reservation_bytes_);
  reservation_ = nullptr;
}

Result<PageReport> Arena::Report() const {
  PageReport report{mapped_bytes_, 0, 0};
  if (data_ == nullptr) return report;
  const auto smaps = ReadKernelText("/proc/self/smaps");
  if (!smaps) return Fail(ErrorCode::kIo, "/proc/self/smaps: {}", std::strerror(errno));
  // The arena is one mapping: "start-end rwxp ..." followed by its "Key: value kB" lines.
  const std::string header = fmt::format("{:08x}-{:08x} ", std::bit_cast<std::uintptr_t>(data_),
                                         std::bit_cast<std::uintptr_t>(data_ + mapped_bytes_));
  std::size_t at = smaps->find(header);
  if (at == std::string::npos) {
    return Fail(ErrorCode::kIo, "/proc/self/smaps: no mapping {}found", header);
  }
  at += header.size();
  // Up to the next entry; VmFlags is the last line of each.
  const std::string_view entry =
      std::string_view(*smaps).substr(at, smaps->find("VmFlags", at) - at);
  const auto bytes = [&](std::string_view key) {
    return FindNumber(entry, key).value_or(0) * 1024;
  };
  const std::uint64_t reserved = bytes("Private_Hugetlb:") + bytes("Shared_Hugetlb:");
  report.resident_bytes = bytes("Rss:") + reserved;
  report.huge_bytes = bytes("AnonHugePages:") + reserved;
  return report;
}

}  // namespace megalith
