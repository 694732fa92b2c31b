#pragma once

// One executor on several ranks: rank 0 makes the calls, the others repeat them in the same order.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "exec/call_mirror.h"
#include "exec/rank_channel.h"
#include "exec/snapshot.h"

namespace megalith::exec {

/// Rank 0's side: give it to Executor::SetMirror. A call that ends with an error that the input
/// does not explain ends the job, and gives the first failure of the job instead. `target` names
/// the executor among all that the sender speaks to; when the mirror is destroyed, the others are
/// told that their executor is to go.
class RankMirror : public CallMirror {
 public:
  /// `sender` must outlive it.
  RankMirror(RankSender& sender, std::uint32_t target) : sender_(sender), target_(target) {}
  ~RankMirror() override;

  Status Announce(const Call& call) override;
  Status TakeOutcome(const Error* error) override;
  void SnapshotDestroyed(std::uint64_t snapshot) override { destroyed_.push_back(snapshot); }

 private:
  RankSender& sender_;
  std::uint32_t target_;
  std::vector<std::uint64_t> destroyed_;
  std::uint8_t last_outcome_ = 0;
};

/// The side of every other rank.
class CallRepeater {
 public:
  /// Both must outlive it.
  CallRepeater(Executor& executor, fabric::Fabric& fabric) : executor_(executor), fabric_(fabric) {}

  /// Does what the message says. False: the executor is to be destroyed. Errors, after which the
  /// job cannot go on: kInternal for a message that cannot be understood, or if the last call has
  /// ended otherwise than on rank 0; those of a call that the input does not explain.
  Result<bool> Repeat(const RankMessage& message);

 private:
  Status CheckOutcome(const RankMessage& message, std::uint8_t on_rank_0) const;
  Status Make(const Call& call);
  Status Keep(std::uint64_t name, Result<std::unique_ptr<Snapshot>> snapshot);

  Executor& executor_;
  fabric::Fabric& fabric_;
  CallDecoder decoder_;
  std::map<std::uint64_t, std::unique_ptr<Snapshot>> snapshots_;
  std::optional<Error> last_error_;  // of the last call
};

}  // namespace megalith::exec
