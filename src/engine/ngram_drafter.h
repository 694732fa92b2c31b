#pragma once

// Prompt-lookup drafting: what followed the last time the sequence read like this? Needs no
// weights and no device time.
//
// For every match length n in [shortest, longest] a hash table maps the n-gram to the last position
// where it ends, and every position keeps the one before that had the same n-gram. So the best
// match of the current end is known without a search, and removing the last token is undoing the
// last insertion. Keys are compared token by token: there are no false matches.

#include <cstdint>
#include <span>
#include <vector>

namespace megalith::engine {

struct NgramDrafterOptions {
  std::int32_t longest = 8;   ///< tokens of the longest match looked for; >= shortest
  std::int32_t shortest = 3;  ///< tokens that must match at least; >= 1
};

/// Memory: at most 4 bytes per token, and 10 to 16 more per token and match length.
class NgramDrafter {
 public:
  explicit NgramDrafter(const NgramDrafterOptions& options = {});

  /// Adds tokens at the end; fewer than 2^31 in all. Amortised constant time per token.
  void Append(std::span<const std::int32_t> tokens);
  /// Keeps the first `length` tokens; does nothing if there are no more. Constant time per token
  /// removed.
  void Truncate(std::int64_t length);
  void Clear();

  const std::vector<std::int32_t>& tokens() const { return tokens_; }

  /// Fills `drafts` with what followed the longest earlier occurrence of the sequence's end, of
  /// equally long ones the latest. Where that runs into the end of the sequence it goes on with the
  /// drafts themselves: "abcab" is continued "cabcab...". Returns the length of the match, up to
  /// `longest`; 0 and no drafts if there is none or max_drafts <= 0, otherwise exactly max_drafts
  /// drafts.
  std::int32_t Propose(std::int32_t max_drafts, std::vector<std::int32_t>* drafts) const;

  /// What a match is worth as the confidence logit of its drafts, as DraftController takes it: a
  /// guess that only has to grow with the length, since the controller calibrates it. 3 tokens give
  /// 0, 8 give 2.5.
  static float Confidence(std::int32_t match_length);

 private:
  static constexpr std::int32_t kNone = -1;

  /// The n-grams of one length, each named by the position of its last token.
  struct Index {
    std::int32_t length;
    /// Open addressing with linear probing; a power of two. Insertions are only ever undone in
    /// reverse order, so that a removed entry can simply become kNone: whatever was placed behind
    /// it is gone already.
    std::vector<std::int32_t> latest;
    std::int64_t num_used = 0;           ///< entries of `latest` that are not kNone
    std::vector<std::int32_t> previous;  ///< [tokens] the n-gram's occurrence before, or kNone
  };

  void InsertEnd(Index& index, std::uint64_t hash, std::int32_t end);
  void RemoveEnd(Index& index, std::int32_t end);
  void Grow(Index& index);
  std::uint64_t HashAt(std::int32_t end, std::int32_t length) const;
  /// Where the n-gram that ends at `end` is in `index.latest`, or would be placed.
  std::size_t FindSlot(const Index& index, std::uint64_t hash, std::int32_t end) const;

  std::vector<std::int32_t> tokens_;
  std::vector<Index> indexes_;  ///< by increasing length
};

}  // namespace megalith::engine
