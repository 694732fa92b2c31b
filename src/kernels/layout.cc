#include "kernels/layout.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace megalith::kernels {
namespace {

// Scale byte of outputs that do not exist: 2^0, so that their zero codes stay zero.
constexpr std::uint8_t kUnitScale = 127;

using Mxfp4 = QuantizedPanel<PanelFormat::kMxfp4>;
using Int8 = QuantizedPanel<PanelFormat::kInt8>;

// Inputs whose MXFP4 codes share a 32-bit word.
constexpr std::int64_t kGroupInputs = 8;

std::int64_t NumBlocks(std::int64_t inputs) { return PaddedInputs(inputs) / kBlockInputs; }

/// Four words in a vector register: what every x86-64 processor has, so that packing is bound by
/// memory without a path of its own for each instruction set.
typedef std::uint32_t Words4 __attribute__((vector_size(16)));

Words4 LoadWords(const void* source) {
  Words4 words;
  std::memcpy(&words, source, sizeof(words));
  return words;
}

void StoreWords(Words4 words, void* destination) {
  std::memcpy(destination, &words, sizeof(words));
}

struct WordBlock {
  Words4 rows[4];

  void Transpose() {
    const Words4 low01 = Interleave(rows[0], rows[1], false);
    const Words4 high01 = Interleave(rows[0], rows[1], true);
    const Words4 low23 = Interleave(rows[2], rows[3], false);
    const Words4 high23 = Interleave(rows[2], rows[3], true);
    rows[0] = Words4{low01[0], low01[1], low23[0], low23[1]};
    rows[1] = Words4{low01[2], low01[3], low23[2], low23[3]};
    rows[2] = Words4{high01[0], high01[1], high23[0], high23[1]};
    rows[3] = Words4{high01[2], high01[3], high23[2], high23[3]};
  }

 private:
  static Words4 Interleave(Words4 a, Words4 b, bool high) {
    return high ? Words4{a[2], b[2], a[3], b[3]} : Words4{a[0], b[0], a[1], b[1]};
  }
};

/// The word of 8 stored codes (input 2 j in the low nibble of byte j, 2 j + 1 in the high one) with
/// input i in the low nibble of byte i, 4 + i in the high one.
/// `Words`: one word, or a vector of them.
template <typename Words>
Words ReorderNibbles(Words stored) {
  const Words even = stored & 0x0f0f0f0fu;      // inputs 0 2 4 6
  const Words odd = stored >> 4 & 0x0f0f0f0fu;  // inputs 1 3 5 7
  const Words even_bytes = even | even >> 12;   // low half: bytes 0, 2 of the result
  const Words odd_bytes = odd | odd >> 12;      // bytes 1, 3
  return (even_bytes & 0xffu) | (odd_bytes & 0xffu) << 8 | (even_bytes & 0xff00u) << 8 |
         (odd_bytes & 0xff00u) << 16;
}

std::uint32_t Mxfp4Code(const std::byte* panel, int n, std::int64_t k) {
  const std::int64_t i = k % kBlockInputs;
  std::uint32_t word;
  std::memcpy(&word, panel + Mxfp4::Codes(k / kBlockInputs) + i / kGroupInputs * 64 + n * 4,
              sizeof(word));
  return word >> (i % 4 * 8 + i % kGroupInputs / 4 * 4) & 15u;
}

// Index of (input, output) in a panel of input pairs.
std::int64_t PairIndex(std::int64_t k, int n) { return (k / 2 * kPanelOutputs + n) * 2 + k % 2; }

}  // namespace

std::string_view PanelFormatName(PanelFormat format) {
  switch (format) {
    case PanelFormat::kMxfp4:
      return "mxfp4";
    case PanelFormat::kInt8:
      return "int8";
    case PanelFormat::kBf16:
      break;
  }
  return "bf16";
}

std::int64_t PanelBytes(PanelFormat format, std::int64_t inputs) {
  switch (format) {
    case PanelFormat::kMxfp4:
      return Mxfp4::Bytes(NumBlocks(inputs));
    case PanelFormat::kInt8:
      return Int8::Bytes(NumBlocks(inputs));
    case PanelFormat::kBf16:
      break;
  }
  return PaddedInputs(inputs) * kPanelOutputs * static_cast<std::int64_t>(sizeof(Bf16));
}

void PackPanelBf16(const Bf16* source, std::int64_t output_stride, std::int64_t input_stride,
                   std::int64_t outputs, std::int64_t inputs, std::byte* panel) {
  const std::int64_t padded = PaddedInputs(inputs);
  // A pair of inputs of 16 outputs at a time: the panel is written in order, the source is read in
  // 16 streams (or, transposed, in runs of 16).
  std::int64_t k = 0;
  if (input_stride == 1 && outputs == kPanelOutputs) {
    // The common case: a pair is a word of the source, four of them a vector.
    for (; k + 8 <= inputs; k += 8) {
      for (std::int64_t n = 0; n < kPanelOutputs; n += 4) {
        WordBlock block;
        for (std::int64_t i = 0; i < 4; ++i) {
          block.rows[i] = LoadWords(source + (n + i) * output_stride + k);
        }
        block.Transpose();
        for (std::int64_t i = 0; i < 4; ++i) StoreWords(block.rows[i], panel + i * 64 + n * 4);
      }
      panel += 4 * 64;
    }
  }
  for (; k < padded; k += 2) {
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
  auto* packed = reinterpret_cast<std::uint8_t*>(panel);
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (block % Mxfp4::kGroupBlocks == 0) {
      std::memset(packed + Mxfp4::Scales(block), kUnitScale, Mxfp4::kScaleLine);
    }
    for (std::int64_t n = 0; n < outputs; ++n) {
      packed[Mxfp4::Scales(block) + n] = scales[n * scales_stride + block];
    }
    std::uint8_t* words = packed + Mxfp4::Codes(block);
    if (outputs == kPanelOutputs) {
      static_assert(kBlockInputs == 4 * kGroupInputs, "a vector of words is a block of one output");
      for (std::int64_t n = 0; n < kPanelOutputs; n += 4) {
        WordBlock four;
        for (std::int64_t i = 0; i < 4; ++i) {
          four.rows[i] =
              ReorderNibbles(LoadWords(codes + (n + i) * codes_stride + block * kBlockInputs / 2));
        }
        four.Transpose();
        for (std::int64_t i = 0; i < 4; ++i) StoreWords(four.rows[i], words + i * 64 + n * 4);
      }
      continue;
    }
    for (std::int64_t group = 0; group < kBlockInputs / kGroupInputs; ++group) {
      std::uint32_t packed_words[kPanelOutputs] = {};
      for (std::int64_t n = 0; n < outputs; ++n) {
        std::uint32_t stored;
        std::memcpy(&stored,
                    codes + n * codes_stride + (block * kBlockInputs + group * kGroupInputs) / 2,
                    sizeof(stored));
        packed_words[n] = ReorderNibbles(stored);
      }
      std::memcpy(words, packed_words, sizeof(packed_words));
      words += sizeof(packed_words);
    }
  }
}

bool PackPanelInt8(const Bf16* source, std::int64_t output_stride, std::int64_t outputs,
                   std::int64_t inputs, std::byte* panel) {
  auto* packed = reinterpret_cast<std::uint8_t*>(panel);
  for (std::int64_t block = 0; block < NumBlocks(inputs); ++block) {
    const std::int64_t first = block * kBlockInputs;
    const std::int64_t count = std::min<std::int64_t>(kBlockInputs, inputs - first);
    if (block % Int8::kGroupBlocks == 0) {
      std::memset(packed + Int8::Scales(block), 0, Int8::kScaleLine);
    }
    std::uint8_t* codes = packed + Int8::Codes(block);
    std::memset(codes, kInt8Offset, Int8::kCodeBytes);
    for (std::int64_t n = 0; n < outputs; ++n) {
      float values[kBlockInputs] = {};
      std::uint32_t largest = 0;
      for (std::int64_t k = 0; k < count; ++k) {
        const Bf16 value = source[n * output_stride + first + k];
        largest = std::max<std::uint32_t>(largest, value.bits & 0x7fffu);
        values[k] = ToFloat(value);
      }
      if (largest >= 0x7f80u) return false;
      const Bf16 scale =
          ToBf16(ToFloat(Bf16{static_cast<std::uint16_t>(largest)}) * (1.0f / kInt8Max));
      if (ToFloat(scale) < std::numeric_limits<float>::min()) continue;  // all codes zero
      std::memcpy(packed + Int8::Scales(block) + n * static_cast<std::int64_t>(sizeof(scale)),
                  &scale, sizeof(scale));
      const float to_code = 1.0f / ToFloat(scale);
      std::int32_t rounded[kBlockInputs];
      for (int k = 0; k < kBlockInputs; ++k) {
        const std::int32_t code = RoundToInteger(values[k] * to_code);
        rounded[k] = std::clamp(code, -kInt8Max, kInt8Max) + kInt8Offset;
      }
      for (int k = 0; k < kBlockInputs; ++k) {
        codes[k / 4 * 64 + n * 4 + k % 4] = static_cast<std::uint8_t>(rounded[k]);
      }
    }
  }
  return true;
}

std::int32_t PanelInteger(PanelFormat format, const std::byte* panel, std::int64_t /*inputs*/,
                          int n, std::int64_t k) {
  if (format == PanelFormat::kInt8) {
    const std::byte* codes = panel + Int8::Codes(k / kBlockInputs);
    const std::int64_t i = k % kBlockInputs;
    return std::to_integer<std::int32_t>(codes[i / 4 * 64 + n * 4 + i % 4]) - kInt8Offset;
  }
  return kE2m1Offset[Mxfp4Code(panel, n, k)] - kMxfp4Offset;
}

float PanelUnscaled(PanelFormat format, const std::byte* panel, std::int64_t inputs, int n,
                    std::int64_t k) {
  if (format == PanelFormat::kBf16) {
    Bf16 value;
    std::memcpy(&value, panel + PairIndex(k, n) * static_cast<std::int64_t>(sizeof(Bf16)),
                sizeof(value));
    return ToFloat(value);
  }
  if (format == PanelFormat::kMxfp4) return kE2m1[Mxfp4Code(panel, n, k)];
  return static_cast<float>(PanelInteger(format, panel, inputs, n, k));
}

float PanelScale(PanelFormat format, const std::byte* panel, std::int64_t /*inputs*/, int n,
                 std::int64_t block) {
  switch (format) {
    case PanelFormat::kMxfp4:
      return E8m0Value(std::to_integer<std::uint8_t>(panel[Mxfp4::Scales(block) + n]));
    case PanelFormat::kInt8: {
      Bf16 scale;
      std::memcpy(&scale,
                  panel + Int8::Scales(block) + n * static_cast<std::int64_t>(sizeof(scale)),
                  sizeof(scale));
      return ToFloat(scale);
    }
    case PanelFormat::kBf16:
      break;
  }
  return 1.0f;
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
