#pragma once

// Fair comparison on a machine whose speed drifts: contestants take turns (A B C A B C ...), and
// every sample has the yardstick measured right before and right after it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "bench/statistics.h"

namespace megalith::bench {

/// What one turn of a contestant did.
struct Work {
  double seconds = 0.0;
  double amount = 0.0;  ///< in the unit of the yardstick's rate times seconds: bytes, or operations
  double items = 0.0;   ///< what is counted: tokens, calls
};

/// A turn and the yardstick's rates (per second) around it.
struct Sample {
  int round = 0;  ///< from 0
  Work work;
  double probe_before = 0.0;
  double probe_after = 0.0;

  double Rate() const { return work.amount / work.seconds; }
  double ItemRate() const { return work.items / work.seconds; }
  double Probe() const { return (probe_before + probe_after) / 2; }
  /// Share of what the machine gave at that moment.
  double Ratio() const { return Rate() / Probe(); }
};

/// All turns of one contestant.
struct Series {
  std::vector<Sample> kept;
  std::int64_t num_dropped = 0;  ///< turns whose probes were too far apart

  Summary ItemsPerSecond() const;
  Summary SecondsPerItem() const;
  Summary Rate() const;
  Summary Probe() const;
  Summary Ratio() const;
  /// Items per second over those of `base` in each round that both kept: a machine that was slow in
  /// a round was so for both. All 0 if there is no such round.
  Summary SpeedOver(const Series& base) const;
};

using Turn = std::function<Result<Work>()>;
/// Measures the yardstick once: its rate per second.
using Yardstick = std::function<Result<double>()>;

struct Contestant {
  Turn turn;
  const Yardstick* yardstick = nullptr;  ///< not owned; several contestants may share one
};

struct RoundsOptions {
  int num_rounds = 5;  ///< kept turns wanted of each contestant
  /// Rounds in all: a machine that is never steady must not keep a measurement from ending.
  int max_rounds = 15;
  std::string stage;  ///< for progress
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

/// Runs the contestants in turns until each has num_rounds kept turns or max_rounds are over. Those
/// that have enough sit out. Two turns with one yardstick share the probe between them; after a
/// change of yardsticks the first measurement does not count. The result is in the order of
/// `contestants`. Errors: those of the callbacks, kCancelled.
Result<std::vector<Series>> RunRounds(const std::vector<Contestant>& contestants,
                                      const RoundsOptions& options);

}  // namespace megalith::bench
