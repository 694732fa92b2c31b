// megalith score: teacher-forced logits of given tokens, for comparison with other engines.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/npy.h"
#include "cli.h"
#include "commands.h"
#include "console.h"
#include "default_model.h"
#include "loading.h"
#include "model/config.h"
#include "output_file.h"
#include "program/compile/compile.h"
#include "progress_bar.h"

namespace megalith::apps {
namespace {

struct ScoreOptions {
  std::string model;
  LoadOptions load;
  std::string ids;
  std::string logits_out;
  std::string engine = "cpu";
  std::string activations = "bf16";
  std::int32_t rows_per_step = 64;
};

/// The model in use must not be overwritten.
Status CheckNotPartOfModel(const std::string& path, const std::string& directory) {
  std::error_code error;
  const auto folder = std::filesystem::absolute(path, error).parent_path();
  if (std::filesystem::exists(path, error) &&
      std::filesystem::equivalent(folder, directory, error)) {
    return Fail(ErrorCode::kUsage, "{}: is a file of the model and will not be overwritten", path);
  }
  return {};
}

Status Score(const ScoreOptions& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids, ParseIds(options.ids));
  if (ids.empty()) return Fail(ErrorCode::kUsage, "score: at least one token id expected");
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  // All that can be refused is refused before the weights are read.
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ReadConfig(directory));
  MEGALITH_RETURN_IF_ERROR(CheckIds(ids, config.model.vocab_size));
  const std::int64_t context = config.model.max_position_embeddings;
  if (static_cast<std::int64_t>(ids.size()) > context) {
    return Fail(ErrorCode::kOutOfRange, "score: {} tokens, the model's context is {}", ids.size(),
                context);
  }
  MEGALITH_RETURN_IF_ERROR(CheckNotPartOfModel(options.logits_out, directory));
  MEGALITH_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(options.logits_out));
  engine::EngineOptions load;
  load.executor =
      options.engine == "cpu" ? engine::ExecutorKind::kCpu : engine::ExecutorKind::kReference;
  load.activation_dtype = options.activations == "bf16" ? DType::kBf16 : DType::kF32;
  load.rows_per_step = options.rows_per_step;
  load.logit_rows_per_step = options.rows_per_step;
  load.max_positions = static_cast<std::int32_t>(ids.size());
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                            LoadEngine(directory, cli, options.load, std::move(load)));

  ProgressBar bar(cli.common.quiet);
  const std::int64_t start = NowNs();
  const auto vocab_size = static_cast<std::size_t>(engine->model().vocab_size);
  std::vector<float> logits;
  logits.reserve(ids.size() * vocab_size);
  for (std::size_t done = 0; done < ids.size();) {
    MEGALITH_RETURN_IF_ERROR(CheckCancelled(cli.cancel, "score"));
    const std::size_t count =
        std::min(ids.size() - done, static_cast<std::size_t>(options.rows_per_step));
    std::vector<std::int32_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    const exec::Run run{0, static_cast<std::int32_t>(done), static_cast<std::int32_t>(count)};
    MEGALITH_ASSIGN_OR_RETURN(
        const exec::StepOutput step,
        engine->executor().Step({{&run, 1}, std::span(ids).subspan(done, count), rows}));
    for (std::size_t row = 0; row < count; ++row) {
      const std::span<const float> values = step.Row(static_cast<std::int64_t>(row));
      const auto bad = std::find_if(values.begin(), values.end(),
                                    [](float value) { return !std::isfinite(value); });
      if (bad != values.end()) {
        return Fail(ErrorCode::kNumeric, "logits after token {}: token {} has {}", done + row + 1,
                    bad - values.begin(), *bad);
      }
      logits.insert(logits.end(), values.begin(), values.end());
    }
    done += count;
    bar.Update({"score tokens", done, ids.size(), false});
  }
  bar.Clear();
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(ids.size()),
                                           static_cast<std::int64_t>(vocab_size)};
  MEGALITH_ASSIGN_OR_RETURN(const std::string npy,
                            EncodeNpy(DType::kF32, shape, std::as_bytes(std::span(logits))));
  MEGALITH_RETURN_IF_ERROR(file.Commit(npy));
  if (!cli.common.quiet) {
    Note("{} tokens at {:.1f} tok/s, {}, logits [{}, {}] in {}\n", ids.size(),
         static_cast<double>(ids.size()) / SecondsSince(start), engine->isa_name(), shape[0],
         shape[1], options.logits_out);
  }
  return {};
}

}  // namespace

void RegisterScore(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = AddCommand(
      app, cli, "score", "Write the logits after every given token (float32 .npy [tokens, vocab])",
      "megalith score models/k3-nano --ids 3840,3077,259 --logits-out logits.npy\n"
      "megalith score models/k3-nano --ids 3840,3077,259 --logits-out logits.npy "
      "--activations fp32\n"
      "megalith score models/k3-nano --ids 3840,3077,259 --logits-out logits.npy "
      "--engine reference --rows-per-step 1",
      [options, &cli] { return Score(*options, cli); });
  AddModelArgument(*command, options->model);
  AddLoadOptions(*command, options->load);
  AddPrefillOption(*command, options->load.prefill);
  command->add_option("--ids", options->ids, "Token ids, separated by commas")
      ->type_name("IDS")
      ->required();
  command->add_option("--logits-out", options->logits_out, "File to write; - is stdout")
      ->type_name("F.npy")
      ->required();
  command->add_option("--engine", options->engine, "cpu, or reference: the interpreter")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  command
      ->add_option("--activations", options->activations,
                   "bf16, or fp32: no rounding of activations (portable path)")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  command
      ->add_option("--rows-per-step", options->rows_per_step,
                   "Tokens per step; does not change the result of exact prefill")
      ->type_name("N")
      ->check(CLI::Range(1, program::kMaxRowBucket))
      ->capture_default_str();
}

}  // namespace megalith::apps
