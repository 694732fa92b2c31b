#include "weights/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace megalith::weights {
namespace {

/// Exponent bits of each element in a word, and the lowest of them: an exponent of all ones plus
/// that bit carries into the sign bit, which was masked out, and no further.
struct Lanes {
  std::size_t element_bytes;
  std::uint64_t exponent;
  std::uint64_t lowest;
  std::uint64_t sign;
};
constexpr Lanes kBf16Lanes = {2, 0x7f80'7f80'7f80'7f80u, 0x0080'0080'0080'0080u,
                              0x8000'8000'8000'8000u};
constexpr Lanes kF32Lanes = {4, 0x7f80'0000'7f80'0000u, 0x0080'0000'0080'0000u,
                             0x8000'0000'8000'0000u};

/// Eight sums and no branch within: packing touches every weight of a model, and this must not
/// show.
template <const Lanes& kLanes>
bool AnyInBlock(const std::byte* bytes, std::size_t num_words) {
  constexpr std::size_t kWords = 8;
  std::uint64_t carries[kWords] = {};
  std::size_t i = 0;
  for (; i + kWords <= num_words; i += kWords) {
    std::uint64_t words[kWords];
    std::memcpy(words, bytes + i * sizeof(words[0]), sizeof(words));
    for (std::size_t k = 0; k < kWords; ++k) {
      carries[k] |= (words[k] & kLanes.exponent) + kLanes.lowest;
    }
  }
  for (; i < num_words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    carries[0] |= (word & kLanes.exponent) + kLanes.lowest;
  }
  std::uint64_t any = 0;
  for (const std::uint64_t carry : carries) any |= carry;
  return (any & kLanes.sign) != 0;
}

template <const Lanes& kLanes>
std::optional<std::size_t> Find(std::span<const std::byte> bytes) {
  constexpr std::size_t kBlockBytes = 4096;
  constexpr std::size_t kPerWord = sizeof(std::uint64_t) / kLanes.element_bytes;
  const std::size_t count = bytes.size() / kLanes.element_bytes;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
    const std::size_t size = std::min(kBlockBytes, bytes.size() - begin);
    const std::size_t num_words = size / sizeof(std::uint64_t);
    const bool tail = num_words * sizeof(std::uint64_t) != size;
    if (!tail && !AnyInBlock<kLanes>(bytes.data() + begin, num_words)) continue;
    const std::size_t first = begin / kLanes.element_bytes;
    const std::size_t last = std::min(count, first + num_words * kPerWord + (tail ? kPerWord : 0));
    for (std::size_t i = first; i < last; ++i) {
      std::uint64_t element = 0;
      std::memcpy(&element, bytes.data() + i * kLanes.element_bytes, kLanes.element_bytes);
      constexpr std::uint64_t kLowMask = kLanes.element_bytes == 2 ? 0x7f80u : 0x7f80'0000u;
      if ((element & kLowMask) == kLowMask) return i;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> FindNonFinite(std::span<const std::byte> bytes, DType dtype) {
  if (dtype == DType::kBf16) return Find<kBf16Lanes>(bytes);
  if (dtype == DType::kF32) return Find<kF32Lanes>(bytes);
  return std::nullopt;
}

}  // namespace megalith::weights
