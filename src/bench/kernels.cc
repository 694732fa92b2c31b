#include "bench/kernels.h"

#include <algorithm>
#include <map>
#include <span>

#include "base/affinity.h"
#include "base/clock.h"
#include "base/topology.h"
#include "bench/kernel_cases.h"
#include "bench/multiply_rate.h"
#include "bench/yardstick.h"
#include "kernels/flush_denormals.h"

namespace megalith::bench {
namespace {

/// Pins the calling thread for a while.
class ScopedPin {
 public:
  static Result<ScopedPin> Pin(const std::vector<int>& cpus) {
    MEGALITH_ASSIGN_OR_RETURN(std::vector<int> before, AllowedCpus());
    if (!cpus.empty()) MEGALITH_RETURN_IF_ERROR(PinThisThread(cpus.front()));
    return ScopedPin(std::move(before));
  }
  ScopedPin(ScopedPin&& other) noexcept : before_(std::move(other.before_)) {
    other.before_.clear();
  }
  ScopedPin& operator=(ScopedPin&&) = delete;
  ~ScopedPin() {
    if (!before_.empty()) static_cast<void>(SetThisThreadCpus(before_));
  }

 private:
  explicit ScopedPin(std::vector<int> before) : before_(std::move(before)) {}
  std::vector<int> before_;
};

/// Calls until the time is over, a growing number between two looks at the clock.
Work RunTurn(const KernelCase& item, bool counts_flops, double seconds) {
  std::int64_t calls = 0;
  const std::int64_t start = NowNs();
  double elapsed = 0.0;
  for (std::int64_t batch = 1; elapsed < seconds; batch = std::min(batch * 2, calls / 8 + 1)) {
    for (std::int64_t i = 0; i < batch; ++i) item.call();
    calls += batch;
    elapsed = SecondsSince(start);
  }
  Work work;
  work.seconds = elapsed;
  work.items = static_cast<double>(calls);
  work.amount =
      work.items * (counts_flops ? item.result.flops_per_call : item.result.bytes_per_call);
  return work;
}

}  // namespace

Result<std::vector<KernelResult>> MeasureKernels(const KernelOptions& options) {
  for (const kernels::Isa isa : options.isas) {
    if (kernels::IsaSupported(isa)) continue;
    return Fail(ErrorCode::kUsage, "kernels: this CPU cannot run the {} path",
                kernels::IsaName(isa));
  }
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
  const std::vector<int> cpus = PlaceWorkers(topology, 1).cpus;
  MEGALITH_ASSIGN_OR_RETURN(const ScopedPin pin, ScopedPin::Pin(cpus));
  const kernels::ScopedFlushDenormals flush;
  MEGALITH_ASSIGN_OR_RETURN(
      const MemoryYardstick memory,
      StartMemoryYardstick(1, cpus, PreferredHugePages(),
                           options.probe_bytes > 0 ? options.probe_bytes : kYardstickBytes));
  std::map<kernels::Isa, Yardstick> multiply;
  for (const kernels::Isa isa : options.isas) multiply[isa] = MultiplyYardstick(isa, 1, {});

  std::vector<KernelResult> results;
  // One group of cold memory at a time: all formats and widths together would not fit everywhere.
  const auto measure = [&](std::vector<KernelCase> cases, const std::string& stage) -> Status {
    std::vector<Contestant> contestants;
    for (KernelCase& item : cases) {
      const bool counts_flops = item.result.inputs > 0 && item.result.rows >= kMultiplyBoundRows;
      if (counts_flops) {
        item.result.yardstick = MultiplyInstruction(item.result.isa);
      } else if (item.result.bytes_per_call > 0.0) {
        item.result.yardstick = "read, " + Describe(memory.method);
      }
      contestants.push_back({[&item, counts_flops, &options]() -> Result<Work> {
                               return RunTurn(item, counts_flops, options.turn_seconds);
                             },
                             counts_flops ? &multiply[item.result.isa] : &memory.measure});
    }
    RoundsOptions rounds;
    rounds.num_rounds = options.rounds;
    rounds.max_rounds = 3 * options.rounds;
    rounds.stage = stage;
    rounds.progress = options.progress;
    rounds.cancel = options.cancel;
    MEGALITH_ASSIGN_OR_RETURN(std::vector<Series> series, RunRounds(contestants, rounds));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      results.push_back(std::move(cases[i].result));
      results.back().series = std::move(series[i]);
    }
    return {};
  };
  for (int format = 0; format < kernels::kNumPanelFormats; ++format) {
    for (const std::int64_t inputs : options.inputs) {
      MEGALITH_ASSIGN_OR_RETURN(ColdMemory panels,
                                MakeColdPanels(format, inputs, options.cold_bytes));
      MEGALITH_RETURN_IF_ERROR(
          measure(MatmulCases(format, inputs, panels, options), "matmul " + FormatName(format)));
    }
  }
  MEGALITH_ASSIGN_OR_RETURN(Arena arena, Arena::Allocate(options.cold_bytes, PreferredHugePages()));
  // Pages that were never written are all the same one, and always in the cache. 0x3c00 is 1/128 as
  // bf16, and two of them are about 1/128 as f32.
  const auto words = std::span(reinterpret_cast<std::uint16_t*>(arena.data()),
                               arena.size_bytes() / sizeof(std::uint16_t));
  std::fill(words.begin(), words.end(), std::uint16_t{0x3c00});
  ColdMemory states(std::move(arena));
  MEGALITH_RETURN_IF_ERROR(measure(OtherCases(states, options), "other kernels"));
  if (results.empty()) {
    return Fail(ErrorCode::kUsage, "kernels: no kernel's name contains '{}'", options.only);
  }
  return results;
}

}  // namespace megalith::bench
