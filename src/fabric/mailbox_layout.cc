#include "fabric/mailbox_layout.h"

namespace megalith::fabric {
namespace {

/// A section is reserved as a whole and taken from the machine as it is touched.
constexpr std::size_t kMaxSectionBytes = std::size_t{1} << 40;
/// A multiple of every ordinary page size.
constexpr std::size_t kSectionAlignment = std::size_t{1} << 16;
constexpr std::size_t kMaxMailboxes = 1 << 20;

std::size_t RoundUp(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

Result<SlotPlan> SlotPlan::Make(const MailboxLayout& layout, std::uint32_t num_ranks) {
  if (num_ranks == 0 || num_ranks > kMaxRanks) {
    return Fail(ErrorCode::kUsage, "mailboxes for {} ranks; 1 to {} are possible", num_ranks,
                kMaxRanks);
  }
  if (layout.empty() || layout.size() > kMaxMailboxes) {
    return Fail(ErrorCode::kUsage, "{} mailboxes; 1 to {} are possible", layout.size(),
                kMaxMailboxes);
  }
  SlotPlan plan;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const MailboxSpec& spec = layout[i];
    Place place{spec.bytes, offset, 0, 0};
    std::size_t num_pairs = 1;
    if (spec.bytes < kMaxSectionBytes) {
      place.slot_stride = RoundUp(kHeaderBytes + spec.bytes, kSlotAlignment);
      if (spec.audience == Audience::kEachPeer) {
        place.peer_stride = 2 * place.slot_stride;
        num_pairs = num_ranks;
      }
      offset += num_pairs * 2 * place.slot_stride;  // at most 2^51 more
    }
    if (spec.bytes >= kMaxSectionBytes || offset > kMaxSectionBytes) {
      return Fail(ErrorCode::kUsage,
                  "mailbox {} of {} bytes: all mailboxes of a rank may have {} bytes together", i,
                  spec.bytes, kMaxSectionBytes);
    }
    plan.places_.push_back(place);
  }
  plan.section_bytes_ = RoundUp(offset, kSectionAlignment);
  return plan;
}

}  // namespace megalith::fabric
