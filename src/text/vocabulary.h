#pragma once

// The ordinary tokens: byte strings with consecutive ranks, rank = token id, lower rank merged
// first.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/token_id.h"

namespace megalith::text {

class Vocabulary {
 public:
  /// Limits of what Parse accepts; the released vocabulary has 163,584 tokens of at most 256 bytes
  /// in 2.8 MB.
  static constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMaxTokenBytes = 1024;
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 22;

  /// Reads the tiktoken form: lines of `base64(bytes) SPACE rank LF`, in any order, the last LF
  /// optional. Every rank 0..n-1 exactly once, no byte string twice, all 256 single bytes present.
  /// Errors (kBadFile) start with `name` and say line, expected, found.
  static Result<Vocabulary> Parse(std::string_view file, std::string_view name);

  TokenId num_tokens() const { return static_cast<TokenId>(offsets_.size() - 1); }
  std::size_t max_token_bytes() const { return max_token_bytes_; }

  /// REQUIRES 0 <= id < num_tokens().
  std::string_view Bytes(TokenId id) const {
    const auto i = static_cast<std::size_t>(id);
    return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }

  /// The token with exactly these bytes.
  std::optional<TokenId> Find(std::string_view bytes) const {
    const TokenId id = FindOrNone(bytes);
    return id == kNone ? std::nullopt : std::optional<TokenId>(id);
  }

  /// Byte-pair encoding of one piece: the piece itself if it is a token; else, from single bytes,
  /// merges the adjacent pair whose concatenation has the lowest rank, leftmost on ties, until no
  /// adjacent pair is a token. Any bytes are allowed. O(n log n) time and O(n) memory.
  void EncodePiece(std::string_view piece, std::vector<TokenId>& ids) const;

 private:
  static constexpr TokenId kNone = -1;

  Vocabulary() = default;

  TokenId FindOrNone(std::string_view bytes) const;
  Status BuildIndex(std::string_view name, const std::vector<std::uint32_t>& lines);
  void EncodeShortPiece(std::string_view piece, std::vector<TokenId>& ids) const;
  void EncodeLongPiece(std::string_view piece, std::vector<TokenId>& ids) const;

  std::string bytes_;                   // of all tokens, in order of id
  std::vector<std::uint32_t> offsets_;  // [num_tokens + 1] into bytes_
  std::vector<TokenId> slots_;          // open-addressing hash table, kNone = empty; size 2^k
  std::array<TokenId, 256> single_{};   // by byte
  std::vector<TokenId> pairs_;          // [65536] by first byte * 256 + second byte
  std::size_t max_token_bytes_ = 0;
};

}  // namespace megalith::text
