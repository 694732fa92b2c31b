#include "base/tick_clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/spin.h"

namespace megalith {
namespace {

constexpr std::int64_t kShortestMeasureNs = 5'000'000;
constexpr int kReadings = 5;

bool AskProcessor() {
#if defined(__x86_64__)
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  // Leaf 0x80000007, EDX bit 8: the counter runs at one rate in all P-, C- and T-states.
  if (__get_cpuid(0x80000007U, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & (1U << 8U)) != 0;
#else
  return false;
#endif
}

}  // namespace

bool HasInvariantTsc() {
  static const bool has = AskProcessor();
  return has;
}

/// Of several readings the one that was interrupted least.
TickScale::Both TickScale::ReadBoth() const {
  Both best{};
  std::int64_t shortest = -1;
  for (int i = 0; i < kReadings; ++i) {
    const std::int64_t before = clock_.Now();
    const std::int64_t ns = NowNs();
    const std::int64_t after = clock_.Now();
    if (shortest >= 0 && after - before >= shortest) continue;
    shortest = after - before;
    best = {before + shortest / 2, ns};
  }
  return best;
}

TickScale::Rate TickScale::Measure() const {
  while (NowNs() - first_.ns < kShortestMeasureNs) CpuPause();
  const Both now = ReadBoth();
  const double ns_per_tick =
      static_cast<double>(now.ns - first_.ns) / static_cast<double>(now.tick - first_.tick);
  return {first_.tick, first_.ns, ns_per_tick};
}

}  // namespace megalith
