#include "exec/sequences.h"

#include <algorithm>

#include "base/align.h"

namespace megalith::exec {

Sequences::Sequences(const program::StateLayout& layout)
    : layout_(layout),
      uses_pages_(layout.num_mla_layers > 0),
      pages_per_slot_(
          uses_pages_ ? static_cast<std::size_t>(CeilDiv(layout.max_positions, layout.page_tokens))
                      : 0) {
  const auto num_slots = static_cast<std::size_t>(layout.num_slots);
  length_.resize(num_slots);
  state_index_.resize(num_slots);
  num_kept_.resize(num_slots);
  num_pages_.resize(num_slots);
  page_table_.resize(num_slots * pages_per_slot_);
  if (!uses_pages_) return;
  num_holders_.resize(static_cast<std::size_t>(layout.num_pages));
  free_pages_.reserve(static_cast<std::size_t>(layout.num_pages));
  for (std::int32_t page = layout.num_pages - 1; page >= 0; --page) free_pages_.push_back(page);
}

std::int32_t Sequences::PagesFor(std::int32_t positions) const {
  return uses_pages_ ? CeilDiv(positions, layout_.page_tokens) : 0;
}

Status Sequences::CheckRun(std::span<const Run> runs, std::size_t index) const {
  const Run& run = runs[index];
  if (run.slot < 0 || run.slot >= layout_.num_slots) {
    return Fail(ErrorCode::kOutOfRange, "run {}: slot {} does not exist, there are {}", index,
                run.slot, layout_.num_slots);
  }
  if (run.count <= 0) {
    return Fail(ErrorCode::kOutOfRange, "run {}, slot {}: {} rows, at least 1 expected", index,
                run.slot, run.count);
  }
  if (run.num_drafts < 0 || run.num_drafts >= layout_.states_per_slot ||
      run.num_drafts >= run.count) {
    return Fail(ErrorCode::kOutOfRange,
                "run {}, slot {}: {} drafts among {} rows, at most {} and fewer than rows expected",
                index, run.slot, run.num_drafts, run.count, layout_.states_per_slot - 1);
  }
  for (std::size_t other = 0; other < index; ++other) {
    if (runs[other].slot == run.slot) {
      return Fail(ErrorCode::kUsage, "runs {} and {} both use slot {}", other, index, run.slot);
    }
  }
  const std::int32_t length = Length(run.slot);
  if (run.first_position != 0 && run.first_position != length) {
    return Fail(ErrorCode::kOutOfRange,
                "run {}, slot {}: starts at position {}, expected 0 or {}, the sequence's length",
                index, run.slot, run.first_position, length);
  }
  if (run.count > layout_.max_positions - run.first_position) {
    return Fail(ErrorCode::kOutOfRange,
                "run {}, slot {}: positions {}..{} exceed the longest of {}", index, run.slot,
                run.first_position, static_cast<std::int64_t>(run.first_position) + run.count,
                layout_.max_positions);
  }
  return {};
}

Status Sequences::CheckFree(std::int64_t num_pages) const {
  if (num_pages <= num_free_pages()) return {};
  return Fail(ErrorCode::kOutOfMemory, "{} cache pages of {} positions needed, {} of {} are free",
              num_pages, layout_.page_tokens, num_free_pages(), layout_.num_pages);
}

Status Sequences::Begin(std::span<const Run> runs) {
  std::int64_t missing = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    MEGALITH_RETURN_IF_ERROR(CheckRun(runs, i));
    const Run& run = runs[i];
    const auto slot = static_cast<std::size_t>(run.slot);
    missing += PagesFor(run.first_position + run.count) -
               (run.first_position == 0 ? OwnPages(run.slot) : num_pages_[slot]);
  }
  MEGALITH_RETURN_IF_ERROR(CheckFree(missing));
  // Slots that start afresh give pages back first: the others may need them.
  for (const Run& run : runs) {
    // All of them: some may be a snapshot's as well, and must not be written.
    if (run.first_position == 0) Empty(run.slot);
  }
  for (const Run& run : runs) Resize(run.slot, PagesFor(run.first_position + run.count));
  return {};
}

void Sequences::Commit(std::span<const Run> runs, std::span<const std::int32_t> num_accepted) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    const auto slot = static_cast<std::size_t>(run.slot);
    length_[slot] = run.first_position + run.count - run.num_drafts + num_accepted[i];
    state_index_[slot] = (state_index_[slot] + num_accepted[i]) % layout_.states_per_slot;
    num_kept_[slot] = num_accepted[i];
  }
}

Status Sequences::Truncate(std::int32_t slot, std::int32_t length) {
  MEGALITH_RETURN_IF_ERROR(CheckSlot(slot));
  const auto index = static_cast<std::size_t>(slot);
  const std::int32_t taken_back = length_[index] - length;
  if (taken_back < 0 || taken_back > num_kept_[index]) {
    return Fail(ErrorCode::kOutOfRange,
                "slot {}: length {} expected to be {} to {}, the drafts kept by its last step",
                slot, length, length_[index] - num_kept_[index], length_[index]);
  }
  length_[index] = length;
  num_kept_[index] -= taken_back;
  const std::int32_t states = layout_.states_per_slot;
  state_index_[index] = (state_index_[index] + states - taken_back) % states;
  return {};
}

Status Sequences::CheckSlot(std::int32_t slot) const {
  if (slot >= 0 && slot < layout_.num_slots) return {};
  return Fail(ErrorCode::kOutOfRange, "slot {} does not exist, there are {}", slot,
              layout_.num_slots);
}

void Sequences::Empty(std::int32_t slot) {
  Resize(slot, 0);
  const auto index = static_cast<std::size_t>(slot);
  length_[index] = 0;
  num_kept_[index] = 0;
}

void Sequences::Abandon(std::span<const Run> runs) {
  for (const Run& run : runs) Empty(run.slot);
}

Status Sequences::Release(std::int32_t slot) {
  MEGALITH_RETURN_IF_ERROR(CheckSlot(slot));
  Empty(slot);
  return {};
}

Result<std::vector<std::int32_t>> Sequences::HoldPages(std::int32_t slot) {
  MEGALITH_RETURN_IF_ERROR(CheckSlot(slot));
  if (Length(slot) == 0) return Fail(ErrorCode::kUsage, "slot {} holds no sequence", slot);
  num_kept_[static_cast<std::size_t>(slot)] = 0;
  const std::int32_t* table = PageTable(slot);
  std::vector<std::int32_t> pages(table, table + PagesFor(Length(slot)));
  for (const std::int32_t page : pages) ++num_holders_[static_cast<std::size_t>(page)];
  return pages;
}

Result<std::vector<std::int32_t>> Sequences::TakePages(std::int32_t positions) {
  if (positions < 1 || positions > layout_.max_positions) {
    return Fail(ErrorCode::kOutOfRange, "sequence of {} positions, 1 to {} expected", positions,
                layout_.max_positions);
  }
  const std::int32_t needed = PagesFor(positions);
  MEGALITH_RETURN_IF_ERROR(CheckFree(needed));
  std::vector<std::int32_t> pages;
  while (static_cast<std::int32_t>(pages.size()) < needed) pages.push_back(TakePage());
  return pages;
}

void Sequences::ReleasePages(std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) ReleasePage(page);
}

Result<Sequences::PageCopy> Sequences::Adopt(std::int32_t slot, std::int32_t length,
                                             std::span<const std::int32_t> pages) {
  MEGALITH_RETURN_IF_ERROR(CheckSlot(slot));
  if (length < 1 || length > layout_.max_positions ||
      pages.size() != static_cast<std::size_t>(PagesFor(length))) {
    return Fail(ErrorCode::kOutOfRange, "sequence of {} positions on {} pages of {}, at most {}",
                length, pages.size(), layout_.page_tokens, layout_.max_positions);
  }
  const auto index = static_cast<std::size_t>(slot);
  const bool copies_last = uses_pages_ && length % layout_.page_tokens != 0;
  if (copies_last) MEGALITH_RETURN_IF_ERROR(CheckFree(1 - OwnPages(slot)));
  for (const std::int32_t page : pages) ++num_holders_[static_cast<std::size_t>(page)];
  Empty(slot);
  PageCopy copy;
  std::int32_t* table = page_table_.data() + index * pages_per_slot_;
  std::copy(pages.begin(), pages.end(), table);
  num_pages_[index] = static_cast<std::int32_t>(pages.size());
  length_[index] = length;
  if (copies_last) {
    copy = {pages.back(), TakePage()};
    table[pages.size() - 1] = copy.to;
    ReleasePage(copy.from);
  }
  return copy;
}

/// Pages of the slot that nobody else holds.
std::int32_t Sequences::OwnPages(std::int32_t slot) const {
  const std::int32_t* table = PageTable(slot);
  const auto is_own = [this](std::int32_t page) {
    return num_holders_[static_cast<std::size_t>(page)] == 1;
  };
  return static_cast<std::int32_t>(
      std::count_if(table, table + num_pages_[static_cast<std::size_t>(slot)], is_own));
}

void Sequences::Resize(std::int32_t slot, std::int32_t num_pages) {
  std::int32_t& held = num_pages_[static_cast<std::size_t>(slot)];
  std::int32_t* table = page_table_.data() + static_cast<std::size_t>(slot) * pages_per_slot_;
  while (held > num_pages) {
    --held;
    ReleasePage(table[held]);
    table[held] = 0;
  }
  while (held < num_pages) table[held++] = TakePage();
}

/// REQUIRES a free one.
std::int32_t Sequences::TakePage() {
  const std::int32_t page = free_pages_.back();
  free_pages_.pop_back();
  num_holders_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void Sequences::ReleasePage(std::int32_t page) {
  if (--num_holders_[static_cast<std::size_t>(page)] == 0) free_pages_.push_back(page);
}

}  // namespace megalith::exec
