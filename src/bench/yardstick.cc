#include "bench/yardstick.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

namespace megalith::bench {
namespace {

constexpr int kPasses = 3;
/// Idle workers spin and yield for about 0.1 ms before they sleep; the probe needs their CPUs.
constexpr std::chrono::milliseconds kSettle{2};

}  // namespace

Result<MemoryYardstick> StartMemoryYardstick(int num_threads, const std::vector<int>& cpus,
                                             HugePages huge_pages, std::size_t total_bytes) {
  ReadProbeOptions options;
  options.num_threads = num_threads;
  options.cpus = cpus;
  options.total_bytes = total_bytes;
  options.huge_pages = huge_pages;
  MemoryYardstick yardstick;
  MEGALITH_ASSIGN_OR_RETURN(yardstick.probe, ReadProbe::Start(options));
  // The fastest pass decides: what else runs on the machine only ever takes away.
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (const ReadMethod& method : kYardstickMethods) {
      MEGALITH_ASSIGN_OR_RETURN(const std::vector<double> rates, yardstick.probe->Read(method, 1));
      if (rates.front() <= best) continue;
      best = rates.front();
      yardstick.method = method;
    }
  }
  yardstick.measure = [probe = yardstick.probe.get(),
                       method = yardstick.method]() -> Result<double> {
    std::this_thread::sleep_for(kSettle);
    MEGALITH_ASSIGN_OR_RETURN(std::vector<double> rates, probe->Read(method, kPasses));
    return Summarize(std::move(rates)).median;
  };
  return yardstick;
}

std::string Describe(const ReadMethod& method) {
  std::string text =
      fmt::format("{} stream{}", method.num_streams, method.num_streams == 1 ? "" : "s");
  if (method.prefetch_bytes > 0) text += fmt::format(", prefetch {} ahead", method.prefetch_bytes);
  return text;
}

}  // namespace megalith::bench
