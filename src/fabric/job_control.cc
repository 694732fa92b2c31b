#include "fabric/job_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "fabric/wait.h"

namespace megalith::fabric {

void RankLine::SetLabel(std::string_view text) {
  char bytes[kLabelBytes] = {};
  std::memcpy(bytes, text.data(), std::min(text.size(), kLabelBytes));
  for (std::size_t i = 0; i < kLabelBytes / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + 8 * i, 8);
    label[i].store(word, std::memory_order_relaxed);
  }
}

std::string RankLine::Label() const {
  char bytes[kLabelBytes];
  for (std::size_t i = 0; i < kLabelBytes / 8; ++i) {
    const std::uint64_t word = label[i].load(std::memory_order_relaxed);
    std::memcpy(bytes + 8 * i, &word, 8);
  }
  return {bytes, strnlen(bytes, kLabelBytes)};
}

std::string RankLine::Describe() const {
  std::string text = Label();
  const std::uint64_t packed = action.load(std::memory_order_relaxed);
  const auto peer = static_cast<std::uint32_t>(packed >> 32 & 0xffffff);
  const auto mailbox = static_cast<std::uint32_t>(packed);
  const std::uint64_t sequence = action_sequence.load(std::memory_order_relaxed);
  std::string what;
  switch (static_cast<MailboxAction>(packed >> 56)) {
    case MailboxAction::kNone:
      break;
    case MailboxAction::kWaiting:
      what = fmt::format("waiting for mailbox {} of rank {}, sequence {}", mailbox, peer, sequence);
      break;
    case MailboxAction::kReceived:
      what = fmt::format("after receiving mailbox {} of rank {}, sequence {}", mailbox, peer,
                         sequence);
      break;
  }
  if (text.empty()) return what.empty() ? "starting" : what;
  return what.empty() ? text : text + ", " + what;
}

std::size_t JobControl::Bytes(std::uint32_t num_ranks) {
  return sizeof(Header) + num_ranks * sizeof(RankLine);
}

JobControl::JobControl(std::byte* memory, std::uint32_t num_ranks)
    : header_(reinterpret_cast<Header*>(memory)) {
  auto* lines = reinterpret_cast<RankLine*>(memory + sizeof(Header));
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) lines_.push_back(lines + rank);
}

bool JobControl::Fail(std::string_view message) const {
  std::uint32_t expected = 0;
  if (!header_->failed.compare_exchange_strong(expected, kClaimed, std::memory_order_acq_rel)) {
    return false;
  }
  const std::size_t bytes = std::min(message.size(), sizeof header_->message);
  std::memcpy(header_->message, message.data(), bytes);
  header_->message_bytes = static_cast<std::uint32_t>(bytes);
  header_->failed.store(kWritten, std::memory_order_release);
  return true;
}

std::string JobControl::FailureMessage() const {
  if (!failed()) return {};
  // Who claimed it may have been killed while writing, or only wait for a core.
  constexpr std::int64_t kPatienceNs = 5'000'000'000;
  const std::int64_t start = NowNs();
  PatientWait wait(0);
  while (header_->failed.load(std::memory_order_acquire) != kWritten) {
    if (NowNs() - start > kPatienceNs) return "the job has failed; its message was not completed";
    wait.Once();
  }
  return {header_->message, std::min<std::size_t>(header_->message_bytes, sizeof header_->message)};
}

}  // namespace megalith::fabric
