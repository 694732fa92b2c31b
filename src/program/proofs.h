#pragma once

// The parts of Verify. Each returns kBadProgram at the first violation. Later parts rely on what
// earlier ones have shown (WellFormed first).

#include "base/result.h"
#include "program/program.h"

namespace megalith::program {

/// V1 and V7.
Status ProveWellFormed(const Program& program);
/// V6, but for what is between ranks (exchange.h) and the order of a rank's own accesses (V5).
Status ProveExchanges(const Program& program);
/// V4.
Status ProveStore(const Program& program);
/// V2, V3 and V5.
Status ProveOrder(const Program& program);
/// V8.
Status ProveUse(const Program& program);

/// Pairs of segments that follow each other in a step, each once; `wraps` marks the step's last and
/// first visit, between which the host runs.
struct SegmentPair {
  std::uint32_t first = kNone;
  std::uint32_t second = kNone;
  bool wraps = false;
};
std::vector<SegmentPair> ConsecutivePairs(const Program& program);

}  // namespace megalith::program
