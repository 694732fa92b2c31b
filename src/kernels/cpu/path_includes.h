#pragma once

// Everything that the -inl.h files use, for inclusion before a target region; see kernels-inl.h.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/activation.h"
#include "kernels/cpu/fixed_block.h"
#include "kernels/cpu/paths.h"
#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "kernels/mla_expanded_scratch.h"
#include "kernels/numerics.h"

/// For functions that take or return vectors: GCC would pass a pair of AVX2 registers through
/// memory, and the reload waits for the stores (SiTU took four times as long).
#define MEGALITH_INLINE inline __attribute__((always_inline))
/// For lambdas with sums outside: a lambda that is called in two places (whole vectors and the
/// rest) may be left a function, and its sums then live in memory.
#define MEGALITH_INLINE_LAMBDA __attribute__((always_inline))
