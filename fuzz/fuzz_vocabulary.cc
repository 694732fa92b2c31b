// Tokenizer files from hostile bytes: rank file, rank file behind a valid beginning, special-token
// config, tokenizer.json. Whatever is accepted must encode and decode without loss.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/base64.h"
#include "text/hf_tokenizer.h"
#include "text/tokenizer.h"

namespace {

using megalith::text::EncodeBase64;
using megalith::text::TokenId;
using megalith::text::Tokenizer;

std::string SingleByteRanks() {
  std::string file;
  for (int byte = 0; byte < 256; ++byte) {
    file +=
        EncodeBase64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  }
  return file;
}

void Require(bool condition) {
  if (!condition) std::abort();
}

void UseTokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const auto raw = tokenizer.EncodeBytes(text);
  Require(raw.has_value() && tokenizer.DecodeBytes(*raw) == std::string(text));
  if (const auto ids = tokenizer.Encode(text)) {
    Require(tokenizer.DecodeBytes(*ids) == std::string(text));
    for (const TokenId id : *ids) Require(!tokenizer.IsSpecial(id));
  }
  if (const auto ids = tokenizer.EncodeWithSpecials(text)) {
    Require(tokenizer.DecodeBytes(*ids) == std::string(text));
  }
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    Require(!tokenizer.TokenBytes(id).empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::string ranks = SingleByteRanks();
  constexpr std::string_view kConfig = R"({"added_tokens_decoder":{"256":{"content":"<x>"}}})";
  constexpr std::string_view kNoNames = R"({"added_tokens_decoder":{}})";
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      const auto tokenizer = Tokenizer::FromFiles(input, kNoNames);
      if (tokenizer) UseTokenizer(*tokenizer, input);
      break;
    }
    case 1: {
      const auto tokenizer = Tokenizer::FromFiles(ranks + std::string(input), kNoNames);
      if (tokenizer) UseTokenizer(*tokenizer, input);
      break;
    }
    case 2: {
      const auto tokenizer = Tokenizer::FromFiles(ranks, input);
      if (tokenizer) UseTokenizer(*tokenizer, input);
      break;
    }
    default: {
      static const auto tokenizer = Tokenizer::FromFiles(ranks, kConfig);
      const auto status = megalith::text::CheckHfTokenizer(*tokenizer, input, "tokenizer.json");
      Require(status.has_value() || !status.error().message.empty());
    }
  }
  return 0;
}
