#pragma once

// How workers share the attention of a run over a long context: by chunk and head. A few numbers
// that everybody knows say who computes what, so whoever merges finds what the others have left.

#include <cstdint>

#include "base/align.h"
#include "program/program.h"

namespace megalith::program {

/// Attention over at most so many positions is shared out by heads alone. Two more joins cost a few
/// microseconds; a layer's cache of that length, 4.7 MB for Kimi K3, is read in as many from a
/// shared cache.
inline constexpr std::int64_t kUndividedPositions = 4096;

/// The items of one run are its (chunk, head), heads inside. An item costs the positions of its
/// chunk. Share s has the items that begin in [s, s + 1) / shares of all cost: a contiguous range,
/// within one item of the mean.
class AttentionDivision {
 public:
  /// `positions`: of the run's last row. All at least 1; their product below 2^62.
  AttentionDivision(std::int64_t heads, std::int64_t positions, std::int64_t shares)
      : heads_(heads),
        shares_(shares),
        num_chunks_(CeilDiv<std::int64_t>(positions, kAttentionChunk)),
        last_chunk_(positions - (num_chunks_ - 1) * kAttentionChunk),
        total_(heads * positions) {}

  std::int64_t num_chunks() const { return num_chunks_; }
  std::int64_t num_items() const { return num_chunks_ * heads_; }
  std::int64_t Item(std::int64_t chunk, std::int64_t head) const { return chunk * heads_ + head; }

  /// The first item of a share or a later one; num_items() for share == shares.
  std::int64_t FirstItem(std::int64_t share) const {
    const std::int64_t cost = CeilDiv(share * total_, shares_);
    const std::int64_t whole_chunks = (num_chunks_ - 1) * heads_;
    const std::int64_t cost_of_whole = whole_chunks * kAttentionChunk;
    if (cost <= cost_of_whole) return CeilDiv<std::int64_t>(cost, kAttentionChunk);
    return whole_chunks + CeilDiv(cost - cost_of_whole, last_chunk_);
  }

  /// The share that an item belongs to.
  std::int64_t ShareOf(std::int64_t item) const {
    const std::int64_t whole_chunks = (num_chunks_ - 1) * heads_;
    const std::int64_t begin =
        item <= whole_chunks ? item * kAttentionChunk
                             : whole_chunks * kAttentionChunk + (item - whole_chunks) * last_chunk_;
    return begin * shares_ / total_;
  }

 private:
  std::int64_t heads_;
  std::int64_t shares_;
  std::int64_t num_chunks_;
  std::int64_t last_chunk_;  // its positions
  std::int64_t total_;       // cost
};

/// Most items that a share has of a run of at most `max_positions`. The last chunk may be short, so
/// its heads may all come on top of what a share has of the others.
constexpr std::int64_t MaxItemsOfShare(std::int64_t heads, std::int64_t max_positions,
                                       std::int64_t shares) {
  const std::int64_t whole = CeilDiv(heads * max_positions, shares * kAttentionChunk);
  const std::int64_t all = CeilDiv<std::int64_t>(max_positions, kAttentionChunk) * heads;
  return whole + heads < all ? whole + heads : all;
}

/// Floats from one item's partial result to the next: weighted latents, maximum and total, in whole
/// cache lines, so that no two workers write to the same.
constexpr std::int64_t PartialStride(std::int64_t rank) {
  return RoundUp<std::int64_t>(rank + 2, 16);
}

}  // namespace megalith::program
