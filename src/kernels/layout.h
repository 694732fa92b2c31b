#pragma once

// Packed weights. A panel holds 16 outputs over all inputs, inputs padded with zeros to a multiple
// of 32, missing outputs zero. One layout serves every instruction set: 64 bytes are a vector
// register for AVX-512, two for AVX2, and a row of an AMX B tile.
//
//   bf16   [inputs / 2][16 outputs][2]                                     32 bytes per input
//   mxfp4  per 4 blocks of 32 inputs: scales [4][16 outputs] u8,
//          then codes [4 * 4][16 outputs] u32: a word holds 8 inputs of one output, byte i has
//          input i in its low nibble and input 4 + i in the high one       8.5 bytes per input
//   int8   per 2 blocks of 32 inputs: scales [2][16 outputs] bf16,
//          then codes [2 * 8][16 outputs][4] u8: code + 128 of 4 inputs    17 bytes per input
//
// Scales lie among their codes, one cache line before every 1024 bytes, so that a panel is a single
// dense stream: with all scales in front, a thin second stream, one core read MXFP4 panels at 0.7
// of the rate of dense ones (Zen 4; loads alone, nothing computed). The last group of blocks has
// its whole line of scales but only the codes of the blocks that exist. Bytes, not 16-bit pairs,
// are the unit of codes because the multiply instructions of quantised weights (vpmaddubsw,
// vpdpbusd, TDPBUSD) take 4 inputs of an output next to each other; int8 codes are stored with an
// offset because those instructions want one factor unsigned.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/align.h"
#include "base/bf16.h"
#include "kernels/numerics.h"

namespace megalith::kernels {

enum class PanelFormat : std::uint8_t { kBf16, kMxfp4, kInt8 };
inline constexpr int kNumPanelFormats = 3;
inline constexpr bool IsQuantized(PanelFormat format) { return format != PanelFormat::kBf16; }
/// "bf16", "mxfp4", "int8".
std::string_view PanelFormatName(PanelFormat format);

/// Where the blocks of a quantised panel lie.
template <PanelFormat kFormat>
struct QuantizedPanel {
  static_assert(IsQuantized(kFormat));
  static constexpr bool kIsMxfp4 = kFormat == PanelFormat::kMxfp4;
  static constexpr std::int64_t kScaleBytes = kIsMxfp4 ? 16 : 32;  ///< of one block
  static constexpr std::int64_t kCodeBytes = kIsMxfp4 ? 256 : 512;
  static constexpr std::int64_t kScaleLine = 64;
  static constexpr std::int64_t kGroupBlocks = kScaleLine / kScaleBytes;
  static constexpr std::int64_t kGroupBytes = kScaleLine + kGroupBlocks * kCodeBytes;

  // In unsigned numbers, whose division by a power of two is a shift.
  static constexpr std::int64_t Group(std::int64_t block) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(block) / kGroupBlocks);
  }
  static constexpr std::int64_t Scales(std::int64_t block) {
    return Group(block) * (kGroupBytes - kScaleLine) + block * kScaleBytes;
  }
  static constexpr std::int64_t Codes(std::int64_t block) {
    return (Group(block) + 1) * kScaleLine + block * kCodeBytes;
  }
  static constexpr std::int64_t Bytes(std::int64_t blocks) {
    return CeilDiv(blocks, kGroupBlocks) * kScaleLine + blocks * kCodeBytes;
  }
};

/// What is added to the integer weights so that codes are unsigned.
inline constexpr int kMxfp4Offset = 12;
inline constexpr int kInt8Offset = 128;
inline constexpr int kInt8Max = 127;  ///< largest magnitude of an int8 code

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

/// Quantises outputs x inputs bf16 (element (n, k) at source[n * output_stride + k]) to one int8
/// panel. Every output has a scale per 32 inputs, round(largest magnitude / 127) to bf16, zero if
/// that is below 2^-126; codes are w * (1 / scale), rounded to nearest even, at most 127. Returns
/// false, the panel being incomplete, if an element is NaN or infinite. 1 <= outputs <= 16. Else
/// writes every byte.
bool PackPanelInt8(const Bf16* source, std::int64_t output_stride, std::int64_t outputs,
                   std::int64_t inputs, std::byte* panel);

/// Value of input `k` (0 <= k < PaddedInputs) of output `n` of a panel, without its block's scale:
/// the reference for every kernel's unpacking.
float PanelUnscaled(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
                    std::int64_t k);

/// The integer that rule 1 of numerics.h multiplies: twice the E2M1 value, or the int8 code.
std::int32_t PanelInteger(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
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

/// The same, doubled and with kMxfp4Offset added.
inline constexpr std::uint8_t kE2m1Offset[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                 12, 11, 10, 9,  8,  6,  4,  0};

/// Value of an E2M1 code (0..15) times 2^(scale - 127), scale 1..254.
float DecodeMxfp4(std::uint8_t code, std::uint8_t scale);

}  // namespace megalith::kernels
