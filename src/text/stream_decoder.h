#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace megalith::text {

enum class SpecialText {
  kSkip,  ///< special tokens leave no text
  kShow,  ///< special tokens appear as their names
};

/// Ids to valid UTF-8, one token at a time. A character that spans tokens is held back until it is
/// complete; invalid bytes become U+FFFD; a special token ends a character that was cut, whether
/// it is shown or not. All texts joined equal DecodeText of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, SpecialText special = SpecialText::kSkip)
      : tokenizer_(std::move(tokenizer)), special_(special) {}

  /// The text this token completes, possibly empty. kOutOfRange for an id outside the vocabulary.
  Result<std::string> Push(TokenId id);

  /// Ends the stream: U+FFFD if a character was cut, else empty.
  std::string Finish();

 private:
  Tokenizer tokenizer_;
  SpecialText special_;
  Utf8Repair repair_;
};

/// The whole sequence at once.
Result<std::string> DecodeText(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                               SpecialText special = SpecialText::kSkip);

}  // namespace megalith::text
