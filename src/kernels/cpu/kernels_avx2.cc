#include <immintrin.h>

#include "kernels/cpu/path_includes.h"

// Code below this line may use the path's instructions; nothing above may.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#define MEGALITH_PATH avx2
#define MEGALITH_PATH_ISA kAvx2
#define MEGALITH_PATH_QUANTIZED "kernels/cpu/quantized_avx2-inl.h"
#include "kernels/cpu/vec_avx2-inl.h"
//
#include "kernels/cpu/kernels-inl.h"

namespace megalith::kernels::avx2 {

const KernelTable<Bf16>& Bf16Table() {
  static const KernelTable<Bf16> table = MakeTable<Bf16>();
  return table;
}

const MathTable& Math() { return kMath; }

}  // namespace megalith::kernels::avx2

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
