#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace megalith::fabric {

/// A bounded queue of many producers and one consumer at a time, without locks: D. Vyukov's array
/// queue, in which every cell has a turn counter. `T` is trivially copyable.
template <typename T>
class SendQueue {
 public:
  /// Never more than `capacity` items are in it at once; the user sees to that.
  explicit SendQueue(std::size_t capacity)
      : mask_(std::bit_ceil(capacity < 2 ? std::size_t{2} : capacity) - 1),
        cells_(std::make_unique<Cell[]>(mask_ + 1)) {
    for (std::size_t i = 0; i <= mask_; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  void Push(const T& item) {
    // The consumer has freed the cell before, for there is room. Not every producer has been told
    // by the consumer itself: whoever took a turn before has, and hands it on through tail_.
    const std::size_t at = tail_.fetch_add(1, std::memory_order_acq_rel);
    Cell& cell = cells_[at & mask_];
    cell.item = item;
    cell.turn.store(at + 1, std::memory_order_release);
  }

  /// False if it is empty, or if the next item is not complete yet.
  bool Pop(T* item) {
    Cell& cell = cells_[head_ & mask_];
    if (cell.turn.load(std::memory_order_acquire) != head_ + 1) return false;
    *item = cell.item;
    ++head_;
    return true;
  }

 private:
  struct Cell {
    std::atomic<std::size_t> turn;
    T item;
  };

  std::size_t mask_;
  std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<std::size_t> tail_{0};
  alignas(64) std::size_t head_ = 0;  // the consumer's; handed over with its lock
};

}  // namespace megalith::fabric
