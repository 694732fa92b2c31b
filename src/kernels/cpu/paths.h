#pragma once

// The tables of the separately compiled paths; callers go through kernel_table.h.

#include "kernels/kernel_table.h"

namespace megalith::kernels {

namespace portable {
const KernelTable<Bf16>& Bf16Table();
const KernelTable<float>& Float32Table();
}  // namespace portable
namespace avx2 {
const KernelTable<Bf16>& Bf16Table();
}
namespace avx512 {
const KernelTable<Bf16>& Bf16Table();
}
namespace avx512_bf16 {
const KernelTable<Bf16>& Bf16Table();
}

}  // namespace megalith::kernels
