#pragma once

// Character classes of the tokenizer's splitting pattern, from generated Unicode 15.0 data.

#include <cstdint>

namespace megalith::text {

/// Bits of a code point's classes; a code point may have several. The same values stand in
/// scripts/unicode/generate_ranges.py.
enum CodePointClass : std::uint8_t {
  kHan = 0x01,          ///< Script=Han
  kUpperRun = 0x02,     ///< category Lu, Lt, Lm, Lo or M, and not Han
  kLowerRun = 0x04,     ///< category Ll, Lm, Lo or M, and not Han
  kLetter = 0x08,       ///< category L
  kNumber = 0x10,       ///< category N
  kWhiteSpace = 0x20,   ///< property White_Space
  kPythonSpace = 0x40,  ///< Python's str.isspace(): White_Space and U+001C..U+001F
};

/// The CodePointClass bits of a code point; 0 for unassigned ones and beyond U+10FFFF.
/// Calls may overlap.
std::uint8_t CodePointClasses(char32_t code_point);

/// True for characters Python's str.strip() removes.
inline bool IsPythonSpace(char32_t code_point) {
  return (CodePointClasses(code_point) & kPythonSpace) != 0;
}

}  // namespace megalith::text
