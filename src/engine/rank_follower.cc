#include "engine/rank_follower.h"

#include <iterator>
#include <map>
#include <memory>
#include <optional>

#include "base/affinity.h"
#include "engine/engine.h"
#include "engine/rank_message.h"
#include "engine/rank_place.h"
#include "exec/rank_mirror.h"

namespace megalith::engine {
namespace {

class Follower {
 public:
  Follower(RankPlace place, const CancelFlag* cancel)
      : place_(std::move(place)), cancel_(cancel), receiver_(*place_.fabric) {}
  ~Follower() {
    // Variants were made after the engines whose weights they use.
    while (!hosted_.empty()) hosted_.erase(std::prev(hosted_.end()));
  }

  Status Run() {
    while (true) {
      MEGALITH_ASSIGN_OR_RETURN(const exec::RankMessage message, receiver_.Receive());
      if (message.target == kRankControl) {
        MEGALITH_ASSIGN_OR_RETURN(const RankControl control, ParseControl(message.payload));
        if (control.kind == RankControl::Kind::kEnd) return {};
        MEGALITH_RETURN_IF_ERROR(Obey(control));
        continue;
      }
      MEGALITH_ASSIGN_OR_RETURN(Hosted* const hosted, Find(message.target));
      MEGALITH_ASSIGN_OR_RETURN(const bool lives, hosted->repeater->Repeat(message));
      if (!lives) hosted_.erase(message.target);
    }
  }

 private:
  /// An executor, and the engine if it is its own.
  struct Hosted {
    std::unique_ptr<Engine> engine;
    Variant variant;
    std::optional<exec::CallRepeater> repeater;  // first to go: has snapshots
  };

  Result<Hosted*> Find(std::uint32_t target) {
    const auto found = hosted_.find(target);
    if (found == hosted_.end()) {
      return Fail(ErrorCode::kInternal, "rank 0 speaks of executor {}, which is not here", target);
    }
    return &found->second;
  }

  /// A load that fails fails on all ranks, and is rank 0's to report.
  Status Obey(const RankControl& control) {
    fabric::Items items;
    MEGALITH_RETURN_IF_ERROR(fabric::BroadcastItems(*place_.fabric, &items));
    Hosted hosted;
    exec::Executor* executor = nullptr;
    if (control.kind == RankControl::Kind::kLoad) {
      std::string directory;
      EngineOptions options;
      MEGALITH_RETURN_IF_ERROR(ParseLoadItems(items, &directory, &options));
      options.cancel = cancel_;
      auto engine = Engine::LoadOnRank(directory, options, &place_);
      if (!engine) return place_.fabric->status();
      hosted.engine = std::move(*engine);
      executor = &hosted.engine->executor();
    } else {
      VariantOptions options;
      MEGALITH_RETURN_IF_ERROR(ParseVariantItems(items, &options));
      MEGALITH_ASSIGN_OR_RETURN(Hosted* const base, Find(control.engine));
      if (base->engine == nullptr) {
        return Fail(ErrorCode::kInternal, "executor {} has no engine", control.engine);
      }
      auto variant = base->engine->MakeVariantOnRank(options);
      if (!variant) return place_.fabric->status();
      hosted.variant = std::move(*variant);
      executor = hosted.variant.executor.get();
    }
    Hosted& kept = hosted_.try_emplace(control.target, std::move(hosted)).first->second;
    kept.repeater.emplace(*executor, *place_.fabric);
    return {};
  }

  RankPlace place_;
  const CancelFlag* cancel_;
  exec::RankReceiver receiver_;
  std::map<std::uint32_t, Hosted> hosted_;
};

}  // namespace

Status FollowLeader(fabric::Fabric& fabric, const std::string& build, const CancelFlag* cancel) {
  MEGALITH_ASSIGN_OR_RETURN(RankPlace place, FindRankPlace(fabric, build));
  if (!place.cores.shares_cpus) {
    // Where it cannot, the system chooses.
    static_cast<void>(SetThisThreadCpus(place.cores.topology.allowed_cpus));
  }
  const Status status = Follower(std::move(place), cancel).Run();
  if (status) return status;
  // No other rank may wait for this one for ever.
  fabric.Abort(status.error().message);
  return fabric.status();
}

}  // namespace megalith::engine
