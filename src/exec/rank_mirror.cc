#include "exec/rank_mirror.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

namespace megalith::exec {
namespace {

/// Errors that follow from the input and the calls before, and so are the same on every rank.
bool IsRefusal(ErrorCode code) {
  return code == ErrorCode::kUsage || code == ErrorCode::kOutOfRange ||
         code == ErrorCode::kOutOfMemory;
}

std::uint8_t OutcomeOf(ErrorCode code) { return static_cast<std::uint8_t>(code) + 1; }

std::string_view OutcomeName(std::uint8_t outcome) {
  return outcome == 0 ? "fine" : ErrorCodeName(static_cast<ErrorCode>(outcome - 1));
}

void ShowActivity(fabric::Fabric& fabric, CallKind kind, std::uint64_t number) {
  std::array<char, 48> text;
  const auto end =
      fmt::format_to_n(text.begin(), text.size(), "{}, message {}", CallKindName(kind), number).out;
  fabric.SetActivity({text.begin(), end});
}

}  // namespace

RankMirror::~RankMirror() {
  Call end;
  end.kind = CallKind::kEnd;
  // Should the job have failed, everybody knows.
  static_cast<void>(Announce(end));
}

Status RankMirror::Announce(const Call& call) {
  Call told = call;
  told.destroyed = destroyed_;
  told.last_outcome = last_outcome_;
  AppendCall(told, &sender_.Begin(target_));
  ShowActivity(sender_.fabric(), call.kind, sender_.number());
  destroyed_.clear();
  return sender_.Send();
}

Status RankMirror::TakeOutcome(const Error* error) {
  last_outcome_ = error == nullptr ? 0 : OutcomeOf(error->code);
  if (error == nullptr || IsRefusal(error->code)) return {};
  // If another rank has failed before, this only follows from it, and its reason stays.
  sender_.fabric().Abort(error->message);
  return sender_.fabric().status();
}

Result<bool> CallRepeater::Repeat(const RankMessage& message) {
  auto call = decoder_.Decode(message.payload);
  if (!call) {
    return Fail(ErrorCode::kInternal, "message {} of rank 0: {}", message.number,
                call.error().message);
  }
  MEGALITH_RETURN_IF_ERROR(CheckOutcome(message, call->last_outcome));
  ShowActivity(fabric_, call->kind, message.number);
  for (const std::uint64_t name : call->destroyed) snapshots_.erase(name);
  if (call->kind == CallKind::kEnd) return false;
  const Status status = Make(*call);
  last_error_.reset();
  if (status) return true;
  last_error_ = status.error();
  if (!IsRefusal(last_error_->code)) return tl::unexpected(*last_error_);
  return true;
}

Status CallRepeater::CheckOutcome(const RankMessage& message, std::uint8_t on_rank_0) const {
  const std::uint8_t here = last_error_ ? OutcomeOf(last_error_->code) : 0;
  if (here == on_rank_0) return {};
  return Fail(ErrorCode::kInternal, "the call before message {} ended with {} on rank 0, here {}{}",
              message.number, OutcomeName(on_rank_0), OutcomeName(here),
              last_error_ ? ": " + last_error_->message : "");
}

Status CallRepeater::Make(const Call& call) {
  switch (call.kind) {
    case CallKind::kStep: {
      const auto step = executor_.Step(call.step);
      return step ? Status() : tl::unexpected(step.error());
    }
    case CallKind::kTruncate:
      return executor_.Truncate(call.slot, call.length);
    case CallKind::kReleaseSlot:
      return executor_.ReleaseSlot(call.slot);
    case CallKind::kSave:
      return Keep(call.snapshot, executor_.Save(call.slot));
    case CallKind::kRestore: {
      const auto found = snapshots_.find(call.snapshot);
      if (found == snapshots_.end()) {
        return Fail(ErrorCode::kInternal, "there is no snapshot {}", call.snapshot);
      }
      return executor_.Restore(*found->second, call.slot);
    }
    case CallKind::kNewSnapshot:
      return Keep(call.snapshot, executor_.NewSnapshot(call.length));
    case CallKind::kEnd:
      break;
  }
  return {};
}

Status CallRepeater::Keep(std::uint64_t name, Result<std::unique_ptr<Snapshot>> snapshot) {
  if (!snapshot) return tl::unexpected(snapshot.error());
  snapshots_[name] = std::move(*snapshot);
  return {};
}

}  // namespace megalith::exec
