#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace megalith::fabric {

inline constexpr std::uint32_t kMaxRanks = 1024;

/// Whom the content of a mailbox is for.
enum class Audience : std::uint8_t {
  kAllPeers,  ///< a rank puts the same bytes for everybody; stored once, for all ranks of its host
  kEachPeer,  ///< a rank puts other bytes for each rank
};

struct MailboxSpec {
  std::size_t bytes;  ///< most that one put carries; may be 0, which is a signal without data
  Audience audience = Audience::kAllPeers;
};

/// The mailboxes of every rank. All ranks have the same.
using MailboxLayout = std::vector<MailboxSpec>;

/// Where the slots of one writing rank lie in its section of memory.
///
/// A slot is 64 bytes of header, then the data; slots begin at multiples of 128 bytes, so that the
/// pair of lines that the hardware fetches together is the header and the first of the data, and
/// belongs to no other slot.
class SlotPlan {
 public:
  static constexpr std::size_t kHeaderBytes = 64;
  static constexpr std::size_t kSlotAlignment = 128;

  /// kUsage without ranks or with too many, or if the sizes overflow.
  static Result<SlotPlan> Make(const MailboxLayout& layout, std::uint32_t num_ranks);

  std::size_t num_mailboxes() const { return places_.size(); }
  /// Of one rank's section; a multiple of the page size.
  std::size_t section_bytes() const { return section_bytes_; }
  std::size_t MaxBytes(std::uint32_t mailbox) const { return places_[mailbox].bytes; }
  bool ForEachPeer(std::uint32_t mailbox) const { return places_[mailbox].peer_stride != 0; }
  /// From the section's start. `reader` matters only for mailboxes of kEachPeer.
  std::size_t Offset(std::uint32_t mailbox, std::uint32_t reader, std::uint64_t sequence) const {
    const Place& place = places_[mailbox];
    return place.offset + reader * place.peer_stride + (sequence & 1) * place.slot_stride;
  }

 private:
  struct Place {
    std::size_t bytes;
    std::size_t offset;
    std::size_t slot_stride;
    std::size_t peer_stride;  // 0: the same slots for all readers
  };

  std::vector<Place> places_;
  std::size_t section_bytes_ = 0;
};

}  // namespace megalith::fabric
