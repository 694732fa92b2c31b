#include "bench/multiply_rate.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>

#include "base/affinity.h"
#include "base/clock.h"
#include "bench/multiply_loops.h"

namespace megalith::bench {
namespace {

using kernels::Isa;

constexpr double kSeconds = 0.02;
constexpr std::int64_t kIterations = 20'000;  // about 0.1 ms: between two looks at the clock

struct Instruction {
  std::string_view name;
  MultiplyLoop loop;
};

Instruction InstructionOf(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return {"mulps, addps", MultiplyPortable};
    case Isa::kAvx2:
      return {"vfmadd ymm", MultiplyAvx2};
    case Isa::kAvx512:
      return {"vfmadd zmm", MultiplyAvx512};
    case Isa::kAvx512Bf16:
      return {"vdpbf16ps zmm", MultiplyAvx512Bf16};
    case Isa::kAmx:
      return {"tdpbf16ps", MultiplyAmx};
    case Isa::kAmxEmulated:
      return {"vfmadd zmm", MultiplyAvx512};
  }
  return {"mulps, addps", MultiplyPortable};
}

/// Operations per second of the calling thread.
double Measure(MultiplyLoop loop) {
  float sink = 0.0f;
  loop(kIterations, &sink);  // wakes the clocks up
  double operations = 0.0;
  const std::int64_t start = NowNs();
  do {
    operations += loop(kIterations, &sink);
  } while (SecondsSince(start) < kSeconds);
  const double rate = operations / SecondsSince(start);
  asm volatile("" : : "m"(sink));
  return rate;
}

Result<double> MeasureThreads(MultiplyLoop loop, int num_threads, const std::vector<int>& cpus) {
  // Idle workers of an engine spin for a moment before they sleep.
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (num_threads == 1 && cpus.empty()) return Measure(loop);
  std::vector<double> rates(static_cast<std::size_t>(num_threads), 0.0);
  std::vector<Status> statuses(rates.size());
  std::barrier barrier(num_threads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    threads.emplace_back([&, i] {
      if (!cpus.empty()) statuses[i] = PinThisThread(cpus[i]);
      barrier.arrive_and_wait();
      rates[i] = Measure(loop);
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0.0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    MEGALITH_RETURN_IF_ERROR(std::move(statuses[i]));
    sum += rates[i];
  }
  return sum;
}

}  // namespace

std::string_view MultiplyInstruction(Isa isa) { return InstructionOf(isa).name; }

Yardstick MultiplyYardstick(Isa isa, int num_threads, std::vector<int> cpus) {
  return [loop = InstructionOf(isa).loop, num_threads, cpus = std::move(cpus)] {
    return MeasureThreads(loop, num_threads, cpus);
  };
}

}  // namespace megalith::bench
