#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <vector>

namespace megalith::text {
namespace {

struct ClassRange {
  char32_t first;
  char32_t last;
  std::uint8_t classes;
};

constexpr ClassRange kRanges[] = {
#include "text/unicode_ranges.inc"
};

// Two-stage table built once from the ranges: scanning a text reads it for every character, and a
// binary search over two thousand ranges costs several times the rest of the scanner.
class ClassTable {
 public:
  ClassTable() {
    std::map<Block, std::uint16_t> known;
    const ClassRange* range = std::begin(kRanges);
    for (char32_t start = 0; start < kNumCodePoints; start += kBlockLength) {
      Block block{};
      while (range != std::end(kRanges) && range->last < start) ++range;
      for (const ClassRange* r = range; r != std::end(kRanges) && r->first < start + kBlockLength;
           ++r) {
        const char32_t first = std::max(r->first, start);
        const char32_t last = std::min<char32_t>(r->last, start + kBlockLength - 1);
        std::fill(block.begin() + (first - start), block.begin() + (last - start + 1), r->classes);
      }
      const auto next = static_cast<std::uint16_t>(blocks_.size());
      const auto [entry, is_new] = known.emplace(block, next);
      if (is_new) blocks_.push_back(block);
      index_[start / kBlockLength] = entry->second;
    }
  }

  std::uint8_t Find(char32_t code_point) const {
    if (code_point >= kNumCodePoints) return 0;
    return blocks_[index_[code_point / kBlockLength]][code_point % kBlockLength];
  }

 private:
  static constexpr char32_t kNumCodePoints = 0x110000;
  static constexpr char32_t kBlockLength = 128;
  using Block = std::array<std::uint8_t, kBlockLength>;

  std::array<std::uint16_t, kNumCodePoints / kBlockLength> index_{};
  std::vector<Block> blocks_;
};

}  // namespace

std::uint8_t CodePointClasses(char32_t code_point) {
  static const ClassTable table;
  return table.Find(code_point);
}

}  // namespace megalith::text
