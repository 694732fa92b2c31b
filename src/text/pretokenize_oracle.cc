#include "text/pretokenize_oracle.h"

#include <unicode/regex.h>
#include <unicode/unistr.h>

#include <memory>
#include <stdexcept>

#include "text/pretokenize.h"

namespace megalith::text {
namespace {

// The reference pattern with three spellings changed to say the same to ICU: Script=Han for Han,
// White_Space for \s, and the class intersections with an explicit union on the left.
constexpr char kPattern[] =
    R"([\p{Script=Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Script=Han}]]*)"
    R"([[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Script=Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Script=Han}]]+)"
    R"([[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Script=Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3})"
    R"(| ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*)"
    R"(|\p{White_Space}*[\r\n]+)"
    R"(|\p{White_Space}+(?!\P{White_Space}))"
    R"(|\p{White_Space}+)";

}  // namespace

std::vector<std::string> SplitByIcu(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  static const std::unique_ptr<icu::RegexPattern> pattern(
      icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(kPattern), 0, status));
  if (!pattern || U_FAILURE(status)) throw std::runtime_error("ICU refuses the pattern");
  const auto input =
      icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int>(text.size())));
  const std::unique_ptr<icu::RegexMatcher> matcher(pattern->matcher(input, status));
  std::vector<std::string> pieces;
  int previous_end = 0;
  while (matcher->find(status)) {
    if (matcher->start(status) != previous_end) throw std::runtime_error("ICU skipped text");
    previous_end = matcher->end(status);
    std::string piece;
    matcher->group(status).toUTF8String(piece);
    pieces.push_back(piece);
  }
  if (U_FAILURE(status)) throw std::runtime_error(u_errorName(status));
  if (previous_end != input.length()) throw std::runtime_error("ICU left text over");
  return pieces;
}

std::vector<std::string> SplitByScanner(std::string_view text) {
  std::vector<std::string> pieces;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = FindPieceEnd(text, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

}  // namespace megalith::text
