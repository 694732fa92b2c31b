#include "kernels/cpu/tiles.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace megalith::kernels {
namespace {

bool DetectTiles() {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t c = 0;
  std::uint32_t d = 0;
  constexpr std::uint32_t kOsXsave = 1u << 27;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr std::uint32_t kAmxBf16 = 1u << 22;
  constexpr std::uint32_t kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr std::uint32_t kTileState = 0x60000;  // XTILECFG and XTILEDATA
  if ((low & kTileState) != kTileState) return false;
  // Linux gives the tile data only to processes that ask (arch/x86/include/uapi/asm/prctl.h).
  constexpr long kArchRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kArchRequestPermission, kTileData) == 0;
}

}  // namespace

bool TilesUsable() {
  static const bool usable = DetectTiles();
  return usable;
}

}  // namespace megalith::kernels
