#pragma once

// The 256 special ids above the ranks. tokenizer_config.json names some of them; the others are
// called <|reserved_token_{id}|>.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/token_id.h"

namespace megalith::text {

class SpecialTokens {
 public:
  static constexpr TokenId kNumTokens = 256;

  /// Reads `added_tokens_decoder` of a tokenizer_config.json. `first_id`: number of ranks. Entries
  /// at first_id + 256 and above (leftovers of older vocabularies) are dropped and listed. Errors
  /// (kBadFile) start with `name`: not JSON, no such member, an id that is no number or belongs to
  /// an ordinary token, a name that is empty or stands twice.
  static Result<SpecialTokens> Parse(std::string_view tokenizer_config, std::string_view name,
                                     TokenId first_id);

  TokenId first_id() const { return first_id_; }
  bool Contains(TokenId id) const { return id >= first_id_ && id - first_id_ < kNumTokens; }

  /// REQUIRES Contains(id).
  const std::string& Name(TokenId id) const {
    return names_[static_cast<std::size_t>(id - first_id_)];
  }

  /// True if the config names this id. REQUIRES Contains(id).
  bool IsNamed(TokenId id) const { return named_[static_cast<std::size_t>(id - first_id_)]; }

  std::optional<TokenId> Find(std::string_view name) const;

  struct Match {
    std::size_t offset = 0;  ///< text.size() if there is none
    TokenId id = 0;
  };
  /// The first special name in text at or behind `offset`; the longest one at that place.
  Match FindFirst(std::string_view text, std::size_t offset) const;

  /// Ids of the entries that were dropped, ascending.
  const std::vector<TokenId>& dropped_ids() const { return dropped_ids_; }

 private:
  void BuildIndex();

  TokenId first_id_ = 0;
  std::vector<std::string> names_;  // [kNumTokens]
  std::vector<bool> named_;         // [kNumTokens]
  std::vector<TokenId> dropped_ids_;
  std::unordered_map<std::string, TokenId> ids_;
  std::string first_bytes_;           // that a name can start with
  std::vector<std::size_t> lengths_;  // of names in bytes, each once, longest first
};

}  // namespace megalith::text
