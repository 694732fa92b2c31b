#include "base/cpu_info.h"

#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace megalith {

bool CpuInfo::Usable(std::string_view feature) const {
  for (const CpuFeature& known : features) {
    if (known.name == feature) return known.usable;
  }
  return false;
}

#if defined(__x86_64__)
namespace {

struct Registers {
  std::uint32_t values[4];  // eax, ebx, ecx, edx
};
enum Register : std::uint8_t { kEax, kEbx, kEcx, kEdx };

/// All zero if the processor does not know the leaf.
Registers Cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  Registers r{};
  if (__get_cpuid_count(leaf, subleaf, &r.values[kEax], &r.values[kEbx], &r.values[kEcx],
                        &r.values[kEdx]) == 0) {
    return Registers{};
  }
  return r;
}

/// XCR0: which register sets the operating system saves. 0 if it does not say.
std::uint64_t SavedStates() {
  constexpr std::uint32_t kOsxsave = 1u << 27;
  if ((Cpuid(1).values[kEcx] & kOsxsave) == 0) return 0;
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

constexpr std::uint64_t kSse = 1u << 1;
constexpr std::uint64_t kAvx = kSse | 1u << 2;
constexpr std::uint64_t kAvx512 = kAvx | 7u << 5;
constexpr std::uint64_t kAmx = 3u << 17;

/// Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E.
struct FeatureBit {
  std::string_view name;
  std::uint32_t leaf;
  std::uint32_t subleaf;
  Register reg;
  int bit;
  std::uint64_t states;  // XCR0 bits it needs
};
constexpr FeatureBit kFeatureBits[] = {
    {"sse4_2", 1, 0, kEcx, 20, 0},
    {"popcnt", 1, 0, kEcx, 23, 0},
    {"avx", 1, 0, kEcx, 28, kAvx},
    {"f16c", 1, 0, kEcx, 29, kAvx},
    {"fma", 1, 0, kEcx, 12, kAvx},
    {"avx2", 7, 0, kEbx, 5, kAvx},
    {"bmi2", 7, 0, kEbx, 8, 0},
    {"avx_vnni", 7, 1, kEax, 4, kAvx},
    {"avx512f", 7, 0, kEbx, 16, kAvx512},
    {"avx512dq", 7, 0, kEbx, 17, kAvx512},
    {"avx512bw", 7, 0, kEbx, 30, kAvx512},
    {"avx512vl", 7, 0, kEbx, 31, kAvx512},
    {"avx512_vbmi", 7, 0, kEcx, 1, kAvx512},
    {"avx512_vbmi2", 7, 0, kEcx, 6, kAvx512},
    {"avx512_vnni", 7, 0, kEcx, 11, kAvx512},
    {"avx512_bf16", 7, 1, kEax, 5, kAvx512},
    {"avx512_fp16", 7, 0, kEdx, 23, kAvx512},
    {"amx_tile", 7, 0, kEdx, 24, kAmx},
    {"amx_int8", 7, 0, kEdx, 25, kAmx},
    {"amx_bf16", 7, 0, kEdx, 22, kAmx},
};

std::string Vendor() {
  const Registers r = Cpuid(0);
  char text[12];
  std::memcpy(text, &r.values[kEbx], 4);
  std::memcpy(text + 4, &r.values[kEdx], 4);
  std::memcpy(text + 8, &r.values[kEcx], 4);
  return std::string(text, sizeof(text));
}

std::string Brand() {
  std::array<char, 49> text{};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Registers r = Cpuid(0x80000002u + i);
    std::memcpy(text.data() + 16 * i, r.values, sizeof(r.values));
  }
  const std::string_view brand(text.data());
  const std::size_t first = brand.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  const std::size_t last = brand.find_last_not_of(' ');
  return std::string(brand.substr(first, last - first + 1));
}

}  // namespace

CpuInfo DetectCpu() {
  CpuInfo info{};
  info.vendor = Vendor();
  info.brand = Brand();
  const std::uint32_t signature = Cpuid(1).values[kEax];
  const std::uint32_t family = (signature >> 8) & 0xf;
  const std::uint32_t model = (signature >> 4) & 0xf;
  const bool extended_model = family == 0xf || family == 6;
  info.family = static_cast<int>(family == 0xf ? family + ((signature >> 20) & 0xff) : family);
  info.model = static_cast<int>(extended_model ? model | ((signature >> 12) & 0xf0) : model);
  info.stepping = static_cast<int>(signature & 0xf);

  const std::uint64_t saved = SavedStates();
  for (const FeatureBit& feature : kFeatureBits) {
    const Registers r = Cpuid(feature.leaf, feature.subleaf);
    const bool present = ((r.values[feature.reg] >> feature.bit) & 1u) != 0;
    info.features.push_back(
        {feature.name, present, present && (saved & feature.states) == feature.states});
  }
  return info;
}

#else

CpuInfo DetectCpu() { return CpuInfo{}; }

#endif

}  // namespace megalith
