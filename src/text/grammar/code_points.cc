#include "text/grammar/code_points.h"

#include <algorithm>

namespace megalith::text::grammar {
namespace {

constexpr char32_t kBeforeSurrogates = 0xD7FF;
constexpr char32_t kBehindSurrogates = 0xE000;

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) {
  std::vector<CodePointRange> scalar;
  for (const CodePointRange& range : ranges) {
    scalar.push_back({range.first, std::min(range.last, kBeforeSurrogates)});
    scalar.push_back({std::max(range.first, kBehindSurrogates), range.last});
  }
  std::erase_if(scalar, [](const CodePointRange& range) { return range.first > range.last; });
  std::sort(scalar.begin(), scalar.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  for (const CodePointRange& range : scalar) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodePointSet::Contains(char32_t code_point) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [code_point](const CodePointRange& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

CodePointSet CodePointSet::Complement() const {
  std::vector<CodePointRange> gaps;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) gaps.push_back({next, kMaxCodePoint});
  return CodePointSet(std::move(gaps));
}

CodePointSet CodePointSet::Union(const CodePointSet& other) const {
  std::vector<CodePointRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePointSet(std::move(all));
}

CodePointSet CodePointSet::Intersection(const CodePointSet& other) const {
  return Complement().Union(other.Complement()).Complement();
}

}  // namespace megalith::text::grammar
