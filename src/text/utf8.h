#pragma once

// UTF-8, strictly as in the Unicode Standard: no overlong forms, no surrogates, at most U+10FFFF.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::text {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

/// One step through a byte string.
struct Utf8Step {
  char32_t code_point;        ///< U+FFFD if `valid` is false
  std::uint8_t length_bytes;  ///< bytes used: the character, or the maximal invalid prefix; >= 1
  bool valid;
  bool incomplete;  ///< not valid, but only because the string ends inside a character
};

/// Decodes the character at `offset`. REQUIRES offset < text.size().
Utf8Step DecodeUtf8(std::string_view text, std::size_t offset);

/// Appends the UTF-8 form of a scalar value (a code point that is no surrogate).
void AppendUtf8(char32_t code_point, std::string& out);

/// Byte offset of the first byte that is not part of valid UTF-8; empty if all of it is valid.
std::optional<std::size_t> FindInvalidUtf8(std::string_view text);

/// Turns a stream of bytes into valid UTF-8. A character cut by a chunk border is held back until
/// it is complete; every maximal invalid part becomes one U+FFFD (Unicode Standard 3.9, "Best
/// Practices for Using U+FFFD"), so the result does not depend on how the bytes were chunked.
class Utf8Repair {
 public:
  /// Appends what the bytes so far determine.
  void Push(std::string_view bytes, std::string& out);

  /// Ends the stream: a character that was cut becomes one U+FFFD. Ready for a new stream after.
  void Flush(std::string& out);

  /// True if bytes of an incomplete character are held back.
  bool holding() const { return num_held_bytes_ > 0; }

 private:
  std::array<char, 4> held_{};
  std::size_t num_held_bytes_ = 0;
};

/// The whole string at once: Push and Flush.
std::string RepairUtf8(std::string_view bytes);

}  // namespace megalith::text
