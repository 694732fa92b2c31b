#include "text/stream_decoder.h"

namespace megalith::text {

Result<std::string> StreamDecoder::Push(TokenId id) {
  if (id < 0 || id >= tokenizer_.vocab_size()) {
    return Fail(ErrorCode::kOutOfRange, "token id: 0 to {} expected, {} found",
                tokenizer_.vocab_size() - 1, id);
  }
  std::string text;
  if (tokenizer_.IsSpecial(id)) {
    repair_.Flush(text);
    if (special_ == SpecialText::kShow) text.append(tokenizer_.TokenBytes(id));
  } else {
    repair_.Push(tokenizer_.TokenBytes(id), text);
  }
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  repair_.Flush(text);
  return text;
}

Result<std::string> DecodeText(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                               SpecialText special) {
  StreamDecoder decoder(tokenizer, special);
  std::string text;
  for (const TokenId id : ids) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string part, decoder.Push(id));
    text.append(part);
  }
  text.append(decoder.Finish());
  return text;
}

}  // namespace megalith::text
