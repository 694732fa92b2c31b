#pragma once

// Steps of many kinds, always the same, to compare what executors give.

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "exec/testing/executors.h"

namespace megalith::exec::testing {

/// Everything that a sequence was given and has become.
struct Answer {
  LogitRows logits;
  SequenceState state;
};

/// Feeds `tokens` in steps of 1, 8, 3 and 64 rows.
Result<Answer> FeedInSteps(Executor& executor, std::span<const std::int32_t> tokens);

/// What two sequences were given that draft.
struct DraftRounds {
  std::vector<std::int32_t> tokens;  ///< chosen and proposed, round by round
  std::vector<float> confidence;
  LogitRows logits;
};
/// Six rounds of both in one step, with seven proposals each, of which some are changed to wrong
/// ones.
Result<DraftRounds> RunDraftRounds(Executor& executor);

}  // namespace megalith::exec::testing
