#pragma once

// The golden sets (tests/data/golden/README.md): prompts, the tokens and logits an independent
// implementation computed, and how far apart two correct implementations are.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "exec/device_memory.h"
#include "exec/testing/executors.h"

namespace megalith::exec::testing {

struct GoldenCase {
  std::string tag;  ///< "p007": the prompt has 7 tokens
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> generated;  ///< greedy, 32 tokens
  double bf16_relative_l2 = 0.0;        ///< released bf16 code against the same in fp32
  double bf16_mean_abs = 0.0;
  std::string logits_path;      ///< [prompt + generated - 1, vocab] f32
  std::string router_ids_path;  ///< [MoE layers, prompt + generated - 1, top_k]
  std::string router_weights_path;
  std::string router_gap_path;  ///< [MoE layers, prompt + generated - 1]
  std::string layer_out_path;   ///< p007 only: [layers, 7, hidden]

  /// prompt + generated[:-1]: what is fed to get all golden logits.
  std::vector<std::int32_t> Tokens() const;
};

/// Cases of a model directory that has a golden/ folder.
Result<std::vector<GoldenCase>> LoadGoldenCases(const std::string& model_directory);

/// A .npy file of floats as rows of its last axis.
Result<LogitRows> LoadRows(const std::string& path);
/// A .npy file of int16 as rows of its last axis.
Result<std::vector<std::vector<std::int32_t>>> LoadIdRows(const std::string& path);

/// The first `rows` rows of a buffer, as floats whatever its dtype. Empty if there is no such
/// buffer.
LogitRows ReadBuffer(const ProgramMemory& memory, std::string_view name, std::int64_t rows);

/// Collects buffers at the end of every layer while an interpreter of one worker runs:
/// `spec.observer = trace.Observer({"prefix", "router_ids"});`. Rows of several steps are appended.
class LayerTrace {
 public:
  InstructionObserver Observer(std::vector<std::string> buffers);
  /// Rows a step has; to be set before each step.
  void set_rows(std::int64_t rows) { rows_ = rows; }
  /// Rows of all steps so far; empty if never seen.
  const LogitRows& Rows(std::int32_t layer, const std::string& buffer) const;

 private:
  std::int64_t rows_ = 1;
  std::map<std::pair<std::int32_t, std::string>, LogitRows> rows_of_;
};

/// How far `have` is from `want`.
struct Distance {
  double max_abs = 0.0;
  double mean_abs = 0.0;
  double relative_l2 = 0.0;     ///< |have - want| / |want| over all rows
  double top1_agreement = 0.0;  ///< share of rows with the same largest logit
};
/// NaN or rows of another size give infinity.
Distance Compare(const LogitRows& want, const LogitRows& have);

/// Extends `prompt` by `count` tokens, each the largest logit of a one-row step.
Result<std::vector<std::int32_t>> Greedy(Executor& executor, std::int32_t slot,
                                         std::span<const std::int32_t> prompt, std::size_t count,
                                         std::int32_t rows_per_step);

}  // namespace megalith::exec::testing
