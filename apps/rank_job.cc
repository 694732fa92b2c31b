#include "rank_job.h"

#include <fmt/format.h>

#include "fabric/agreement.h"

namespace megalith::apps {

Status RankJob::Start(const std::string& build) {
  if (fabric_ == nullptr || fabric_->num_ranks() == 1) return {};
  MEGALITH_ASSIGN_OR_RETURN(launched_, engine::RankLeader::Start(*fabric_, build));
  return {};
}

Result<engine::RankLeader*> RankJob::Lead(int num_ranks) {
  if (fabric_ != nullptr) {
    if (num_ranks != 0 && num_ranks != static_cast<int>(fabric_->num_ranks())) {
      return Fail(ErrorCode::kUsage, "--ranks {}: the launcher has started {}", num_ranks,
                  fabric_->num_ranks());
    }
    return launched_.get();
  }
  if (num_ranks <= 1) return nullptr;
  std::unique_ptr<engine::RankGroup>& group = threads_[num_ranks];
  if (group == nullptr) {
    MEGALITH_ASSIGN_OR_RETURN(
        group, engine::RankGroup::Start(static_cast<std::uint32_t>(num_ranks), cancel_));
  }
  return &group->leader();
}

Result<Topology> RankJob::FindTopology(int num_ranks) {
  MEGALITH_ASSIGN_OR_RETURN(const engine::RankLeader* leader, Lead(num_ranks));
  if (leader != nullptr) return leader->place().cores.topology;
  return DetectTopology();
}

Status ShareArguments(fabric::Fabric& fabric, std::vector<std::string>* arguments) {
  fabric::Items items;
  for (const std::string& argument : *arguments) items.emplace_back(argument, "");
  MEGALITH_RETURN_IF_ERROR(fabric::BroadcastItems(fabric, &items));
  arguments->clear();
  for (auto& item : items) arguments->push_back(std::move(item.first));
  return {};
}

}  // namespace megalith::apps
