#pragma once

// Sets of Unicode code points.

#include <cstdint>
#include <span>
#include <vector>

namespace megalith::text::grammar {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

struct CodePointRange {
  char32_t first;
  char32_t last;
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

/// Ranges in ascending order that neither touch nor overlap; no surrogates.
class CodePointSet {
 public:
  CodePointSet() = default;  ///< empty
  /// Of ranges in any order. Surrogates are left out.
  explicit CodePointSet(std::vector<CodePointRange> ranges);
  static CodePointSet All() { return CodePointSet({{0, kMaxCodePoint}}); }

  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool Contains(char32_t code_point) const;

  CodePointSet Complement() const;
  CodePointSet Union(const CodePointSet& other) const;
  CodePointSet Intersection(const CodePointSet& other) const;

  friend bool operator==(const CodePointSet&, const CodePointSet&) = default;

 private:
  std::vector<CodePointRange> ranges_;
};

}  // namespace megalith::text::grammar
