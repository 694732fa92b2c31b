#include "base/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <thread>

#include "base/affinity.h"
#include "base/align.h"
#include "base/arena.h"
#include "base/clock.h"

namespace megalith {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr int kStreamCounts[] = {1, 4, 8};
constexpr std::size_t kMaxStreams = 8;
// Each thread's part is a multiple of this, so that every number of streams divides it.
constexpr std::size_t kPartMultiple = std::size_t{4096} * kMaxStreams;

using Vector = std::uint64_t __attribute__((vector_size(16)));

/// Sum of `streams` pieces of one part, read side by side: the hardware prefetchers follow each,
/// and more lines are under way at once.
template <std::size_t kStreams>
std::uint64_t Sum(const std::byte* part, std::size_t bytes) {
  const std::size_t piece = bytes / kStreams;
  Vector sums[kStreams][2] = {};
  for (std::size_t at = 0; at < piece; at += kLineBytes) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      Vector line[4];
      std::memcpy(line, part + stream * piece + at, kLineBytes);
      sums[stream][0] += line[0] + line[1];
      sums[stream][1] += line[2] + line[3];
    }
  }
  Vector total{};
  for (const auto& sum : sums) total += sum[0] + sum[1];
  return total[0] + total[1];
}

std::uint64_t Sum(int streams, const std::byte* part, std::size_t bytes) {
  switch (streams) {
    case 1:
      return Sum<1>(part, bytes);
    case 4:
      return Sum<4>(part, bytes);
    default:
      return Sum<8>(part, bytes);
  }
}

struct Pass {
  int streams;
  double seconds;
};

}  // namespace

Result<BandwidthResult> MeasureReadBandwidth(const BandwidthOptions& options) {
  if (options.num_threads < 1 || options.num_passes < 1) {
    return Fail(ErrorCode::kUsage, "bandwidth: {} threads and {} passes; at least 1 each expected",
                options.num_threads, options.num_passes);
  }
  const auto num_threads = static_cast<std::size_t>(options.num_threads);
  if (!options.cpus.empty() && options.cpus.size() < num_threads) {
    return Fail(ErrorCode::kUsage, "bandwidth: {} threads but {} CPUs to pin them to", num_threads,
                options.cpus.size());
  }
  const std::size_t part_bytes =
      RoundUp(std::max<std::size_t>(options.total_bytes / num_threads, 1), kPartMultiple);
  MEGALITH_ASSIGN_OR_RETURN(const Arena arena,
                            Arena::Allocate(part_bytes * num_threads, PreferredHugePages()));

  std::vector<Pass> schedule;
  for (const int streams : kStreamCounts) {
    // The first of each kind is not counted: it warms up clocks and translations.
    for (int pass = 0; pass <= options.num_passes; ++pass) schedule.push_back({streams, 0});
  }
  std::vector<Status> statuses(num_threads);
  std::atomic<std::uint64_t> checksum{0};
  std::atomic<bool> stop{false};
  std::int64_t start_ns = 0;  // written and read only while all threads are at the barrier
  std::size_t step = 0;       // same
  // Completion of the step before pass p ends pass p - 1 and starts p.
  const auto turn = [&]() noexcept {
    const std::int64_t now = NowNs();
    if (step > 0) schedule[step - 1].seconds = static_cast<double>(now - start_ns) * 1e-9;
    ++step;
    if (options.cancel != nullptr && options.cancel->IsCancelled()) stop = true;
    start_ns = NowNs();
  };
  std::barrier barrier(static_cast<std::ptrdiff_t>(num_threads), turn);

  const auto work = [&](std::size_t index) {
    if (!options.cpus.empty()) statuses[index] = PinThisThread(options.cpus[index]);
    std::byte* part = arena.data() + index * part_bytes;
    std::memset(part, static_cast<int>(index + 1), part_bytes);
    std::uint64_t sum = 0;
    for (const Pass& pass : schedule) {
      barrier.arrive_and_wait();
      if (stop) break;
      sum += Sum(pass.streams, part, part_bytes);
    }
    barrier.arrive_and_wait();
    checksum += sum;
  };
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  for (std::size_t i = 0; i < num_threads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) MEGALITH_RETURN_IF_ERROR(status);
  MEGALITH_RETURN_IF_ERROR(CheckCancelled(options.cancel, "bandwidth"));

  BandwidthResult result{};
  result.total_bytes = part_bytes * num_threads;
  const auto rate = [&](double seconds) {
    return static_cast<double>(result.total_bytes) / seconds * 1e-9;
  };
  for (std::size_t first = 0; first < schedule.size();
       first += static_cast<std::size_t>(options.num_passes) + 1) {
    std::vector<double> seconds;
    for (int pass = 1; pass <= options.num_passes; ++pass) {
      seconds.push_back(schedule[first + static_cast<std::size_t>(pass)].seconds);
    }
    std::sort(seconds.begin(), seconds.end());
    if (rate(seconds.front()) <= result.best_gb_per_s) continue;
    result.best_gb_per_s = rate(seconds.front());
    result.median_gb_per_s = rate(seconds[seconds.size() / 2]);
    result.num_streams = schedule[first].streams;
  }
  if (const auto report = arena.Report()) {
    result.huge_pages = report->huge_bytes * 2 > report->resident_bytes;
  }
  return result;
}

}  // namespace megalith
