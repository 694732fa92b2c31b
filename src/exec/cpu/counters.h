#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace megalith::exec::cpu {

/// The counters of one Program, each on its own cache line. They only grow: 64 bits never wrap.
///
/// Memory order: a worker writes its buffers, then signals with release; a waiter that has seen the
/// value with acquire sees those writes. Several signals to one counter form one release sequence,
/// so a waiter that has seen all of them sees the writes of all signallers.
class Counters {
 public:
  explicit Counters(std::size_t count) : cells_(new Cell[count]), count_(count) {}

  std::size_t size() const { return count_; }
  std::int64_t Load(std::uint32_t counter) const {
    return cells_[counter].value.load(std::memory_order_acquire);
  }
  /// Returns the new value.
  std::int64_t Signal(std::uint32_t counter, std::int64_t amount) {
    return cells_[counter].value.fetch_add(amount, std::memory_order_acq_rel) + amount;
  }

 private:
  struct alignas(64) Cell {
    std::atomic<std::int64_t> value{0};
  };
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);

  std::unique_ptr<Cell[]> cells_;
  std::size_t count_;
};

}  // namespace megalith::exec::cpu
