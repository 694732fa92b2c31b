// Every kernel of one path, over the Vec that a vec_*-inl.h has defined before. The `-inl.h` files
// hold no includes: they are compiled inside a target region, and an inline function of a standard
// header compiled there could become the copy that the linker keeps for the whole program. What
// they need is in path_includes.h.

#include "kernels/cpu/math-inl.h"
//
#include "kernels/cpu/elementwise-inl.h"
//
#include MEGALITH_PATH_QUANTIZED
//
#include "kernels/cpu/matmul-inl.h"
//
#include "kernels/cpu/matmul_fixed-inl.h"
#include "kernels/cpu/norm-inl.h"
//
#ifdef MEGALITH_PATH_JOINED_PAIRS
#include "kernels/cpu/matmul_joined-inl.h"
#endif
//
#include "kernels/cpu/draft_attention-inl.h"
#include "kernels/cpu/kda-inl.h"
#include "kernels/cpu/kda_chunks-inl.h"
#include "kernels/cpu/pairs-inl.h"
//
#include "kernels/cpu/mla-inl.h"
#include "kernels/cpu/mla_expanded-inl.h"
#include "kernels/cpu/router-inl.h"
//
#include "kernels/cpu/table-inl.h"
