#include <immintrin.h>

#include "kernels/cpu/path_includes.h"
#include "kernels/cpu/tiles.h"

// Code below this line may use the path's instructions; nothing above may.
#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#define MEGALITH_PATH amx
#define MEGALITH_PATH_ISA kAmx
#define MEGALITH_PATH_QUANTIZED "kernels/cpu/quantized_avx512-inl.h"
#include "kernels/cpu/vec_avx512-inl.h"
//
#include "kernels/cpu/kernels-inl.h"
//
#include "kernels/cpu/emulated_tiles-inl.h"
#include "kernels/cpu/matmul_tiles-inl.h"

namespace megalith::kernels::amx {
namespace {

template <typename Tiles>
KernelTable<Bf16> TableWith(Isa isa) {
  KernelTable<Bf16> table = MakeTable<Bf16>();
  table.isa = isa;
  table.matmul[static_cast<int>(PanelFormat::kBf16)] = MatmulTiles<Tiles, PanelFormat::kBf16>;
  table.matmul[static_cast<int>(PanelFormat::kMxfp4)] = MatmulTiles<Tiles, PanelFormat::kMxfp4>;
  table.matmul[static_cast<int>(PanelFormat::kInt8)] = MatmulTiles<Tiles, PanelFormat::kInt8>;
  return table;
}

}  // namespace

const KernelTable<Bf16>& Bf16Table() {
  static const KernelTable<Bf16> table = TableWith<HardwareTiles>(Isa::kAmx);
  return table;
}

const KernelTable<Bf16>& EmulatedBf16Table() {
  static const KernelTable<Bf16> table = TableWith<EmulatedTiles>(Isa::kAmxEmulated);
  return table;
}

const MathTable& Math() { return kMath; }

}  // namespace megalith::kernels::amx

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
