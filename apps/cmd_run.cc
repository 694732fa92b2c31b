// megalith run: continue a prompt.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/units.h"
#include "cli.h"
#include "commands.h"
#include "default_model.h"
#include "engine/generate.h"
#include "loading.h"
#include "model/config.h"
#include "sampling_options.h"
#include "text/generation_ids.h"
#include "text/stream_decoder.h"

namespace megalith::apps {
namespace {

// What the embedded model continues if nobody says otherwise: it was trained on this kind of text.
constexpr char kSamplePrompt[] = "In the beginning God created";

struct RunOptions {
  std::string model;
  LoadOptions load;
  std::string prompt;
  std::string prompt_file;
  std::string ids;
  std::int64_t max_tokens = 64;
  engine::SamplingOptions sampling;
  std::int32_t rows_per_step = 64;
  bool bos = false;
  bool ignore_eos = false;
  bool json = false;
};

Result<std::vector<std::int32_t>> ReadPrompt(const RunOptions& options,
                                             const text::Tokenizer& tokenizer,
                                             std::int64_t bos_token_id) {
  if (!options.ids.empty()) return ParseIds(options.ids);
  std::string prompt = options.prompt;
  if (!options.prompt_file.empty()) {
    MEGALITH_ASSIGN_OR_RETURN(prompt, ReadText(options.prompt_file));
  } else if (prompt.empty()) {
    if (!options.model.empty()) {
      return Fail(ErrorCode::kUsage, "run: a prompt expected: -p TEXT, --prompt-file F or --ids");
    }
    prompt = kSamplePrompt;
  }
  std::vector<std::int32_t> ids;
  if (options.bos) ids.push_back(static_cast<std::int32_t>(bos_token_id));
  MEGALITH_RETURN_IF_ERROR(tokenizer.EncodeTo(prompt, ids));
  if (ids.empty()) return Fail(ErrorCode::kUsage, "run: the prompt is empty");
  return ids;
}

double Rate(std::size_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

void PrintSummary(const engine::Engine& engine, const engine::GenerateResult& result) {
  fmt::print(stderr,
             "prompt {} tokens at {:.1f} tok/s, decode {} tokens at {:.1f} tok/s, {} read per "
             "token, {}, {} worker{}\n",
             result.prompt_tokens, Rate(result.prompt_tokens, result.prompt_seconds),
             result.ids.size(), Rate(result.ids.size() - 1, result.decode_seconds),
             FormatBytes(static_cast<std::uint64_t>(engine.bytes_per_token())), engine.isa_name(),
             engine.num_workers(), engine.num_workers() == 1 ? "" : "s");
}

void PrintJson(const engine::Engine& engine, const std::vector<std::int32_t>& prompt,
               const engine::GenerateResult& result, const std::string& text) {
  // The first token comes with the prompt, so decoding made one token less.
  const std::size_t decoded = result.ids.size() - 1;
  const nlohmann::ordered_json json = {
      {"prompt_ids", prompt},
      {"ids", result.ids},
      {"text", text},
      {"finish_reason", engine::FinishReasonName(result.finish_reason)},
      {"timings",
       {{"load_seconds", engine.timings().load_seconds},
        {"compile_seconds", engine.timings().compile_seconds},
        {"prefill_seconds", result.prompt_seconds},
        {"decode_seconds", result.decode_seconds},
        {"prefill_tokens_per_second", Rate(result.prompt_tokens, result.prompt_seconds)},
        {"decode_tokens_per_second", Rate(decoded, result.decode_seconds)},
        {"bytes_per_token", engine.bytes_per_token()}}},
      {"isa", engine.isa_name()},
      {"workers", engine.num_workers()},
      {"program_hash", engine.program_hash()}};
  fmt::print("{}\n", json.dump());
}

Status Run(const RunOptions& options, const Cli& cli) {
  MEGALITH_RETURN_IF_ERROR(engine::CheckSampling(options.sampling));
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ReadConfig(directory));
  MEGALITH_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer,
                            text::Tokenizer::Load(directory, config.model.vocab_size));
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<std::int32_t> prompt,
                            ReadPrompt(options, tokenizer, config.model.bos_token_id));
  const std::int64_t context = config.model.max_position_embeddings;
  if (static_cast<std::int64_t>(prompt.size()) > context) {
    return Fail(ErrorCode::kOutOfRange, "prompt: {} tokens, the model's context is {}",
                prompt.size(), context);
  }

  engine::EngineOptions load;
  load.rows_per_step = options.rows_per_step;
  load.max_positions = static_cast<std::int32_t>(
      std::min(context, static_cast<std::int64_t>(prompt.size()) + options.max_tokens));
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                            LoadEngine(directory, cli, options.load, std::move(load)));
  engine::GenerateOptions generate;
  generate.max_tokens = options.max_tokens;
  generate.sampling = options.sampling;
  generate.cancel = cli.cancel;
  if (!options.ignore_eos) {
    MEGALITH_ASSIGN_OR_RETURN(generate.stop_ids, text::FindStopIds(directory, tokenizer));
  }

  text::StreamDecoder decoder(tokenizer);
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (options.json) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  };
  if (!options.json && options.ids.empty()) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string shown, text::DecodeText(tokenizer, prompt));
    fmt::print("{}", shown);
    std::fflush(stdout);
  }
  engine::Sequence sequence(*engine, 0);
  MEGALITH_ASSIGN_OR_RETURN(const engine::GenerateResult result,
                            engine::Generate(sequence, prompt, generate, [&](std::int32_t token) {
                              if (auto piece = decoder.Push(token)) emit(*piece);
                              return std::ferror(stdout) == 0;  // nobody reads any more
                            }));
  emit(decoder.Finish());
  if (options.json) {
    PrintJson(*engine, prompt, result, text);
  } else {
    fmt::print("\n");
    std::fflush(stdout);
    if (!cli.common.quiet) PrintSummary(*engine, result);
  }
  if (result.finish_reason == engine::FinishReason::kCancelled) {
    return Fail(ErrorCode::kCancelled, "run: stopped after {} tokens", result.ids.size());
  }
  return {};
}

}  // namespace

void RegisterRun(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = AddCommand(app, cli, "run", "Continue a prompt, greedy unless told otherwise",
                                 "megalith run\n"
                                 "megalith run -p \"And the king said unto\" -n 40\n"
                                 "megalith run /models/Kimi-K3 --prompt-file question.txt -n 200 "
                                 "--temperature 1 --top-p 0.95\n"
                                 "megalith run --ids 3840,3077,259 -n 16 --json",
                                 [options, &cli] { return Run(*options, cli); });
  AddModelArgument(*command, options->model);
  AddLoadOptions(*command, options->load);
  CLI::Option_group* prompt = command->add_option_group("prompt");
  prompt->add_option("-p,--prompt", options->prompt, "Text to continue")->type_name("TEXT");
  prompt->add_option("--prompt-file", options->prompt_file, "File with the text; - is stdin")
      ->type_name("F");
  prompt->add_option("--ids", options->ids, "Token ids, separated by commas")->type_name("IDS");
  prompt->require_option(0, 1);
  command->add_option("-n,--max-tokens", options->max_tokens, "Most tokens to generate")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
      ->capture_default_str();
  AddSamplingOptions(*command, options->sampling);
  command
      ->add_option("--rows-per-step", options->rows_per_step,
                   "Prompt tokens per step; does not change the result")
      ->type_name("N")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_flag("--bos", options->bos, "Put the model's [BOS] token before the text");
  command->add_flag("--ignore-eos", options->ignore_eos, "Do not stop at end tokens");
  command->add_flag("--json", options->json, "One JSON object instead of text");
}

}  // namespace megalith::apps
