#pragma once

// Splitting text into the pieces that byte-pair encoding works on. Same pieces as the reference
// pattern (Perl semantics: leftmost match, first alternative that matches, with backtracking):
//
//   1  [\p{Han}]+
//   2  [^\r\n\p{L}\p{N}]?[U]*[W]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   3  [^\r\n\p{L}\p{N}]?[U]+[W]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   4  \p{N}{1,3}
//   5   ?[^\s\p{L}\p{N}]+[\r\n]*
//   6  \s*[\r\n]+
//   7  \s+(?!\S)
//   8  \s+
//
// with U = \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M} without Han and W = \p{Ll}\p{Lm}\p{Lo}\p{M} without Han.
// The scanner is written by hand because regular-expression libraries lack the class intersection
// or the look-ahead, and recurse per character on long runs. Time is linear and memory constant:
// every character is looked at a bounded number of times (see the notes in the source).

#include <cstddef>
#include <string_view>

namespace megalith::text {

/// End of the piece that starts at byte `begin`. The text ends at text.size(): look-ahead sees
/// nothing beyond. REQUIRES valid UTF-8 and begin < text.size(); the result is > begin.
std::size_t FindPieceEnd(std::string_view text, std::size_t begin);

/// The reference tokenizer does not pass long text to the splitter as a whole: it takes slices of
/// kMaxSliceCharacters and cuts each wherever more than kMaxRunCharacters consecutive characters
/// are white space, or are not (white space in the sense of Python's str.isspace()). Returns the
/// end of the part that starts at `begin`.
class LongTextCutter {
 public:
  static constexpr std::size_t kMaxSliceCharacters = 400'000;
  static constexpr std::size_t kMaxRunCharacters = 25'000;

  /// REQUIRES valid UTF-8; keeps the view.
  explicit LongTextCutter(std::string_view text) : text_(text) {}

  /// The next part, in order; empty when all text was returned.
  std::string_view Next();

 private:
  std::string_view text_;
  std::size_t position_ = 0;              // bytes
  std::size_t num_slice_characters_ = 0;  // of the current slice, already returned
};

}  // namespace megalith::text
