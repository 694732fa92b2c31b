#include <immintrin.h>

#include "kernels/cpu/path_includes.h"

// Code below this line may use the path's instructions; nothing above may.
#ifdef __clang__
#pragma clang attribute push(                                                                     \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni")
#endif

#define MEGALITH_PATH avx512_bf16
#define MEGALITH_PATH_ISA kAvx512Bf16
#define MEGALITH_PATH_QUANTIZED "kernels/cpu/quantized_avx512-inl.h"
#define MEGALITH_PATH_JOINED_PAIRS
#define MEGALITH_PATH_VNNI
#include "kernels/cpu/vec_avx512-inl.h"
//
#include "kernels/cpu/kernels-inl.h"

namespace megalith::kernels::avx512_bf16 {

const KernelTable<Bf16>& Bf16Table() {
  static const KernelTable<Bf16> table = MakeTable<Bf16>();
  return table;
}

const MathTable& Math() { return kMath; }

}  // namespace megalith::kernels::avx512_bf16

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
