#pragma once

// Packed weights. A panel holds 16 outputs over all inputs, inputs padded with zeros to a multiple
// of 32, missing outputs zero. One layout serves every instruction set: 64 bytes of a bf16 panel
// are input pair (2i, 2i+1) of 16 outputs, which is a vector register for AVX-512, two for AVX2,
// and a row of an AMX B tile. 64 bytes of MXFP4 codes are four such pairs, one 32-bit word per
// output; a shift by 4 j puts both codes of pair j at the bottom of their 16-bit halves, where a
// permutation of a table takes its index.
//
//   bf16   [inputs / 2][16 outputs][2]                                     32 bytes per input
//   mxfp4  scales [inputs / 32][16 outputs] u8, padded to 64 bytes, then
//          codes  [inputs / 8][16 outputs] u32, bits 4 j .. 4 j + 3 = input 2 j of the eight,
//                 bits 16 + 4 j .. = input 2 j + 1                         8.5 bytes per input

#include <cstddef>
#include <cstdint>

#include "base/align.h"
#include "base/bf16.h"
#include "kernels/numerics.h"

namespace megalith::kernels {

enum class PanelFormat : std::uint8_t { kBf16, kMxfp4 };

inline std::int64_t PaddedInputs(std::int64_t inputs) {
  return RoundUp<std::int64_t>(inputs, kBlockInputs);
}

/// Bytes of one panel; a multiple of 64.
std::int64_t PanelBytes(PanelFormat format, std::int64_t inputs);

/// Packs outputs x inputs bf16 (element (n, k) at source[n * output_stride + k * input_stride], so
/// a transposed matrix needs no copy) into one panel. 1 <= outputs <= 16. Writes every byte.
void PackPanelBf16(const Bf16* source, std::int64_t output_stride, std::int64_t input_stride,
                   std::int64_t outputs, std::int64_t inputs, std::byte* panel);

/// Packs `outputs` rows of an MXFP4 matrix as stored in the checkpoint: codes [.., inputs / 2],
/// scales [.., inputs / 32], strides in bytes. inputs is a multiple of 32, 1 <= outputs <= 16.
/// Writes every byte.
void PackPanelMxfp4(const std::uint8_t* codes, std::int64_t codes_stride,
                    const std::uint8_t* scales, std::int64_t scales_stride, std::int64_t outputs,
                    std::int64_t inputs, std::byte* panel);

/// Value of input `k` (0 <= k < PaddedInputs) of output `n` of a panel, without its block's scale:
/// the reference for every kernel's unpacking.
float PanelUnscaled(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
                    std::int64_t k);

/// Scale of block `block` (32 inputs) of output `n`; 1 for bf16.
float PanelScale(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
                 std::int64_t block);

/// PanelUnscaled * PanelScale.
float PanelElement(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
                   std::int64_t k);

/// The E2M1 values of codes 0..15.
inline constexpr float kE2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// Value of an E2M1 code (0..15) times 2^(scale - 127), scale 1..254.
float DecodeMxfp4(std::uint8_t code, std::uint8_t scale);

}  // namespace megalith::kernels
