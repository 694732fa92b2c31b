#pragma once

// Prefill: a prompt from the empty sequence to its first token, cut into steps.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "base/result.h"
#include "bench/rounds.h"
#include "bench/step_cost.h"
#include "engine/engine.h"
#include "kernels/kernel_table.h"

namespace megalith::bench {

struct PrefillCase {
  std::int32_t tokens = 512;
  std::int32_t rows_per_step = 256;  ///< rounded up to a row bucket for the Program
  kernels::Isa isa = kernels::Isa::kPortable;
  bool fast = false;  ///< CompileOptions::fast_prefill
};

struct PrefillOptions {
  int rounds = 3;
  ProgressCallback progress;
  const CancelFlag* cancel = nullptr;
};

/// Logits of the last token beside those of another form.
struct LogitDifference {
  double largest = 0.0;  ///< of all tokens
  double rms = 0.0;
  double reference_rms = 0.0;  ///< of the other form's logits around their mean
  bool same_token = false;     ///< the largest logit is the same token's
};

struct PrefillResult {
  PrefillCase what;
  std::int32_t workers = 0;
  std::string yardstick;  ///< the instruction in the bare loop
  std::string program_hash;
  std::string output_hash;  ///< of the bits of the last token's logits and the token they choose:
                            ///< the same however the prompt is cut
  Series series;            ///< amount: operations of the matrix products; items: tokens
  StepCost cost;
  double flops = 0.0;                 ///< of the whole prompt
  double weight_bytes = 0.0;          ///< read over all steps: once per step, experts as chosen
  std::int64_t activation_bytes = 0;  ///< of the Program's buffers: bounded by rows_per_step
  /// Of a fast case whose set also has the exact one, with any rows per step.
  std::optional<LogitDifference> difference;
};

/// One set of packed weights and the prompts to run on it, as DecodeSet.
struct PrefillSet {
  const engine::Engine* engine = nullptr;
  std::string weights;
  std::vector<PrefillCase> cases;
};

/// Results in the order of sets and cases. kInternal if the same prompt gave other bits on the same
/// instruction set in the same form (fast: in steps of whole chunks, all of them fast); errors of
/// Engine::MakeVariant, Executor::Step.
Result<std::vector<PrefillResult>> MeasurePrefill(const std::vector<PrefillSet>& sets,
                                                  const PrefillOptions& options);

}  // namespace megalith::bench
