#include "fabric/mailbox_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace megalith::fabric {
namespace {

TEST(SlotPlan, SlotsAreAlignedAndDoNotOverlap) {
  const MailboxLayout layout = {{0, Audience::kAllPeers},
                                {100, Audience::kEachPeer},
                                {64, Audience::kAllPeers},
                                {1 << 20, Audience::kEachPeer},
                                {65, Audience::kAllPeers}};
  const auto plan = SlotPlan::Make(layout, 3);
  ASSERT_TRUE(plan) << plan.error().message;
  std::set<std::size_t> starts;
  std::size_t end = 0;
  for (std::uint32_t mailbox = 0; mailbox < layout.size(); ++mailbox) {
    EXPECT_EQ(plan->MaxBytes(mailbox), layout[mailbox].bytes);
    const bool each = layout[mailbox].audience == Audience::kEachPeer;
    EXPECT_EQ(plan->ForEachPeer(mailbox), each);
    for (std::uint32_t reader = 0; reader < (each ? 3U : 1U); ++reader) {
      // The slots of sequence 2 and 1, in the order of their addresses.
      for (const std::uint64_t sequence : {2ULL, 1ULL}) {
        const std::size_t start = plan->Offset(mailbox, reader, sequence);
        EXPECT_EQ(start % SlotPlan::kSlotAlignment, 0u);
        EXPECT_EQ(start, plan->Offset(mailbox, reader, sequence + 2));
        EXPECT_GE(start, end) << mailbox;
        end = start + SlotPlan::kHeaderBytes + layout[mailbox].bytes;
      }
    }
    if (!each) {
      EXPECT_EQ(plan->Offset(mailbox, 0, 1), plan->Offset(mailbox, 2, 1));
    }
  }
  EXPECT_LE(end, plan->section_bytes());
}

TEST(SlotPlan, ImpossibleLayoutsAreRefused) {
  EXPECT_FALSE(SlotPlan::Make({}, 2));
  EXPECT_FALSE(SlotPlan::Make({{64}}, 0));
  EXPECT_FALSE(SlotPlan::Make({{64}}, kMaxRanks + 1));
  EXPECT_FALSE(SlotPlan::Make({{~std::size_t{0}}}, 2));
  EXPECT_FALSE(SlotPlan::Make({{std::size_t{1} << 39, Audience::kEachPeer}}, kMaxRanks));
}

}  // namespace
}  // namespace megalith::fabric
