#include "engine/ngram_drafter.h"

#include <algorithm>

#include "base/check.h"

namespace megalith::engine {
namespace {

constexpr std::size_t kSmallestTable = 64;

/// The hash of an n-gram is built from its last token to its first, so that one pass gives the
/// hashes of all lengths.
std::uint64_t HashOneMore(std::uint64_t hash, std::int32_t token) {
  hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

NgramDrafter::NgramDrafter(const NgramDrafterOptions& options) {
  MEGALITH_CHECK(options.shortest >= 1);
  MEGALITH_CHECK(options.longest >= options.shortest);
  for (std::int32_t length = options.shortest; length <= options.longest; ++length) {
    indexes_.push_back({.length = length, .latest = {}, .previous = {}});
  }
  Clear();
}

void NgramDrafter::Clear() {
  tokens_.clear();
  for (Index& index : indexes_) {
    index.latest.assign(kSmallestTable, kNone);
    index.num_used = 0;
    index.previous.clear();
  }
}

void NgramDrafter::Append(std::span<const std::int32_t> tokens) {
  for (std::int32_t token : tokens) {
    const auto end = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back(token);
    std::uint64_t hash = 0;
    std::int32_t hashed = 0;
    for (Index& index : indexes_) {
      if (index.length > end + 1) {
        index.previous.push_back(kNone);
        continue;
      }
      for (; hashed < index.length; ++hashed) {
        hash = HashOneMore(hash, tokens_[static_cast<std::size_t>(end - hashed)]);
      }
      InsertEnd(index, hash, end);
    }
  }
}

void NgramDrafter::Truncate(std::int64_t length) {
  length = std::max<std::int64_t>(length, 0);
  while (static_cast<std::int64_t>(tokens_.size()) > length) {
    const auto end = static_cast<std::int32_t>(tokens_.size() - 1);
    for (Index& index : indexes_) RemoveEnd(index, end);
    tokens_.pop_back();
  }
}

std::int32_t NgramDrafter::Propose(std::int32_t max_drafts,
                                   std::vector<std::int32_t>* drafts) const {
  drafts->clear();
  if (tokens_.empty() || max_drafts <= 0) return 0;
  for (auto index = indexes_.rbegin(); index != indexes_.rend(); ++index) {
    const std::int32_t match = index->previous.back();
    if (match == kNone) continue;
    const std::size_t first = static_cast<std::size_t>(match) + 1;
    const std::size_t distance = tokens_.size() - first;
    for (std::size_t i = 0; i < static_cast<std::size_t>(max_drafts); ++i) {
      drafts->push_back(i < distance ? tokens_[first + i] : (*drafts)[i - distance]);
    }
    return index->length;
  }
  return 0;
}

float NgramDrafter::Confidence(std::int32_t match_length) {
  return 0.5f * static_cast<float>(match_length) - 1.5f;
}

void NgramDrafter::InsertEnd(Index& index, std::uint64_t hash, std::int32_t end) {
  if (index.num_used * 3 >= static_cast<std::int64_t>(index.latest.size()) * 2) Grow(index);
  std::int32_t& latest = index.latest[FindSlot(index, hash, end)];
  if (latest == kNone) ++index.num_used;
  index.previous.push_back(latest);
  latest = end;
}

void NgramDrafter::RemoveEnd(Index& index, std::int32_t end) {
  if (index.length <= end + 1) {
    std::int32_t& latest = index.latest[FindSlot(index, HashAt(end, index.length), end)];
    latest = index.previous.back();
    if (latest == kNone) --index.num_used;
  }
  index.previous.pop_back();
}

void NgramDrafter::Grow(Index& index) {
  index.latest.assign(index.latest.size() * 2, kNone);
  // In the order of the sequence, which keeps what `latest` says about removals true.
  for (std::size_t i = static_cast<std::size_t>(index.length) - 1; i < index.previous.size(); ++i) {
    const auto end = static_cast<std::int32_t>(i);
    index.latest[FindSlot(index, HashAt(end, index.length), end)] = end;
  }
}

std::uint64_t NgramDrafter::HashAt(std::int32_t end, std::int32_t length) const {
  std::uint64_t hash = 0;
  for (std::int32_t i = 0; i < length; ++i) {
    hash = HashOneMore(hash, tokens_[static_cast<std::size_t>(end - i)]);
  }
  return hash;
}

std::size_t NgramDrafter::FindSlot(const Index& index, std::uint64_t hash, std::int32_t end) const {
  const std::size_t mask = index.latest.size() - 1;
  std::size_t slot = (hash ^ (hash >> 32)) & mask;
  while (index.latest[slot] != kNone) {
    const std::int32_t* found = tokens_.data() + index.latest[slot] + 1;
    const std::int32_t* sought = tokens_.data() + end + 1;
    if (std::equal(found - index.length, found, sought - index.length)) break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

}  // namespace megalith::engine
