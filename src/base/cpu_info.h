#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megalith {

/// One instruction-set extension that some kernel could use.
struct CpuFeature {
  std::string_view name;  ///< e.g. "avx512_bf16", as in /proc/cpuinfo
  bool present;           ///< the processor has it
  bool usable;            ///< and the operating system saves the registers it needs
};

struct CpuInfo {
  std::string vendor;  ///< "GenuineIntel", "AuthenticAMD"; empty if not an x86
  std::string brand;   ///< marketing name; empty if not known
  int family;
  int model;
  int stepping;
  /// Every extension asked about, in a fixed order, whether present or not. Empty if not an x86.
  std::vector<CpuFeature> features;

  /// False for unknown names.
  bool Usable(std::string_view feature) const;
};

/// Asks the processor this thread runs on. AMX is called usable if the system supports it; a
/// process still has to ask for permission before its first tile instruction.
CpuInfo DetectCpu();

}  // namespace megalith
