#include "exec/cpu/trace_ring.h"

#include <gtest/gtest.h>

namespace megalith::exec::cpu {
namespace {

/// Writes records numbered from `first`.
void Write(TraceRing& ring, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = first; i < first + count; ++i) ring.Finish(i, 2 * i, 3, 0);
}

TEST(TraceRing, WrapsAndKeepsTheLatest) {
  TraceRing ring(5);
  EXPECT_EQ(ring.capacity(), 8U);
  ring.BeginStep(true, 0);
  Write(ring, 0, 6);
  EXPECT_EQ(ring.first(), 0U);
  EXPECT_EQ(ring.written(), 6U);
  Write(ring, 6, 13);
  EXPECT_EQ(ring.written(), 19U);
  EXPECT_EQ(ring.first(), 11U);
  for (std::uint64_t i = ring.first(); i < ring.written(); ++i) {
    EXPECT_EQ(ring.Record(i).visit, i);
    EXPECT_EQ(ring.Record(i).instruction, 2 * i);
    EXPECT_EQ(ring.Record(i).trip, 3U);
  }
}

TEST(TraceRing, EachRecordBeginsWhereTheOneBeforeEnded) {
  TraceRing ring(16);
  ring.BeginStep(true, 0);
  Write(ring, 0, 2);
  ring.WaitOver();
  ring.Finish(2, 0, 1, 0);
  ring.FinishUntimed(3, 0, 0);
  ring.WaitOver();
  ring.FinishUntimed(4, 0, 0);
  Write(ring, 5, 1);
  for (std::uint64_t i = 0; i < ring.written(); ++i) {
    const program::TraceRecord& record = ring.Record(i);
    EXPECT_LE(record.begin, record.ready);
    EXPECT_LE(record.ready, record.end);
    if (i > 0) {
      EXPECT_EQ(record.begin, ring.Record(i - 1).end);
    }
  }
  EXPECT_EQ(ring.Record(0).ready, ring.Record(0).begin);  // did not wait
  EXPECT_EQ(ring.Record(3).end, ring.Record(3).begin);
  EXPECT_EQ(ring.Record(4).end, ring.Record(4).ready);
}

TEST(TraceRing, LinesAreThoseOfTheRecord) {
  TraceRing ring(4);
  ring.BeginStep(true, 100);
  ring.Finish(0, 0, 0, 100);
  ring.Finish(0, 1, 0, 107);
  ring.FinishUntimed(0, 2, 109);
  EXPECT_EQ(ring.Record(0).prefetched_lines, 0U);
  EXPECT_EQ(ring.Record(1).prefetched_lines, 7U);
  EXPECT_EQ(ring.Record(2).prefetched_lines, 2U);
}

TEST(TraceRing, UntracedStepsLeaveNothing) {
  TraceRing ring(4);
  ring.BeginStep(false, 0);
  ring.WaitOver();
  Write(ring, 0, 3);
  EXPECT_EQ(ring.written(), 0U);
  TraceRing off;
  off.BeginStep(true, 0);
  off.WaitOver();
  Write(off, 0, 3);
  off.FinishUntimed(3, 0, 0);
  EXPECT_EQ(off.written(), 0U);
  EXPECT_EQ(off.capacity(), 0U);
}

}  // namespace
}  // namespace megalith::exec::cpu
