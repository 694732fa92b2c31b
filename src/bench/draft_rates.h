#pragma once

// Tokens per second of plain decoding and of ways to draft, on one prompt. The tokens must be the
// same.

#include <cstdint>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "bench/rounds.h"
#include "engine/engine.h"
#include "engine/generate.h"

namespace megalith::bench {

struct DraftRateCase {
  std::string name;  ///< for errors: "plain", "dspark, 8 rows"
  engine::DraftOptions drafting;
};

struct DraftRateOptions {
  std::vector<std::int32_t> prompt;
  /// What plain decoding continues it with (PlainContinuation): so many tokens are generated, at
  /// least 2, and compared with these.
  std::vector<std::int32_t> expected;
  kernels::SamplingOptions sampling;
  int repeats = 5;                       ///< turns of each line
  const Yardstick* yardstick = nullptr;  ///< bytes per second; not owned
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

struct DraftRate {
  /// Items: tokens after the first, which comes with the prompt. Amount: bytes of weights that
  /// plain decoding reads for them, so that drafting may come above the yardstick.
  Series series;
  engine::DraftStatistics drafting;  ///< over all turns, without the prompt's step

  double TokensPerRound() const {
    if (drafting.rounds == 0) return 0.0;
    return 1.0 + static_cast<double>(drafting.accepted) / static_cast<double>(drafting.rounds);
  }
};

/// The first `count` tokens after the prompt, one a step. Errors: engine::Generate; kOutOfRange if
/// the context ends before.
Result<std::vector<std::int32_t>> PlainContinuation(engine::Engine& engine,
                                                    std::span<const std::int32_t> prompt,
                                                    std::int64_t count,
                                                    const kernels::SamplingOptions& sampling,
                                                    const CancelFlag* cancel);

/// kInternal naming the first token that is not as expected.
Status CheckSameIds(const std::string& name, std::span<const std::int32_t> expected,
                    std::span<const std::int32_t> found);

/// All cases take turns on slot 0; results in their order. Errors: kUsage for fewer than 2 tokens;
/// CheckSameIds, engine::Generate.
Result<std::vector<DraftRate>> MeasureDraftRates(engine::Engine& engine,
                                                 const std::vector<DraftRateCase>& cases,
                                                 const DraftRateOptions& options);

}  // namespace megalith::bench
