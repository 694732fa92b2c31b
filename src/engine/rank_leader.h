#pragma once

// Rank 0 of a job of several ranks. Whatever it does with engines whose options name the leader,
// the other ranks do, too, at the same moment or a little later: load them, make variants of them,
// run their steps, destroy them. They decide nothing.

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "engine/rank_place.h"
#include "exec/call_mirror.h"
#include "exec/rank_channel.h"

namespace megalith::engine {

struct EngineOptions;
struct VariantOptions;

/// One thread at a time: that of whoever loads an engine or runs steps on one.
class RankLeader {
 public:
  /// Collective with FollowLeader on every other rank. `fabric`, of rank 0, must outlive it; so
  /// must the leader its engines. Errors: those of FindRankPlace.
  static Result<std::unique_ptr<RankLeader>> Start(fabric::Fabric& fabric,
                                                   const std::string& build);
  /// Tells the others that the job is over.
  ~RankLeader();

  fabric::Fabric& fabric() { return *place_.fabric; }
  const RankPlace& place() const { return place_; }

  // For Engine. Each says what all ranks are about to do; returns the name of the executor that is
  // to be made. kIo if the job has failed.
  Result<std::uint32_t> AnnounceLoad(const std::string& directory, const EngineOptions& options);
  Result<std::uint32_t> AnnounceVariant(std::uint32_t engine, const VariantOptions& options);
  /// For the executor that has been made.
  std::unique_ptr<exec::CallMirror> MakeMirror(std::uint32_t target);

 private:
  explicit RankLeader(RankPlace place) : place_(std::move(place)), sender_(*place_.fabric) {}

  RankPlace place_;
  exec::RankSender sender_;
  std::uint32_t num_targets_ = 0;
};

}  // namespace megalith::engine
