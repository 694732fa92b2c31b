#include "engine/prefix_cache.h"

#include <fmt/format.h>

namespace megalith::engine {

std::shared_ptr<const exec::Snapshot> PrefixCache::Find(std::span<const std::int32_t> prompt) {
  const auto id = index_.FindLongest(prompt);
  if (!id) return nullptr;
  const auto entry = by_id_.at(*id);
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->snapshot;
}

/// Adds (holders 1) or takes away (-1) what the snapshot occupies; pages count once, however many
/// snapshots share them.
void PrefixCache::Account(const exec::Snapshot& snapshot, std::int32_t holders) {
  bytes_ +=
      holders * (snapshot.copied_bytes() + snapshot.length() * std::int64_t{sizeof(std::int32_t)});
  for (const std::int32_t page : snapshot.pages()) {
    std::int32_t& count = page_holders_[page];
    const bool was_held = count > 0;
    count += holders;
    const bool is_held = count > 0;
    if (was_held != is_held) bytes_ += holders * page_bytes_;
    if (!is_held) page_holders_.erase(page);
  }
}

void PrefixCache::Insert(std::span<const std::int32_t> tokens,
                         std::shared_ptr<const exec::Snapshot> snapshot) {
  if (limit_bytes_ == 0 || Contains(tokens)) return;
  Account(*snapshot, 1);
  const auto id = index_.Add({tokens.begin(), tokens.end()});
  entries_.push_front({id, std::move(snapshot)});
  by_id_[id] = entries_.begin();
  while (bytes_ > limit_bytes_) Evict();
}

bool PrefixCache::Evict() {
  if (entries_.empty()) return false;
  Drop(std::prev(entries_.end()));
  ++num_evictions_;
  return true;
}

void PrefixCache::Remove(std::span<const std::int32_t> tokens) {
  if (const auto id = index_.Find(tokens)) Drop(by_id_.at(*id));
}

void PrefixCache::Drop(std::list<Entry>::iterator entry) {
  Account(*entry->snapshot, -1);
  index_.Remove(entry->id);
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

std::string PrefixCache::ExplainMiss(std::span<const std::int32_t> prompt,
                                     std::size_t found) const {
  if (limit_bytes_ == 0) return "the prefix cache is off";
  const auto closest = index_.FindClosest(prompt);
  if (!closest) return fmt::format("none of {} snapshots begins like it", size());
  if (closest->common == closest->length && closest->common > found) {
    return fmt::format("a snapshot holds all {} tokens, but one has to be run", closest->length);
  }
  if (closest->common <= found) return "nothing beyond was kept";
  return fmt::format("the closest snapshot, of {} tokens, differs from token {} on",
                     closest->length, closest->common);
}

}  // namespace megalith::engine
