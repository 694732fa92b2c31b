#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace megalith::engine {

/// Token sequences by id: finds the longest that is a beginning of a prompt. Tokens are compared
/// one by one, so a hash that fits by chance does no harm.
class PrefixIndex {
 public:
  using Id = std::uint64_t;

  /// Returns the id of the sequence. REQUIRES that it is not there yet.
  Id Add(std::vector<std::int32_t> tokens);
  void Remove(Id id);

  /// The longest one that is a beginning of `prompt` and shorter than it.
  std::optional<Id> FindLongest(std::span<const std::int32_t> prompt) const;
  /// The one that is exactly this.
  std::optional<Id> Find(std::span<const std::int32_t> tokens) const;

  struct Closest {
    std::size_t length = 0;  ///< tokens of the sequence
    std::size_t common = 0;  ///< of them, the same as the prompt's first ones
  };
  /// Of the one that has most tokens in common with the beginning of `prompt`; nothing if none has
  /// any. Looks at all of them.
  std::optional<Closest> FindClosest(std::span<const std::int32_t> prompt) const;

  std::span<const std::int32_t> tokens(Id id) const { return tokens_.at(id); }
  std::size_t size() const { return tokens_.size(); }

 private:
  std::optional<Id> FindHashed(std::uint64_t hash, std::span<const std::int32_t> tokens) const;

  Id next_id_ = 0;
  std::map<Id, std::vector<std::int32_t>> tokens_;
  std::map<std::size_t, std::size_t> num_of_length_;
  std::unordered_multimap<std::uint64_t, Id> by_hash_;
};

}  // namespace megalith::engine
