#pragma once

// What rank 0 of a job says to all others between steps: numbered messages, each for one target.
// A rank that takes part in anything else meanwhile is noticed by the numbers.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "fabric/fabric.h"

namespace megalith::exec {

struct RankMessage {
  std::uint64_t number = 0;  ///< from 1
  std::uint32_t target = 0;
  std::span<const std::byte> payload;
};

/// Rank 0's end. One thread at a time. The fabric must outlive it.
class RankSender {
 public:
  explicit RankSender(fabric::Fabric& fabric) : fabric_(fabric) {}

  fabric::Fabric& fabric() { return fabric_; }
  /// Begins the next message; the payload is to be appended to what is returned.
  fabric::Bytes& Begin(std::uint32_t target);
  /// Of the message that was begun last.
  std::uint64_t number() const { return number_; }
  /// Collective with RankReceiver::Receive. kIo if the job has failed.
  Status Send();

 private:
  fabric::Fabric& fabric_;
  fabric::Bytes bytes_;
  std::uint64_t number_ = 0;
};

/// The end of every other rank.
class RankReceiver {
 public:
  explicit RankReceiver(fabric::Fabric& fabric) : fabric_(fabric) {}

  /// Waits for the next message, however long; the payload is valid until the next call. kIo if
  /// the job has failed; kInternal for a message out of order.
  Result<RankMessage> Receive();

 private:
  fabric::Fabric& fabric_;
  fabric::Bytes bytes_;
  std::uint64_t number_ = 0;
};

}  // namespace megalith::exec
