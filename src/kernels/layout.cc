#include "kernels/layout.h"

#include <algorithm>
#include <cstring>

namespace megalith::kernels {
namespace {

constexpr std::int64_t kPanelAlignment = 64;

// Scale byte of outputs that do not exist: 2^0, so that their zero codes stay zero.
constexpr std::uint8_t kUnitScale = 127;

std::int64_t ScaleBytes(std::int64_t inputs) {
  return RoundUp(PaddedInputs(inputs) / kBlockInputs * kPanelOutputs, kPanelAlignment);
}

// Inputs whose codes share a 32-bit word.
constexpr std::int64_t kGroupInputs = 8;

// Index of (input, output) in a panel of input pairs.
std::int64_t PairIndex(std::int64_t k, int n) { return (k / 2 * kPanelOutputs + n) * 2 + k % 2; }

}  // namespace

std::int64_t PanelBytes(PanelFormat format, std::int64_t inputs) {
  const std::int64_t padded = PaddedInputs(inputs);
  if (format == PanelFormat::kBf16) {
    return padded * kPanelOutputs * static_cast<std::int64_t>(sizeof(Bf16));
  }
  return ScaleBytes(inputs) + padded / 2 * kPanelOutputs;
}

void PackPanelBf16(const Bf16* source, std::int64_t output_stride, std::int64_t input_stride,
                   std::int64_t outputs, std::int64_t inputs, std::byte* panel) {
  const std::int64_t padded = PaddedInputs(inputs);
  // A pair of inputs of 16 outputs at a time: the panel is written in order, the source is read in
  // 16 streams (or, transposed, in runs of 16).
  for (std::int64_t k = 0; k < padded; k += 2) {
    Bf16 pairs[kPanelOutputs][2] = {};
    for (std::int64_t n = 0; n < outputs; ++n) {
      for (std::int64_t i = 0; i < 2 && k + i < inputs; ++i) {
        pairs[n][i] = source[n * output_stride + (k + i) * input_stride];
      }
    }
    std::memcpy(panel, pairs, sizeof(pairs));
    panel += sizeof(pairs);
  }
}

void PackPanelMxfp4(const std::uint8_t* codes, std::int64_t codes_stride,
                    const std::uint8_t* scales, std::int64_t scales_stride, std::int64_t outputs,
                    std::int64_t inputs, std::byte* panel) {
  const std::int64_t blocks = inputs / kBlockInputs;
  auto* packed_scales = reinterpret_cast<std::uint8_t*>(panel);
  auto* packed_codes = packed_scales + ScaleBytes(inputs);
  std::fill(packed_scales, packed_codes, kUnitScale);
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t n = 0; n < outputs; ++n) {
      packed_scales[block * kPanelOutputs + n] = scales[n * scales_stride + block];
    }
  }
  for (std::int64_t group = 0; group < inputs / kGroupInputs; ++group) {
    std::uint32_t words[kPanelOutputs] = {};
    for (std::int64_t n = 0; n < outputs; ++n) {
      const std::uint8_t* bytes = codes + n * codes_stride + group * (kGroupInputs / 2);
      for (int pair = 0; pair < kGroupInputs / 2; ++pair) {
        words[n] |= (bytes[pair] & 15u) << (4 * pair);
        words[n] |= (bytes[pair] & 0xf0u) << (12 + 4 * pair);
      }
    }
    std::memcpy(packed_codes, words, sizeof(words));
    packed_codes += sizeof(words);
  }
}

float PanelUnscaled(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
                    std::int64_t k) {
  if (format == PanelFormat::kBf16) {
    Bf16 value;
    std::memcpy(&value, panel + PairIndex(k, n) * static_cast<std::int64_t>(sizeof(Bf16)),
                sizeof(value));
    return ToFloat(value);
  }
  std::uint32_t word;
  std::memcpy(&word,
              panel + ScaleBytes(inputs) +
                  (k / kGroupInputs * kPanelOutputs + n) * static_cast<std::int64_t>(sizeof(word)),
              sizeof(word));
  const std::int64_t shift = k % kGroupInputs / 2 * 4 + k % 2 * 16;
  return kE2m1[word >> shift & 15u];
}

float PanelScale(PanelFormat format, const std::byte* panel, std::int64_t /*inputs*/, int n,
                 std::int64_t block) {
  if (format == PanelFormat::kBf16) return 1.0f;
  return E8m0Value(reinterpret_cast<const std::uint8_t*>(panel)[block * kPanelOutputs + n]);
}

float PanelElement(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
                   std::int64_t k) {
  return PanelUnscaled(format, panel, inputs, n, k) *
         PanelScale(format, panel, inputs, n, k / kBlockInputs);
}

float DecodeMxfp4(std::uint8_t code, std::uint8_t scale) {
  return kE2m1[code & 15u] * E8m0Value(scale);
}

}  // namespace megalith::kernels
