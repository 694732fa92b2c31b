#pragma once

// The tables of the separately compiled paths; callers go through kernel_table.h.

#include "kernels/kernel_table.h"

namespace megalith::kernels {

/// The vector forms of numerics.h on arrays, so that tests can compare them with the definitions.
struct MathTable {
  void (*exp)(const float* in, std::int64_t count, float* out);
  void (*sigmoid)(const float* in, std::int64_t count, float* out);
  void (*tanh)(const float* in, std::int64_t count, float* out);
  void (*softplus)(const float* in, std::int64_t count, float* out);
};
/// Requires IsaSupported(isa).
const MathTable& Math(Isa isa);

namespace portable {
const KernelTable<Bf16>& Bf16Table();
const KernelTable<float>& Float32Table();
const MathTable& Math();
}  // namespace portable
namespace avx2 {
const KernelTable<Bf16>& Bf16Table();
const MathTable& Math();
}  // namespace avx2
namespace avx512 {
const KernelTable<Bf16>& Bf16Table();
const MathTable& Math();
}  // namespace avx512
namespace avx512_bf16 {
const KernelTable<Bf16>& Bf16Table();
const MathTable& Math();
}  // namespace avx512_bf16
namespace amx {
const KernelTable<Bf16>& Bf16Table();
const KernelTable<Bf16>& EmulatedBf16Table();
const MathTable& Math();
}  // namespace amx

}  // namespace megalith::kernels
