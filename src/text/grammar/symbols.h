#pragma once

// The alphabet of grammars: the 256 bytes of ordinary tokens, and the special tokens of the chat
// format, each of which is one symbol. So one automaton covers tags, markers and text.

#include <cstdint>

namespace megalith::text::grammar {

using Symbol = std::uint16_t;

inline constexpr Symbol kNumBytes = 256;
inline constexpr Symbol kOpenMarker = 256;    ///< <|open|>
inline constexpr Symbol kCloseMarker = 257;   ///< <|close|>
inline constexpr Symbol kSepMarker = 258;     ///< <|sep|>
inline constexpr Symbol kEndOfReply = 259;    ///< <|end_of_msg|> and [EOS]
inline constexpr Symbol kOtherSpecial = 260;  ///< every other special token
inline constexpr Symbol kNumSymbols = 261;

/// Text in which an automaton comes back to the same state after each character, so that most
/// tokens need not be followed byte by byte.
enum class TextClass : std::uint8_t {
  kNone,
  kJsonString,  ///< characters that stand unescaped in a JSON string
  kCharacters,  ///< any characters, valid UTF-8
  kBytes,       ///< any bytes
};

/// A byte that can be (part of) a character of the class. Whole characters are needed, too, except
/// for kBytes.
constexpr bool IsPlainByte(TextClass text_class, std::uint8_t byte) {
  switch (text_class) {
    case TextClass::kNone:
      return false;
    case TextClass::kJsonString:
      return byte >= 0x20 && byte != '"' && byte != '\\';
    case TextClass::kCharacters:
    case TextClass::kBytes:
      return true;
  }
  return false;
}

}  // namespace megalith::text::grammar
