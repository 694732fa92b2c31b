#include "exec/executor.h"

#include "exec/call_mirror.h"
#include "exec/device_memory.h"
#include "exec/snapshot.h"

namespace megalith::exec {

Executor::Executor(std::unique_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}
Executor::~Executor() = default;

void Executor::SetMirror(std::unique_ptr<CallMirror> mirror) { mirror_ = std::move(mirror); }

template <typename Make>
auto Executor::Mirrored(const Call& call, Make&& make) -> decltype(make()) {
  if (mirror_ == nullptr) return make();
  MEGALITH_RETURN_IF_ERROR(mirror_->Announce(call));
  auto result = make();
  MEGALITH_RETURN_IF_ERROR(mirror_->TakeOutcome(result ? nullptr : &result.error()));
  return result;
}

Result<StepOutput> Executor::Step(const StepInput& input) {
  Call call;
  call.kind = CallKind::kStep;
  call.step = input;
  return Mirrored(call, [&] { return RunStep(input); });
}

Status Executor::Truncate(std::int32_t slot, std::int32_t length) {
  Call call;
  call.kind = CallKind::kTruncate;
  call.slot = slot;
  call.length = length;
  return Mirrored(call, [&] { return memory_->Truncate(slot, length); });
}

Status Executor::ReleaseSlot(std::int32_t slot) {
  Call call;
  call.kind = CallKind::kReleaseSlot;
  call.slot = slot;
  return Mirrored(call, [&] { return memory_->ReleaseSlot(slot); });
}

/// A call that makes a snapshot.
Result<std::unique_ptr<Snapshot>> Executor::Named(
    Call call, Result<std::unique_ptr<Snapshot>> (*make)(DeviceMemory&, const Call&)) {
  call.snapshot = ++num_snapshots_;
  auto snapshot = Mirrored(call, [&] { return make(*memory_, call); });
  if (snapshot) (*snapshot)->SetName(call.snapshot, mirror_.get());
  return snapshot;
}

Result<std::unique_ptr<Snapshot>> Executor::Save(std::int32_t slot) {
  Call call;
  call.kind = CallKind::kSave;
  call.slot = slot;
  return Named(call, [](DeviceMemory& memory, const Call& save) { return memory.Save(save.slot); });
}

Status Executor::Restore(const Snapshot& snapshot, std::int32_t slot) {
  Call call;
  call.kind = CallKind::kRestore;
  call.slot = slot;
  call.snapshot = snapshot.name();
  return Mirrored(call, [&] { return memory_->Restore(snapshot, slot); });
}

Result<std::unique_ptr<Snapshot>> Executor::NewSnapshot(std::int32_t length) {
  Call call;
  call.kind = CallKind::kNewSnapshot;
  call.length = length;
  return Named(
      call, [](DeviceMemory& memory, const Call& made) { return memory.NewSnapshot(made.length); });
}

const ExecutorLimits& Executor::limits() const { return memory_->limits(); }

}  // namespace megalith::exec
