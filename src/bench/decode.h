#pragma once

// Decoding: `rows` sequences, each one token further per step. Forms of one model (row counts,
// instruction sets, with and without prefetch, a barrier after every operation) take turns on one
// set of packed weights.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "bench/rounds.h"
#include "bench/step_cost.h"
#include "engine/engine.h"
#include "kernels/kernel_table.h"

namespace megalith::bench {

/// Which token a sequence gets next. kGreedy: the one it chose. kRandom: any, the same in every
/// run; so that experts are chosen as spread as tokens are, whatever the weights.
enum class TokenSource { kGreedy, kRandom };

/// Tokens of each sequence that the output hash covers, counted from the end of its prompt.
inline constexpr int kHashedTokens = 8;

struct DecodeCase {
  std::int32_t rows = 1;  ///< sequences, one token of each per step
  kernels::Isa isa = kernels::Isa::kPortable;
  bool per_op = false;   ///< a barrier after every operation, nothing fetched across operations
  bool prefetch = true;  ///< ask for coming weights while waiting; off in per-op mode
};

struct DecodeOptions {
  std::int32_t context = 64;  ///< positions that each sequence holds before the first measured step
  TokenSource tokens = TokenSource::kGreedy;
  int steps = 0;  ///< measured per turn; 0: as many as take about 0.2 s, at least 2
  int rounds = 5;
  std::size_t probe_bytes = 0;  ///< 0: kYardstickBytes
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

struct DecodeResult {
  DecodeCase what;
  std::int32_t ranks = 1;
  std::int32_t workers = 0;  ///< of all ranks together
  std::string yardstick;     ///< how the probe reads
  std::string program_hash;
  std::string
      first_row_hash;  ///< of the tokens of sequence 0: the same at every row count and mode
  std::string all_rows_hash;
  Series series;  ///< amount: bytes of weights; items: tokens
  int steps_per_turn = 0;
  StepCost cost;
  double experts_per_layer = 0.0;  ///< distinct ones, mean over the measured steps
  double weight_bytes = 0.0;       ///< per step, mean
  double state_bytes = 0.0;        ///< per step at the mean length; not in the ratio
  double mean_positions = 0.0;     ///< length of the sequences in the measured steps
};

/// One set of packed weights and the forms to run on it. The sets differ in what packing depends on
/// (workers, checkpoint); all forms of all sets take turns.
struct DecodeSet {
  const engine::Engine* engine = nullptr;
  std::string weights;  ///< sets of the same name hold the same weights and give the same tokens
  std::vector<DecodeCase> cases;
};

/// Results in the order of sets and cases. kInternal if forms that must give the same bits chose
/// other tokens; errors of Engine::MakeVariant, Executor::Step, StartMemoryYardstick.
Result<std::vector<DecodeResult>> MeasureDecode(const std::vector<DecodeSet>& sets,
                                                const DecodeOptions& options);

}  // namespace megalith::bench
