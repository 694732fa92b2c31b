#include "base/read_probe.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/affinity.h"
#include "base/align.h"
#include "base/clock.h"

namespace megalith {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kMaxStreams = 8;
// Each thread's part is a multiple of this, so that every number of streams divides it.
constexpr std::size_t kPartMultiple = std::size_t{4096} * kMaxStreams;
constexpr std::size_t kWarmUpBytes = std::size_t{16} << 20;

using Vector = std::uint64_t __attribute__((vector_size(16)));

template <std::size_t kStreams, bool kPrefetch>
std::uint64_t Sum(const std::byte* part, std::size_t bytes, std::size_t prefetch_bytes) {
  const std::size_t piece = bytes / kStreams;
  Vector sums[kStreams][2] = {};
  for (std::size_t at = 0; at < piece; at += kLineBytes) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* line_address = part + stream * piece + at;
      if constexpr (kPrefetch) __builtin_prefetch(line_address + prefetch_bytes, 0, 3);
      Vector line[4];
      std::memcpy(line, line_address, kLineBytes);
      sums[stream][0] += line[0] + line[1];
      sums[stream][1] += line[2] + line[3];
    }
  }
  Vector total{};
  for (const auto& sum : sums) total += sum[0] + sum[1];
  return total[0] + total[1];
}

using SumFunction = std::uint64_t (*)(const std::byte*, std::size_t, std::size_t);

template <bool kPrefetch>
SumFunction Find(int streams) {
  switch (streams) {
    case 1:
      return Sum<1, kPrefetch>;
    case 2:
      return Sum<2, kPrefetch>;
    case 4:
      return Sum<4, kPrefetch>;
    case 8:
      return Sum<8, kPrefetch>;
    default:
      return nullptr;
  }
}

class Probe : public ReadProbe {
 public:
  Probe(const ReadProbeOptions& options, Arena arena, std::size_t part_bytes)
      : options_(options),
        arena_(std::move(arena)),
        part_bytes_(part_bytes),
        statuses_(static_cast<std::size_t>(options.num_threads)),
        barrier_(options.num_threads, Turn{this}) {}

  ~Probe() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Status StartThreads() {
    for (std::size_t i = 0; i < statuses_.size(); ++i) {
      threads_.emplace_back([this, i] { Work(i); });
    }
    AwaitIdle();
    for (Status& status : statuses_) MEGALITH_RETURN_IF_ERROR(std::move(status));
    return {};
  }

  Result<std::vector<double>> Read(const ReadMethod& method, int num_passes) override {
    const SumFunction sum = method.prefetch_bytes > 0 ? Find<true>(method.num_streams)
                                                      : Find<false>(method.num_streams);
    if (sum == nullptr || num_passes < 1) {
      return Fail(ErrorCode::kUsage, "read probe: 1, 2, 4 or 8 streams expected, {} given",
                  method.num_streams);
    }
    {
      const std::lock_guard lock(mutex_);
      sum_ = sum;
      prefetch_bytes_ = static_cast<std::size_t>(std::max<std::int64_t>(method.prefetch_bytes, 0));
      pass_seconds_.assign(static_cast<std::size_t>(num_passes) + 1, 0.0);
      turns_ = 0;
      num_idle_ = 0;
      ++generation_;
    }
    wake_.notify_all();
    AwaitIdle();
    std::vector<double> rates;
    for (std::size_t pass = 1; pass < pass_seconds_.size(); ++pass) {
      rates.push_back(static_cast<double>(total_bytes()) / pass_seconds_[pass]);
    }
    return rates;
  }

  std::size_t total_bytes() const override { return part_bytes_ * statuses_.size(); }
  Result<PageReport> Pages() const override { return arena_.Report(); }

 private:
  /// Runs while all threads are at the barrier: ends one pass and starts the next.
  struct Turn {
    Probe* probe;
    void operator()() noexcept {
      const std::int64_t now = NowNs();
      if (probe->turns_ > 0) {
        probe->pass_seconds_[probe->turns_ - 1] =
            static_cast<double>(now - probe->start_ns_) * 1e-9;
      }
      ++probe->turns_;
      probe->start_ns_ = NowNs();
    }
  };

  void AwaitIdle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return num_idle_ == statuses_.size(); });
  }

  void Work(std::size_t index) {
    if (!options_.cpus.empty()) statuses_[index] = PinThisThread(options_.cpus[index]);
    std::byte* part = arena_.data() + index * part_bytes_;
    std::memset(part, static_cast<int>(index + 1), part_bytes_);
    for (std::uint64_t seen = 0;; ++seen) {
      {
        std::unique_lock lock(mutex_);
        if (++num_idle_ == statuses_.size()) idle_.notify_all();
        wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
      }
      std::uint64_t sum = 0;
      for (std::size_t pass = 0; pass < pass_seconds_.size(); ++pass) {
        barrier_.arrive_and_wait();
        sum += sum_(part, pass == 0 ? std::min(part_bytes_, kWarmUpBytes) : part_bytes_,
                    prefetch_bytes_);
      }
      barrier_.arrive_and_wait();
      checksum_.fetch_add(sum, std::memory_order_relaxed);
    }
  }

  ReadProbeOptions options_;
  Arena arena_;
  std::size_t part_bytes_;
  std::vector<Status> statuses_;  // per thread, written before it is idle for the first time

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::size_t num_idle_ = 0;      // guarded by mutex_
  std::uint64_t generation_ = 0;  // same
  bool stop_ = false;             // same
  // Written under mutex_ while all threads are idle, read while they run.
  SumFunction sum_ = nullptr;
  std::size_t prefetch_bytes_ = 0;
  // Written by Turn, read after all threads are idle again.
  std::vector<double> pass_seconds_;
  std::size_t turns_ = 0;
  std::int64_t start_ns_ = 0;
  std::barrier<Turn> barrier_;
  std::atomic<std::uint64_t> checksum_{0};  // keeps the sums from being optimised away
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<ReadProbe>> ReadProbe::Start(const ReadProbeOptions& options) {
  if (options.num_threads < 1) {
    return Fail(ErrorCode::kUsage, "read probe: at least 1 thread expected, {} given",
                options.num_threads);
  }
  const auto num_threads = static_cast<std::size_t>(options.num_threads);
  if (!options.cpus.empty() && options.cpus.size() < num_threads) {
    return Fail(ErrorCode::kUsage, "read probe: {} threads but {} CPUs to pin them to", num_threads,
                options.cpus.size());
  }
  const std::size_t part_bytes =
      RoundUp(std::max<std::size_t>(options.total_bytes / num_threads, 1), kPartMultiple);
  MEGALITH_ASSIGN_OR_RETURN(Arena arena,
                            Arena::Allocate(part_bytes * num_threads, options.huge_pages));
  auto probe = std::make_unique<Probe>(options, std::move(arena), part_bytes);
  MEGALITH_RETURN_IF_ERROR(probe->StartThreads());
  return probe;
}

}  // namespace megalith
