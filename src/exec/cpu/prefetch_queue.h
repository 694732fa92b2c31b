#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace megalith::exec::cpu {

/// Weight tiles that one worker will read soon, in order of use. While the worker waits it asks for
/// a few lines at a time, so that they are in its L2 when it needs them; a core cannot fill another
/// core's L2. Requests are hints: forgetting one costs time, never correctness.
class PrefetchQueue {
 public:
  /// Lines asked for in one turn of a wait loop: about what a core takes from memory in the ~40 ns
  /// of a pause, so that a turn does not delay seeing the counter.
  static constexpr std::int64_t kLinesPerTurn = 4;

  /// The first `bytes` bytes at `address`. When full, the request is dropped.
  void Push(const std::byte* address, std::int64_t bytes) {
    if (count_ == kCapacity || bytes <= 0) return;
    At(count_) = {address, address, address + bytes};
    ++count_;
  }

  /// The tile at `address` is about to be read: nothing up to it need be asked for any more.
  void Consume(const std::byte* address) {
    for (std::size_t i = 0; i < count_; ++i) {
      if (At(i).begin != address) continue;
      first_ = (first_ + i + 1) % kCapacity;
      count_ -= i + 1;
      asked_ -= std::min(asked_, i + 1);
      return;
    }
  }

  /// Asks for the next few lines. Returns false if there is nothing to ask for.
  bool Drain() {
    if (asked_ == count_) return false;
    Range& range = At(asked_);
    for (std::int64_t i = 0; i < kLinesPerTurn && range.next < range.end; ++i) {
      __builtin_prefetch(range.next, 0, 2);  // prefetcht1: into L2, not L1
      range.next += kLineBytes;
      ++lines_asked_;
    }
    if (range.next >= range.end) ++asked_;
    return true;
  }

  void Clear() { count_ = asked_ = 0; }
  std::size_t size() const { return count_; }
  /// Cache lines asked for since construction.
  std::uint64_t lines_asked() const { return lines_asked_; }

 private:
  static constexpr std::size_t kCapacity = 32;
  static constexpr std::int64_t kLineBytes = 64;
  struct Range {
    const std::byte* begin;
    const std::byte* next;
    const std::byte* end;
  };
  Range& At(std::size_t index) { return ranges_[(first_ + index) % kCapacity]; }

  std::array<Range, kCapacity> ranges_{};
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t asked_ = 0;  // of these, asked for to the end, but not yet consumed
  std::uint64_t lines_asked_ = 0;
};

}  // namespace megalith::exec::cpu
