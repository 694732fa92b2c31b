#pragma once

#include <cstdint>

#include "exec/call.h"

namespace megalith::exec {

/// Repeats the calls of an executor elsewhere. Used by one thread at a time, as the executor is.
class CallMirror {
 public:
  virtual ~CallMirror() = default;

  /// The call is about to be made here; `destroyed` and `last_outcome` are the mirror's to fill in.
  /// An error is what the caller gets instead, and nothing is done here.
  virtual Status Announce(const Call& call) = 0;
  /// How the call announced last has ended; null: fine. An error is what the caller gets instead.
  virtual Status TakeOutcome(const Error* error) = 0;
  /// A snapshot that a call has made is destroyed.
  virtual void SnapshotDestroyed(std::uint64_t snapshot) = 0;
};

}  // namespace megalith::exec
