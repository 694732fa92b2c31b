#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::fabric {

/// What a rank is doing, as far as others can see.
enum class RankState : std::uint32_t {
  kAbsent,   ///< has not come yet
  kPresent,  ///< takes part
  kLeft,     ///< has ended in order
};

/// What a rank's threads did last with a mailbox.
enum class MailboxAction : std::uint8_t { kNone, kWaiting, kReceived };

/// One rank as the others see it. Written by that rank's process, or, for a rank of another host,
/// by whoever hears from it; read by all. Everything but `state` is for messages about failures:
/// relaxed, a reader may see parts of two moments.
struct alignas(128) RankLine {
  static constexpr std::size_t kLabelBytes = 48;

  /// kPresent is stored with release after pid and pid_namespace; kLeft with release after the
  /// rank's last put.
  std::atomic<RankState> state{RankState::kAbsent};
  std::atomic<std::uint32_t> pid{0};
  std::atomic<std::uint64_t> pid_namespace{0};  ///< pids of two namespaces cannot be compared
  std::atomic<std::uint64_t> heartbeat{0};      ///< grows while the process runs
  std::atomic<std::uint64_t> action{0};         ///< packed: see SetAction
  std::atomic<std::uint64_t> action_sequence{0};
  std::atomic<std::uint64_t>
      label[kLabelBytes / 8]{};  ///< what the program called SetActivity with

  void SetAction(MailboxAction what, std::uint32_t peer, std::uint32_t mailbox,
                 std::uint64_t sequence) {
    action.store(std::uint64_t{static_cast<std::uint8_t>(what)} << 56 |
                     std::uint64_t{peer & 0xffffff} << 32 | mailbox,
                 std::memory_order_relaxed);
    action_sequence.store(sequence, std::memory_order_relaxed);
  }
  /// Cut to kLabelBytes.
  void SetLabel(std::string_view text);
  std::string Label() const;
  /// E.g. "step 12, waiting for mailbox 3 of rank 1, sequence 40".
  std::string Describe() const;
};

/// The part of a job's memory that says who is there and whether the job has failed. A view: the
/// memory is that of the process (inproc) or shared by the processes of one host, and must have
/// been zero when Create made the view.
///
/// The first failure wins and never goes away.
class JobControl {
 public:
  static std::size_t Bytes(std::uint32_t num_ranks);

  JobControl() = default;
  /// `memory`: Bytes(num_ranks), aligned to 128, zero or already used by another view.
  JobControl(std::byte* memory, std::uint32_t num_ranks);

  std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(lines_.size()); }
  RankLine& line(std::uint32_t rank) const { return *lines_[rank]; }
  /// For ranks of other hosts, whom every process hears of by itself.
  void ReplaceLine(std::uint32_t rank, RankLine* line) { lines_[rank] = line; }

  /// Cheap: one load of a line that changes once in the life of a job.
  bool failed() const { return header_->failed.load(std::memory_order_acquire) != 0; }
  /// Records the failure unless there is one. True if it was the first.
  bool Fail(std::string_view message) const;
  /// Empty if the job has not failed. Waits a moment for a message that is being written.
  std::string FailureMessage() const;

 private:
  struct alignas(128) Header {
    /// 0, kClaimed while the message is written, kWritten (release) when it can be read (acquire).
    std::atomic<std::uint32_t> failed;
    std::uint32_t message_bytes;
    char message[1016];
  };
  static constexpr std::uint32_t kClaimed = 1;
  static constexpr std::uint32_t kWritten = 2;
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

  Header* header_ = nullptr;
  std::vector<RankLine*> lines_;  // by rank
};

}  // namespace megalith::fabric
