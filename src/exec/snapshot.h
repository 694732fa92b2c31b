#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace megalith::exec {

class CallMirror;
class DeviceMemory;

/// A sequence as it was at one length. Its recurrent state, conv history and drafter's context are
/// copies; its cache pages are shared with the sequence it was taken of and those that go on from
/// it. Comes from an Executor, which must outlive it and is not to run a step while a snapshot is
/// destroyed or its contents are read.
class Snapshot {
 public:
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// Tokens of the sequence.
  std::int32_t length() const { return length_; }
  /// What calls name it by (call.h).
  std::uint64_t name() const { return name_; }
  std::int64_t copied_bytes() const { return static_cast<std::int64_t>(copied_bytes_); }
  /// Pages of the pool that it holds, alone or with others.
  std::span<const std::int32_t> pages() const { return pages_; }

  /// All that it consists of on this rank. The sizes and their order depend on the model, the
  /// drafter, and the length alone.
  std::vector<std::span<const std::byte>> Contents() const;
  /// The same, of one from Executor::NewSnapshot.
  std::vector<std::span<std::byte>> MutableContents();

 private:
  friend class DeviceMemory;
  friend class Executor;
  Snapshot(DeviceMemory& memory, std::int32_t length, std::size_t copied_bytes,
           std::vector<std::int32_t> pages);
  void SetName(std::uint64_t name, CallMirror* mirror) {
    name_ = name;
    mirror_ = mirror;
  }

  DeviceMemory& memory_;
  std::int32_t length_;
  std::size_t copied_bytes_;
  std::unique_ptr<std::byte[]> copies_;  // [copied_bytes_], null if there was no memory
  std::vector<std::int32_t> pages_;
  std::uint64_t name_ = 0;
  CallMirror* mirror_ = nullptr;  // hears of its end, if there is one
};

}  // namespace megalith::exec
