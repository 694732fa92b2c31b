#include <cpuid.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/cpu/paths.h"
#include "kernels/cpu/tiles.h"
#include "kernels/kernel_table.h"

namespace megalith::kernels {
namespace {

struct IsaEntry {
  Isa isa;
  std::string_view name;
};
// Slowest first, but for the last.
constexpr std::array kIsas = {
    IsaEntry{Isa::kPortable, "portable"}, IsaEntry{Isa::kAvx2, "avx2"},
    IsaEntry{Isa::kAvx512, "avx512"},     IsaEntry{Isa::kAvx512Bf16, "avx512_bf16"},
    IsaEntry{Isa::kAmx, "amx"},           IsaEntry{Isa::kAmxEmulated, "amx_emulated"},
};

constexpr const char* kForceIsaVariable = "MEGALITH_FORCE_ISA";

std::string IsaNames() {
  std::string names;
  for (const IsaEntry& entry : kIsas) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

/// Register state that the operating system saves (XCR0).
std::uint64_t EnabledState() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

constexpr bool HasAll(std::uint64_t value, std::uint64_t bits) { return (value & bits) == bits; }

struct CpuFeatures {
  bool avx2 = false;
  bool avx512 = false;
  bool avx512_bf16 = false;  ///< with VNNI, which every CPU with BF16 has
};

/// What the processor implements and the operating system has enabled. Bits: Intel SDM volume 2,
/// CPUID; volume 1, 13.3 for XCR0.
CpuFeatures DetectFeatures() {
  CpuFeatures features;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t c = 0;
  std::uint32_t d = 0;
  constexpr std::uint32_t kFma = 1u << 12;
  constexpr std::uint32_t kOsXsave = 1u << 27;
  constexpr std::uint32_t kAvx = 1u << 28;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !HasAll(c, kFma | kOsXsave | kAvx)) return features;
  constexpr std::uint64_t kYmmState = 0x6;
  constexpr std::uint64_t kZmmState = 0xe6;
  const std::uint64_t state = EnabledState();
  if (!HasAll(state, kYmmState)) return features;

  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return features;
  constexpr std::uint32_t kAvx2 = 1u << 5;
  constexpr std::uint32_t kAvx512F = 1u << 16;
  constexpr std::uint32_t kAvx512Dq = 1u << 17;
  constexpr std::uint32_t kAvx512Bw = 1u << 30;
  constexpr std::uint32_t kAvx512Vl = 1u << 31;
  features.avx2 = HasAll(b, kAvx2);
  features.avx512 = features.avx2 && HasAll(state, kZmmState) &&
                    HasAll(b, kAvx512F | kAvx512Dq | kAvx512Bw | kAvx512Vl);
  const std::uint32_t max_subleaf = a;
  if (!features.avx512 || max_subleaf < 1) return features;

  constexpr std::uint32_t kAvx512Vnni = 1u << 11;
  const bool has_vnni = HasAll(c, kAvx512Vnni);
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return features;
  constexpr std::uint32_t kAvx512Bf16 = 1u << 5;
  features.avx512_bf16 = has_vnni && HasAll(a, kAvx512Bf16);
  return features;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  for (const IsaEntry& entry : kIsas) {
    if (entry.isa == isa) return entry.name;
  }
  return "unknown";
}

DotNumerics NumericsOf(Isa isa) {
  DotNumerics numerics;
  if (isa == Isa::kAvx512Bf16) numerics.order = DotOrder::kJoinedPairs;
  if (isa == Isa::kAmx || isa == Isa::kAmxEmulated) numerics.quantized = QuantizedDot::kExpanded;
  return numerics;
}

Result<Isa> ParseIsa(std::string_view name) {
  for (const IsaEntry& entry : kIsas) {
    if (entry.name == name) return entry.isa;
  }
  return Fail(ErrorCode::kUsage, "instruction set '{}' is unknown; known are: {}", name,
              IsaNames());
}

bool IsaSupported(Isa isa) {
  static const CpuFeatures features = DetectFeatures();
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return features.avx2;
    case Isa::kAvx512:
      return features.avx512;
    case Isa::kAvx512Bf16:
      return features.avx512_bf16;
    case Isa::kAmx:
      return features.avx512 && TilesUsable();
    case Isa::kAmxEmulated:
      return features.avx512;
  }
  return false;
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const IsaEntry& entry : kIsas) {
    if (entry.isa != Isa::kAmxEmulated && IsaSupported(entry.isa)) isas.push_back(entry.isa);
  }
  return isas;
}

Result<Isa> SelectIsa() {
  const char* forced = std::getenv(kForceIsaVariable);
  if (forced == nullptr) return SupportedIsas().back();
  const Result<Isa> isa = ParseIsa(forced);
  if (!isa) return Fail(isa.error().code, "{}: {}", kForceIsaVariable, isa.error().message);
  if (!IsaSupported(*isa)) {
    return Fail(ErrorCode::kUsage, "{}: this machine cannot run '{}'", kForceIsaVariable, forced);
  }
  return *isa;
}

const KernelTable<Bf16>& Bf16Kernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return avx2::Bf16Table();
    case Isa::kAvx512:
      return avx512::Bf16Table();
    case Isa::kAvx512Bf16:
      return avx512_bf16::Bf16Table();
    case Isa::kAmx:
      return amx::Bf16Table();
    case Isa::kAmxEmulated:
      return amx::EmulatedBf16Table();
    case Isa::kPortable:
      break;
  }
  return portable::Bf16Table();
}

const KernelTable<float>& Float32Kernels() { return portable::Float32Table(); }

const MathTable& Math(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return avx2::Math();
    case Isa::kAvx512:
      return avx512::Math();
    case Isa::kAvx512Bf16:
      return avx512_bf16::Math();
    case Isa::kAmx:
    case Isa::kAmxEmulated:
      return amx::Math();
    case Isa::kPortable:
      break;
  }
  return portable::Math();
}

}  // namespace megalith::kernels
