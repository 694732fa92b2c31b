#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/prefix_index.h"
#include "exec/executor.h"
#include "exec/snapshot.h"

namespace megalith::engine {

/// Snapshots of sequences in memory, found by their tokens, under a byte budget: the least recently
/// used go first. Used on the thread that runs steps.
class PrefixCache {
 public:
  /// `page_bytes`: of one cache page, all layers together. 0 as limit: keeps nothing.
  PrefixCache(std::int64_t limit_bytes, std::int64_t page_bytes)
      : limit_bytes_(limit_bytes), page_bytes_(page_bytes) {}

  /// The snapshot of the longest beginning of `prompt` that leaves at least one token to run; null
  /// if there is none.
  std::shared_ptr<const exec::Snapshot> Find(std::span<const std::int32_t> prompt);
  bool Contains(std::span<const std::int32_t> tokens) const {
    return index_.Find(tokens).has_value();
  }

  /// Keeps `snapshot`, of the sequence `tokens`, unless it is there already or larger than the
  /// limit.
  void Insert(std::span<const std::int32_t> tokens, std::shared_ptr<const exec::Snapshot> snapshot);

  /// Drops the snapshot of that sequence, if it is there.
  void Remove(std::span<const std::int32_t> tokens);

  /// Drops the least recently used snapshot, so that its pages can be used. False if there is none.
  bool Evict();

  /// Why no more of `prompt` was found than `found` tokens, for the log.
  std::string ExplainMiss(std::span<const std::int32_t> prompt, std::size_t found) const;

  std::int64_t bytes() const { return bytes_; }
  std::int64_t limit_bytes() const { return limit_bytes_; }
  std::size_t size() const { return entries_.size(); }
  std::uint64_t num_evictions() const { return num_evictions_; }

 private:
  struct Entry {
    PrefixIndex::Id id;
    std::shared_ptr<const exec::Snapshot> snapshot;
  };

  void Drop(std::list<Entry>::iterator entry);
  void Account(const exec::Snapshot& snapshot, std::int32_t holders);

  std::int64_t limit_bytes_;
  std::int64_t page_bytes_;
  std::int64_t bytes_ = 0;
  std::uint64_t num_evictions_ = 0;
  PrefixIndex index_;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<PrefixIndex::Id, std::list<Entry>::iterator> by_id_;
  std::unordered_map<std::int32_t, std::int32_t> page_holders_;  // snapshots here that hold a page
};

}  // namespace megalith::engine
