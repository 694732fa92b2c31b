#pragma once

// What a round of drafting costs beside a plain step: verifying so many rows, with and without
// proposing as many anew. What becomes of the drafts does not matter to the time.

#include <cstdint>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "bench/rounds.h"
#include "engine/engine.h"

namespace megalith::bench {

struct DraftCostOptions {
  std::vector<std::int32_t> rows = {1, 2, 3, 4, 5, 6, 7, 8};  ///< 1 is measured in any case
  /// What the sequence reads: token p stands at position p, its drafts are the tokens after it.
  std::vector<std::int32_t> text;
  std::int32_t context = 64;             ///< of the text, run before the first measured step; >= 1
  int steps = 0;                         ///< of one turn; 0: StepsPerTurn
  int repeats = 5;                       ///< turns of each line
  const Yardstick* yardstick = nullptr;  ///< bytes per second; not owned
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

struct DraftCost {
  std::int32_t rows = 1;       ///< verified: rows - 1 drafts and the token before them
  std::int32_t proposals = 0;  ///< asked of the drafter in the same step
  std::string program_hash;
  Series series;  ///< amount: bytes of weights; items: steps
  int steps_per_turn = 0;
  double experts_per_layer = 0.0;  ///< distinct ones, mean over the measured steps
  double weight_bytes = 0.0;       ///< per step, mean; those of the drafter included
  double state_bytes = 0.0;        ///< recurrent states read and written per step
  double mean_positions = 0.0;     ///< length of the sequence in the measured steps
  // Of the medians, over the plain step of one row; 0 if one of them was not measured.
  double time_ratio = 0.0;  ///< also the tokens a round must give for this to gain
  double bytes_ratio = 0.0;
};

/// The plain step of one row, then for each number of rows the step that only verifies and, if the
/// engine has a drafter, the one that also proposes rows - 1 (or what it can). All take turns on
/// slot 0. Errors: kUsage for more rows than the engine was loaded for; kOutOfRange for a text or
/// context too short; those of Sequence::Append.
Result<std::vector<DraftCost>> MeasureDraftCosts(engine::Engine& engine,
                                                 const DraftCostOptions& options);

}  // namespace megalith::bench
