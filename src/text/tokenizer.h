#pragma once

// Text to token ids and back, for models that ship a tiktoken rank file (Kimi K2, Kimi-Linear,
// Kimi K3). Needs no model: only the two tokenizer files.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/special_tokens.h"
#include "text/token_id.h"
#include "text/vocabulary.h"

namespace megalith::text {

/// The ids the chat format is built from, found by name.
struct ControlTokens {
  TokenId open;        ///< <|open|>
  TokenId close;       ///< <|close|>
  TokenId sep;         ///< <|sep|>
  TokenId end_of_msg;  ///< <|end_of_msg|>
  TokenId eos;         ///< [EOS]
};

/// Immutable; a copy shares the tables and costs nothing. Calls may overlap.
class Tokenizer {
 public:
  /// Reads `tiktoken.model` and `tokenizer_config.json` in `model_dir`. If `tokenizer.json` lies
  /// beside them, it must give every token the same id (the error names the first that differs);
  /// it is never used itself. `vocab_size`, if given, is the model's and must be ranks + 256.
  /// Errors: kNotFound (saying which file is needed), kIo, kBadFile, kBadConfig (vocab_size).
  static Result<Tokenizer> Load(const std::filesystem::path& model_dir,
                                std::optional<std::int64_t> vocab_size = std::nullopt);

  /// The same from the contents of the two files.
  static Result<Tokenizer> FromFiles(std::string_view ranks, std::string_view tokenizer_config,
                                     std::optional<std::int64_t> vocab_size = std::nullopt);

  /// Ids 0 .. vocab_size()-1: ordinary tokens, then 256 special ones.
  TokenId vocab_size() const;
  const Vocabulary& vocabulary() const;
  const SpecialTokens& special_tokens() const;
  /// Which files it was made from, for a message to the user.
  const std::string& source() const;
  bool IsSpecial(TokenId id) const { return special_tokens().Contains(id); }

  /// The chat format's ids; kUnsupported, naming the token, if the vocabulary lacks one.
  Result<ControlTokens> FindControlTokens() const;

  /// Ordinary text: the names of special tokens have no meaning in it, so whatever a user types
  /// never becomes a control id. Nothing is added in front or behind. kUsage if the text is not
  /// valid UTF-8, with the byte offset (a request with such text is better refused than changed);
  /// see EncodeBytes. Time O(n log n) at most, memory O(n).
  Result<std::vector<TokenId>> Encode(std::string_view text) const;

  /// Appends to `ids`; on error `ids` is unchanged.
  Status EncodeTo(std::string_view text, std::vector<TokenId>& ids) const;

  /// Names of special tokens become their ids, from left to right, the longest name first. For
  /// prompts typed by an operator; never for text that contains a user's words.
  Result<std::vector<TokenId>> EncodeWithSpecials(std::string_view text) const;

  /// Byte-pair encoding of raw bytes as one piece, without splitting: decodes to exactly these
  /// bytes, whatever they are. kUsage above 1 GiB.
  Result<std::vector<TokenId>> EncodeBytes(std::string_view bytes) const;

  /// The tokens' bytes one behind the other, special tokens as their names. Not always valid
  /// UTF-8; for text see StreamDecoder and DecodeText. kOutOfRange for an id outside the
  /// vocabulary.
  Result<std::string> DecodeBytes(std::span<const TokenId> ids) const;

  /// The bytes of one token. REQUIRES 0 <= id < vocab_size().
  std::string_view TokenBytes(TokenId id) const;

  /// Checks ids from outside; kOutOfRange names the first one that is not in the vocabulary.
  Result<std::vector<TokenId>> CheckIds(std::span<const std::int64_t> ids) const;

 private:
  struct Tables;
  explicit Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  static Result<Tokenizer> Create(std::string_view ranks, std::string_view ranks_name,
                                  std::string_view config, std::string_view config_name,
                                  std::optional<std::int64_t> vocab_size);

  std::shared_ptr<const Tables> tables_;
};

}  // namespace megalith::text
