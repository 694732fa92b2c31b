#include "program/verifier.h"

#include <set>
#include <tuple>

#include "program/proofs.h"
#include "program/serialize.h"

namespace megalith::program {

std::vector<SegmentPair> ConsecutivePairs(const Program& program) {
  std::vector<SegmentPair> pairs;
  std::set<std::tuple<std::uint32_t, std::uint32_t, bool>> seen;
  for (std::size_t i = 0; i < program.visits.size(); ++i) {
    const bool wraps = i + 1 == program.visits.size();
    const SegmentPair pair{program.visits[i].segment, program.visits[wraps ? 0 : i + 1].segment,
                           wraps};
    if (seen.insert({pair.first, pair.second, pair.wraps}).second) pairs.push_back(pair);
  }
  return pairs;
}

Result<VerifiedProgram> Verify(Program program) {
  MEGALITH_RETURN_IF_ERROR(ProveWellFormed(program));
  MEGALITH_RETURN_IF_ERROR(ProveExchanges(program));
  MEGALITH_RETURN_IF_ERROR(ProveStore(program));
  MEGALITH_RETURN_IF_ERROR(ProveOrder(program));
  MEGALITH_RETURN_IF_ERROR(ProveUse(program));
  std::string hash = ContentHash(program);
  return VerifiedProgram(std::make_shared<const Program>(std::move(program)), std::move(hash));
}

}  // namespace megalith::program
