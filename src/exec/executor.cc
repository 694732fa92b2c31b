#include "exec/executor.h"

#include "exec/device_memory.h"
#include "exec/snapshot.h"

namespace megalith::exec {

Executor::Executor(std::unique_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}
Executor::~Executor() = default;

Status Executor::Truncate(std::int32_t slot, std::int32_t length) {
  return memory_->Truncate(slot, length);
}

Status Executor::ReleaseSlot(std::int32_t slot) { return memory_->ReleaseSlot(slot); }

Result<std::unique_ptr<Snapshot>> Executor::Save(std::int32_t slot) { return memory_->Save(slot); }

Status Executor::Restore(const Snapshot& snapshot, std::int32_t slot) {
  return memory_->Restore(snapshot, slot);
}

Result<std::unique_ptr<Snapshot>> Executor::NewSnapshot(std::int32_t length) {
  return memory_->NewSnapshot(length);
}

const ExecutorLimits& Executor::limits() const { return memory_->limits(); }

}  // namespace megalith::exec
