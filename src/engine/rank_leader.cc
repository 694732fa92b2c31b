#include "engine/rank_leader.h"

#include "engine/rank_message.h"
#include "exec/rank_mirror.h"

namespace megalith::engine {

Result<std::unique_ptr<RankLeader>> RankLeader::Start(fabric::Fabric& fabric,
                                                      const std::string& build) {
  MEGALITH_ASSIGN_OR_RETURN(RankPlace place, FindRankPlace(fabric, build));
  return std::unique_ptr<RankLeader>(new RankLeader(std::move(place)));
}

RankLeader::~RankLeader() {
  AppendControl({}, &sender_.Begin(kRankControl));
  // Should the job have failed, everybody knows.
  static_cast<void>(sender_.Send());
}

Result<std::uint32_t> RankLeader::AnnounceLoad(const std::string& directory,
                                               const EngineOptions& options) {
  const std::uint32_t target = ++num_targets_;
  AppendControl({RankControl::Kind::kLoad, target, 0}, &sender_.Begin(kRankControl));
  MEGALITH_RETURN_IF_ERROR(sender_.Send());
  fabric::Items items = LoadItems(directory, options);
  MEGALITH_RETURN_IF_ERROR(fabric::BroadcastItems(fabric(), &items));
  return target;
}

Result<std::uint32_t> RankLeader::AnnounceVariant(std::uint32_t engine,
                                                  const VariantOptions& options) {
  const std::uint32_t target = ++num_targets_;
  AppendControl({RankControl::Kind::kVariant, target, engine}, &sender_.Begin(kRankControl));
  MEGALITH_RETURN_IF_ERROR(sender_.Send());
  fabric::Items items = VariantItems(options);
  MEGALITH_RETURN_IF_ERROR(fabric::BroadcastItems(fabric(), &items));
  return target;
}

std::unique_ptr<exec::CallMirror> RankLeader::MakeMirror(std::uint32_t target) {
  return std::make_unique<exec::RankMirror>(sender_, target);
}

}  // namespace megalith::engine
