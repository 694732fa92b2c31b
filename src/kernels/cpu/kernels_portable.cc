#include "kernels/cpu/path_includes.h"

#define MEGALITH_PATH portable
#define MEGALITH_PATH_ISA kPortable
#define MEGALITH_PATH_QUANTIZED "kernels/cpu/quantized_portable-inl.h"
#include "kernels/cpu/vec_portable-inl.h"
//
#include "kernels/cpu/kernels-inl.h"

namespace megalith::kernels::portable {

const KernelTable<Bf16>& Bf16Table() {
  static const KernelTable<Bf16> table = MakeTable<Bf16>();
  return table;
}

const KernelTable<float>& Float32Table() {
  static const KernelTable<float> table = MakeTable<float>();
  return table;
}

const MathTable& Math() { return kMath; }

}  // namespace megalith::kernels::portable
