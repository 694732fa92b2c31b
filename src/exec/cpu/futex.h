#pragma once

#include <atomic>
#include <cstdint>

namespace megalith::exec::cpu {

// Sleeping until a value changes. std::atomic::wait has no time limit, which the watchdog needs.

/// Sleeps while `word` holds `expected`, at most `timeout_ns` (< 0: for ever). May return early for
/// no reason; callers look at the word again.
void FutexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
               std::int64_t timeout_ns);

/// Wakes everybody who sleeps on `word`.
void FutexWakeAll(const std::atomic<std::uint32_t>& word);

/// A word that one side raises and others wait for; only a sleeper costs the other side a system
/// call.
class WakeWord {
 public:
  std::uint32_t Load() const { return word_.load(std::memory_order_acquire); }

  void Raise() {
    // Sequentially consistent with the sleeper's count below: either the raiser sees the sleeper,
    // or the sleeper sees the new word.
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (num_sleepers_.load(std::memory_order_seq_cst) != 0) FutexWakeAll(word_);
  }

  /// Sleeps while the word is `seen`, at most `timeout_ns` (< 0: for ever).
  void Sleep(std::uint32_t seen, std::int64_t timeout_ns) {
    num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (word_.load(std::memory_order_seq_cst) == seen) FutexWait(word_, seen, timeout_ns);
    num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> num_sleepers_{0};
};

}  // namespace megalith::exec::cpu
