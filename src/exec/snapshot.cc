#include "exec/snapshot.h"

#include <new>

#include "exec/call_mirror.h"
#include "exec/device_memory.h"

namespace megalith::exec {

Snapshot::Snapshot(DeviceMemory& memory, std::int32_t length, std::size_t copied_bytes,
                   std::vector<std::int32_t> pages)
    : memory_(memory),
      length_(length),
      copied_bytes_(copied_bytes),
      copies_(new (std::nothrow) std::byte[copied_bytes]),
      pages_(std::move(pages)) {}

Snapshot::~Snapshot() {
  memory_.ReleasePages(pages_);
  if (mirror_ != nullptr) mirror_->SnapshotDestroyed(name_);
}

std::vector<std::span<std::byte>> Snapshot::MutableContents() {
  std::vector<std::span<std::byte>> contents = memory_.PageContents(length_, pages_);
  contents.insert(contents.begin(), std::span(copies_.get(), copied_bytes_));
  return contents;
}

std::vector<std::span<const std::byte>> Snapshot::Contents() const {
  std::vector<std::span<const std::byte>> contents;
  contents.emplace_back(copies_.get(), copied_bytes_);
  for (const std::span<std::byte> part : memory_.PageContents(length_, pages_)) {
    contents.emplace_back(part);
  }
  return contents;
}

}  // namespace megalith::exec
