#pragma once

// Everything that the -inl.h files use, for inclusion before a target region; see kernels-inl.h.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/activation.h"
#include "kernels/cpu/paths.h"
#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
