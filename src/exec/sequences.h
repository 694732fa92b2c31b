#pragma once

// Which sequence occupies which slot, how long it is, and which cache pages it holds. A page may be
// held by several sequences and snapshots; only the sequence that took it from the pool writes it,
// and only positions behind those that the others see.

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/executor.h"
#include "program/program.h"

namespace megalith::exec {

/// Slots and cache pages of one device. Pages are taken from one pool as sequences grow; a page
/// holds page_tokens positions of a sequence in every MLA layer.
class Sequences {
 public:
  explicit Sequences(const program::StateLayout& layout);

  /// Checks the runs of a step and takes the pages they need. On an error nothing has changed:
  /// kOutOfRange (slot, position), kUsage (slot twice in one step), kOutOfMemory (pages). A run at
  /// position 0 starts its slot afresh.
  Status Begin(std::span<const Run> runs);
  /// The step of the last Begin succeeded: the sequences have grown. `num_accepted`: drafts of each
  /// run that are kept.
  void Commit(std::span<const Run> runs, std::span<const std::int32_t> num_accepted);
  /// Takes back drafts that the slot's last run kept. kOutOfRange for anything else.
  Status Truncate(std::int32_t slot, std::int32_t length);
  /// The step failed half way: its sequences are lost, their slots empty.
  void Abandon(std::span<const Run> runs);
  /// kOutOfRange for a slot that does not exist.
  Status Release(std::int32_t slot);

  /// The pages of the sequence in `slot`, held once more: for a snapshot of it as it is. Its drafts
  /// can no longer be taken back, so that what the pages hold stays. kOutOfRange for a slot that
  /// does not exist, kUsage for an empty one.
  Result<std::vector<std::int32_t>> HoldPages(std::int32_t slot);
  /// Pages for `positions` that nobody has written yet. kOutOfMemory.
  Result<std::vector<std::int32_t>> TakePages(std::int32_t positions);
  /// Ends what HoldPages or TakePages began.
  void ReleasePages(std::span<const std::int32_t> pages);

  /// A page to copy before the sequence goes on; from < 0: none.
  struct PageCopy {
    std::int32_t from = -1;
    std::int32_t to = -1;
  };
  /// Makes the sequence in `slot` one of `length` positions on the pages given. They are shared but
  /// for a last one that is not full: the sequence gets a page of its own for it, which the caller
  /// copies. Errors leave the slot as it was: kOutOfRange, kOutOfMemory.
  Result<PageCopy> Adopt(std::int32_t slot, std::int32_t length,
                         std::span<const std::int32_t> pages);

  std::int32_t Length(std::int32_t slot) const { return length_[static_cast<std::size_t>(slot)]; }
  /// Which of the slot's StateLayout::states_per_slot recurrent states is that of its length.
  std::int32_t StateIndex(std::int32_t slot) const {
    return state_index_[static_cast<std::size_t>(slot)];
  }
  std::int32_t num_free_pages() const { return static_cast<std::int32_t>(free_pages_.size()); }
  /// Pages that so many positions take.
  std::int32_t PagesFor(std::int32_t positions) const;
  /// [max_positions / page_tokens, rounded up] page numbers; entries beyond the sequence are 0.
  const std::int32_t* PageTable(std::int32_t slot) const {
    return page_table_.data() + static_cast<std::size_t>(slot) * pages_per_slot_;
  }

 private:
  Status CheckRun(std::span<const Run> runs, std::size_t index) const;
  Status CheckSlot(std::int32_t slot) const;
  Status CheckFree(std::int64_t num_pages) const;
  std::int32_t OwnPages(std::int32_t slot) const;
  void Empty(std::int32_t slot);
  void Resize(std::int32_t slot, std::int32_t num_pages);
  std::int32_t TakePage();
  void ReleasePage(std::int32_t page);

  program::StateLayout layout_;
  bool uses_pages_;
  std::size_t pages_per_slot_;
  std::vector<std::int32_t> length_;       // positions held, per slot
  std::vector<std::int32_t> state_index_;  // per slot
  std::vector<std::int32_t> num_kept_;     // drafts that may still be taken back, per slot
  std::vector<std::int32_t> num_pages_;    // per slot
  std::vector<std::int32_t> page_table_;   // [slot][pages_per_slot_]
  std::vector<std::int32_t> free_pages_;   // used from the back
  std::vector<std::int32_t> num_holders_;  // per page
};

}  // namespace megalith::exec
