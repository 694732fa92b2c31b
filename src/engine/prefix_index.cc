#include "engine/prefix_index.h"

#include <algorithm>

namespace megalith::engine {
namespace {

/// The hash of a sequence grows with it, so that one pass gives those of all beginnings.
std::uint64_t HashOneMore(std::uint64_t hash, std::int32_t token) {
  hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

std::uint64_t HashOf(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = 0;
  for (const std::int32_t token : tokens) hash = HashOneMore(hash, token);
  return hash;
}

std::size_t CommonLength(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}

}  // namespace

PrefixIndex::Id PrefixIndex::Add(std::vector<std::int32_t> tokens) {
  const Id id = next_id_++;
  ++num_of_length_[tokens.size()];
  by_hash_.emplace(HashOf(tokens), id);
  tokens_.emplace(id, std::move(tokens));
  return id;
}

void PrefixIndex::Remove(Id id) {
  const auto found = tokens_.find(id);
  if (found == tokens_.end()) return;
  const std::vector<std::int32_t>& tokens = found->second;
  const auto count = num_of_length_.find(tokens.size());
  if (--count->second == 0) num_of_length_.erase(count);
  const auto [begin, end] = by_hash_.equal_range(HashOf(tokens));
  by_hash_.erase(std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; }));
  tokens_.erase(found);
}

std::optional<PrefixIndex::Id> PrefixIndex::FindHashed(std::uint64_t hash,
                                                       std::span<const std::int32_t> tokens) const {
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    if (std::ranges::equal(tokens_.at(entry->second), tokens)) return entry->second;
  }
  return std::nullopt;
}

std::optional<PrefixIndex::Id> PrefixIndex::Find(std::span<const std::int32_t> tokens) const {
  return FindHashed(HashOf(tokens), tokens);
}

std::optional<PrefixIndex::Id> PrefixIndex::FindLongest(
    std::span<const std::int32_t> prompt) const {
  std::optional<Id> longest;
  std::uint64_t hash = 0;
  std::size_t hashed = 0;
  for (const auto& [length, count] : num_of_length_) {
    if (length >= prompt.size()) break;
    for (; hashed < length; ++hashed) hash = HashOneMore(hash, prompt[hashed]);
    if (const auto found = FindHashed(hash, prompt.first(length))) longest = found;
  }
  return longest;
}

std::optional<PrefixIndex::Closest> PrefixIndex::FindClosest(
    std::span<const std::int32_t> prompt) const {
  std::optional<Closest> closest;
  for (const auto& [id, tokens] : tokens_) {
    const std::size_t common = CommonLength(tokens, prompt);
    if (common > (closest ? closest->common : 0)) closest = {tokens.size(), common};
  }
  return closest;
}

}  // namespace megalith::engine
