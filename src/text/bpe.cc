// Byte-pair encoding of one piece (vocabulary.h).

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "text/vocabulary.h"

namespace megalith::text {
namespace {

// Up to this length the plain search for the best pair is faster than a heap; most pieces are
// words of fewer bytes.
constexpr std::size_t kMaxShortPieceBytes = 64;

constexpr TokenId kNoRank = std::numeric_limits<TokenId>::max();

// A part of the piece in a linked list. Parts are named by the offset of their first byte.
struct Part {
  std::uint32_t end;       // offset behind its last byte = name of the next part
  std::uint32_t previous;  // name of the part before it
  TokenId pair_rank;       // of this part and the next together; kNoRank: no token, or merged away
};

// Heap entry; out of date if the part's pair_rank has changed since.
struct Candidate {
  TokenId rank;
  std::uint32_t part;
  friend bool operator>(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.part > b.part;
  }
};

}  // namespace

void Vocabulary::EncodePiece(std::string_view piece, std::vector<TokenId>& ids) const {
  if (piece.empty()) return;
  if (const TokenId whole = FindOrNone(piece); whole != kNone) {
    ids.push_back(whole);
  } else if (piece.size() <= kMaxShortPieceBytes) {
    EncodeShortPiece(piece, ids);
  } else {
    EncodeLongPiece(piece, ids);
  }
}

void Vocabulary::EncodeShortPiece(std::string_view piece, std::vector<TokenId>& ids) const {
  // starts[i] .. starts[i+1] is part i; ranks[i] is the rank of parts i and i+1 together.
  std::array<std::uint8_t, kMaxShortPieceBytes + 1> starts;
  std::array<TokenId, kMaxShortPieceBytes> ranks;
  std::size_t num_parts = piece.size();
  for (std::size_t i = 0; i <= num_parts; ++i) starts[i] = static_cast<std::uint8_t>(i);
  const auto rank_at = [&](std::size_t i) {
    if (i + 2 > num_parts) return kNoRank;
    const TokenId id =
        FindOrNone(piece.substr(starts[i], static_cast<std::size_t>(starts[i + 2] - starts[i])));
    return id == kNone ? kNoRank : id;
  };
  for (std::size_t i = 0; i < num_parts; ++i) ranks[i] = rank_at(i);

  for (;;) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + num_parts);
    if (*best == kNoRank) break;
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    std::copy(starts.begin() + i + 2, starts.begin() + num_parts + 1, starts.begin() + i + 1);
    std::copy(ranks.begin() + i + 2, ranks.begin() + num_parts, ranks.begin() + i + 1);
    --num_parts;
    ranks[i] = rank_at(i);
    if (i > 0) ranks[i - 1] = rank_at(i - 1);
  }
  for (std::size_t i = 0; i < num_parts; ++i) {
    ids.push_back(
        FindOrNone(piece.substr(starts[i], static_cast<std::size_t>(starts[i + 1] - starts[i]))));
  }
}

void Vocabulary::EncodeLongPiece(std::string_view piece, std::vector<TokenId>& ids) const {
  const auto num_bytes = static_cast<std::uint32_t>(piece.size());
  std::vector<Part> parts(num_bytes);
  const auto rank_at = [&](std::uint32_t part) {
    const std::uint32_t next = parts[part].end;
    if (next >= num_bytes) return kNoRank;
    const TokenId id = FindOrNone(piece.substr(part, parts[next].end - part));
    return id == kNone ? kNoRank : id;
  };

  for (std::uint32_t i = 0; i < num_bytes; ++i) parts[i] = {i + 1, i - 1, kNoRank};
  std::vector<Candidate> heap;
  for (std::uint32_t i = 0; i < num_bytes; ++i) {
    parts[i].pair_rank = rank_at(i);
    if (parts[i].pair_rank != kNoRank) heap.push_back({parts[i].pair_rank, i});
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  const auto update = [&](std::uint32_t part) {
    const TokenId rank = rank_at(part);
    // An entry with this rank is in the heap already, and the same pair keeps the same rank.
    if (rank == parts[part].pair_rank) return;
    parts[part].pair_rank = rank;
    if (rank == kNoRank) return;
    heap.push_back({rank, part});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate best = heap.back();
    heap.pop_back();
    Part& part = parts[best.part];
    if (part.pair_rank != best.rank) continue;
    Part& merged = parts[part.end];
    merged.pair_rank = kNoRank;
    part.end = merged.end;
    part.pair_rank = kNoRank;
    if (part.end < num_bytes) parts[part.end].previous = best.part;
    update(best.part);
    if (best.part > 0) update(part.previous);
  }
  for (std::uint32_t i = 0; i < num_bytes; i = parts[i].end) {
    ids.push_back(FindOrNone(piece.substr(i, parts[i].end - i)));
  }
}

}  // namespace megalith::text
