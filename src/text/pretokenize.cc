#include "text/pretokenize.h"

#include <cstdint>

#include "text/unicode.h"
#include "text/utf8.h"

namespace megalith::text {
namespace {

constexpr std::size_t kNoMatch = 0;  // a match is never empty, so its end is never 0

struct Character {
  char32_t code_point;
  std::uint8_t classes;
  std::size_t end;  // byte offset behind it
};

bool IsNewline(char32_t code_point) { return code_point == '\r' || code_point == '\n'; }

// The alternatives of the pattern as methods; each returns the end of its match or kNoMatch.
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text) {}

  std::size_t PieceEnd(std::size_t begin) const {
    const Character first = At(begin);
    if (first.classes & kHan) return RunEnd(first.end, kHan);
    if (const std::size_t end = WordEnd(begin, first)) return end;
    if (first.classes & kNumber) return NumberEnd(first);
    if (const std::size_t end = PunctuationEnd(begin, first)) return end;
    return WhiteSpaceEnd(begin);
  }

 private:
  // Behind the text every class test fails, as a match past the end would.
  Character At(std::size_t offset) const {
    if (offset >= text_.size()) return {0xFFFFFFFF, 0, offset};
    const auto byte = static_cast<std::uint8_t>(text_[offset]);
    if (byte < 0x80) return {byte, CodePointClasses(byte), offset + 1};
    const Utf8Step step = DecodeUtf8(text_, offset);
    return {step.code_point, CodePointClasses(step.code_point), offset + step.length_bytes};
  }

  std::size_t RunEnd(std::size_t offset, std::uint8_t classes) const {
    for (;;) {
      const Character c = At(offset);
      if (!(c.classes & classes)) return offset;
      offset = c.end;
    }
  }

  // Alternatives 2 and 3. Each tries the optional leading character first and goes on without it
  // if the rest fails; 3 is tried only when both forms of 2 have failed.
  std::size_t WordEnd(std::size_t begin, const Character& first) const {
    const bool can_lead = !IsNewline(first.code_point) && !(first.classes & (kLetter | kNumber));
    if (can_lead) {
      if (const std::size_t end = MixedWordEnd(first.end)) return ContractionEnd(end);
    }
    if (const std::size_t end = MixedWordEnd(begin)) return ContractionEnd(end);
    if (can_lead && (At(first.end).classes & kUpperRun)) {
      return ContractionEnd(RunEnd(first.end, kUpperRun));
    }
    if (first.classes & kUpperRun) return ContractionEnd(RunEnd(begin, kUpperRun));
    return kNoMatch;
  }

  // [U]*[W]+. The greedy U run gives characters back from its end until the one given back is in
  // W as well. If a W character follows the run nothing is given back; else the match ends behind
  // the last character of the run that is in both classes, because none behind it is in W.
  //
  // Linear although the run may be looked at again: behind the last character in both classes only
  // Lu and Lt remain, so the next piece takes all of them by alternative 3.
  std::size_t MixedWordEnd(std::size_t begin) const {
    std::size_t offset = begin;
    std::size_t last_shared_end = kNoMatch;
    for (;;) {
      const Character c = At(offset);
      if (!(c.classes & kUpperRun)) {
        return c.classes & kLowerRun ? RunEnd(c.end, kLowerRun) : last_shared_end;
      }
      if (c.classes & kLowerRun) last_shared_end = c.end;
      offset = c.end;
    }
  }

  // Alternative 3's [U]+[W]* needs no own code: it runs only where 2 failed, that is where no W
  // character follows the run, so it is the U run alone.

  // (?i:'s|'t|'re|'ve|'m|'ll|'d)? at `offset`; returns `offset` itself if it does not match.
  std::size_t ContractionEnd(std::size_t offset) const {
    if (offset >= text_.size() || text_[offset] != '\'') return offset;
    const Character c = At(offset + 1);
    switch (Fold(c.code_point)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return c.end;
      case 'r':
      case 'v': {
        const Character e = At(c.end);
        return Fold(e.code_point) == 'e' ? e.end : offset;
      }
      case 'l': {
        const Character l = At(c.end);
        return Fold(l.code_point) == 'l' ? l.end : offset;
      }
      default:
        return offset;
    }
  }

  // Simple case folding, as far as it can reach one of the letters above: of the characters
  // outside ASCII only U+017F (long s) does.
  static char32_t Fold(char32_t code_point) {
    if (code_point >= 'A' && code_point <= 'Z') return code_point + ('a' - 'A');
    return code_point == 0x17F ? U's' : code_point;
  }

  std::size_t NumberEnd(const Character& first) const {
    std::size_t end = first.end;
    for (int i = 1; i < 3; ++i) {
      const Character c = At(end);
      if (!(c.classes & kNumber)) break;
      end = c.end;
    }
    return end;
  }

  std::size_t PunctuationEnd(std::size_t begin, const Character& first) const {
    std::size_t offset = first.code_point == ' ' ? first.end : begin;
    const std::size_t punctuation_begin = offset;
    while (offset < text_.size()) {
      const Character c = At(offset);
      if (c.classes & (kWhiteSpace | kLetter | kNumber)) break;
      offset = c.end;
    }
    if (offset == punctuation_begin) return kNoMatch;
    while (offset < text_.size() && IsNewline(static_cast<std::uint8_t>(text_[offset]))) ++offset;
    return offset;
  }

  // Alternatives 6 to 8. 6 gives back to the last newline of the run; 7 gives back one character
  // unless the text ends; 8 takes what is left, a single character before a non-space.
  std::size_t WhiteSpaceEnd(std::size_t begin) const {
    std::size_t offset = begin;
    std::size_t last_begin = begin;
    std::size_t last_newline_end = kNoMatch;
    for (;;) {
      const Character c = At(offset);
      if (!(c.classes & kWhiteSpace)) break;
      if (IsNewline(c.code_point)) last_newline_end = c.end;
      last_begin = offset;
      offset = c.end;
    }
    if (last_newline_end != kNoMatch) return last_newline_end;
    if (offset >= text_.size() || last_begin == begin) return offset;
    return last_begin;
  }

  std::string_view text_;
};

}  // namespace

std::size_t FindPieceEnd(std::string_view text, std::size_t begin) {
  return Matcher(text).PieceEnd(begin);
}

std::string_view LongTextCutter::Next() {
  const std::size_t begin = position_;
  std::size_t num_run_characters = 0;
  bool run_is_space = false;
  while (position_ < text_.size() && num_slice_characters_ < kMaxSliceCharacters) {
    const Utf8Step step = DecodeUtf8(text_, position_);
    const bool is_space = IsPythonSpace(step.code_point);
    if (num_run_characters > 0 && is_space != run_is_space) num_run_characters = 0;
    run_is_space = is_space;
    // The character that would make the run too long starts the next part.
    if (num_run_characters == kMaxRunCharacters) return text_.substr(begin, position_ - begin);
    ++num_run_characters;
    ++num_slice_characters_;
    position_ += step.length_bytes;
  }
  num_slice_characters_ = 0;
  return text_.substr(begin, position_ - begin);
}

}  // namespace megalith::text
