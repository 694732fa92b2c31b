#include "engine/rank_group.h"

#include <exception>
#include <system_error>

#include "engine/rank_follower.h"
#include "fabric/inproc.h"

namespace megalith::engine {
namespace {

constexpr char kSameProgram[] = "this process";

void Follow(fabric::Fabric& fabric, const CancelFlag* cancel) {
  // An error is in the fabric, where rank 0 finds it. The libraries do not throw; the standard
  // library may, when memory runs out.
  try {
    static_cast<void>(FollowLeader(fabric, kSameProgram, cancel));
  } catch (const std::exception& error) {
    fabric.Abort(error.what());
  }
}

}  // namespace

Result<std::unique_ptr<RankGroup>> RankGroup::Start(std::uint32_t num_ranks,
                                                    const CancelFlag* cancel) {
  std::unique_ptr<RankGroup> group(new RankGroup);
  MEGALITH_ASSIGN_OR_RETURN(group->fabrics_, fabric::MakeInprocJob(num_ranks));
  fabric::Fabric& first = group->fabric(0);
  for (std::uint32_t rank = 1; rank < num_ranks; ++rank) {
    try {
      group->threads_.emplace_back(
          [&fabric = group->fabric(rank), cancel] { Follow(fabric, cancel); });
    } catch (const std::system_error& error) {
      first.Abort(error.what());
      return Fail(ErrorCode::kOutOfMemory, "rank {}: no thread: {}", rank, error.what());
    }
  }
  auto leader = RankLeader::Start(first, kSameProgram);
  if (!leader) {
    first.Abort(leader.error().message);
    return tl::unexpected(leader.error());
  }
  group->leader_ = std::move(*leader);
  return group;
}

RankGroup::~RankGroup() {
  leader_.reset();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace megalith::engine
