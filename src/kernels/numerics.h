#pragma once

// The numeric contract: how every value in Megalith is computed, whatever the instruction set, the
// number of workers or the number of rows. The scalar functions here *are* the definition; every
// vector kernel gives the same bits (tests compare with ==). docs/design/numerics.md gives the
// reasons.
//
// 1. Dot products (matmul) run over blocks of 32 inputs. kSplitPairs: inside a block the even and
//    the odd inputs are two chains of fused multiply-adds that start at +0; then
//    acc = acc + (even + odd). This is the order of an AMX bf16 tile; a block is also one MXFP4
//    scale group, so a scale (a power of two) may be applied once per block without changing bits.
//    kJoinedPairs: one chain per block, odd input before even input of each pair, then
//    acc = acc + chain: the order of vdpbf16ps.
//    bf16 x bf16 products are exact in float, so fused and separate multiply-add agree there. With
//    float inputs products are rounded first: multiply, then add (never fused).
// 2. Sums over a vector (norms, softmax, attention scores) use 16 lanes: lane j adds elements
//    j, j + 16, ... in order; then lanes fold 8, 4, 2, 1 apart. Elements beyond the end count as +0.
// 3. Everything else is element-wise or a chain in index order, with separate multiply and add.
// 4. exp, tanh, sigmoid are the functions below. sqrt and division are IEEE.
// 5. Denormals: workers run with flush-to-zero and denormals-are-zero (as AMX and AVX-512 BF16 do).

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/bf16.h"

namespace megalith::kernels {

inline constexpr int kLanes = 16;
inline constexpr int kBlockInputs = 32;   ///< inputs per dot-product block and per MXFP4 scale
inline constexpr int kPanelOutputs = 16;  ///< outputs per packed panel

enum class DotOrder : std::uint8_t { kSplitPairs, kJoinedPairs };

}  // namespace megalith::kernels
