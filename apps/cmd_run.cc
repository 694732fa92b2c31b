// megalith run: continue a prompt.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/align.h"
#include "base/units.h"
#include "cli.h"
#include "commands.h"
#include "console.h"
#include "default_model.h"
#include "drafting.h"
#include "engine/generate.h"
#include "loading.h"
#include "model/config.h"
#include "program/compile/compile.h"
#include "sampling_options.h"
#include "text/generation_ids.h"
#include "text/stream_decoder.h"

namespace megalith::apps {
namespace {

struct RunOptions {
  std::string model;
  LoadOptions load;
  std::string prompt;
  std::string prompt_file;
  std::string ids;
  std::int64_t max_tokens = 64;
  DraftChoice draft;
  kernels::SamplingOptions sampling;
  std::int32_t rows_per_step = 256;
  bool bos = false;
  bool ignore_eos = false;
  bool json = false;
};

/// How the prompt was given; an empty text is not the same as none.
struct PromptSources {
  const CLI::Option* text = nullptr;
  const CLI::Option* file = nullptr;
  const CLI::Option* ids = nullptr;
};

Result<std::string> ReadPromptText(const RunOptions& options, const PromptSources& sources) {
  if (sources.file->count() > 0) return ReadText(options.prompt_file);
  if (sources.text->count() > 0) return options.prompt;
  if (options.model.empty()) return kSamplePrompt;
  return Fail(ErrorCode::kUsage, "run: a prompt expected: -p TEXT, --prompt-file F or --ids");
}

Result<std::vector<std::int32_t>> ReadPrompt(const RunOptions& options,
                                             const PromptSources& sources,
                                             const text::Tokenizer& tokenizer,
                                             std::int64_t bos_token_id) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string prompt, ReadPromptText(options, sources));
  std::vector<std::int32_t> ids;
  if (options.bos) ids.push_back(static_cast<std::int32_t>(bos_token_id));
  Status encoded = tokenizer.EncodeTo(prompt, ids);
  if (!encoded && sources.file->count() > 0) {
    return Fail(ErrorCode::kBadFile, "{}: {}", options.prompt_file, encoded.error().message);
  }
  MEGALITH_RETURN_IF_ERROR(encoded);
  return ids;
}

double Rate(std::size_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

void PrintSummary(const engine::Engine& engine, const engine::GenerateResult& result) {
  std::string decode = "no token decoded";  // the first one comes with the prompt
  if (result.ids.size() > 1) {
    decode = fmt::format("decode {} tokens at {:.1f} tok/s", result.ids.size() - 1,
                         Rate(result.ids.size() - 1, result.decode_seconds));
  }
  Note("prompt {} tokens at {:.1f} tok/s, {}, {} read by a plain step, {}, {} worker{}\n",
       result.prompt_tokens, Rate(result.prompt_tokens, result.prompt_seconds), decode,
       FormatBytes(static_cast<std::uint64_t>(engine.plain_step_bytes())), engine.isa_name(),
       engine.num_workers(), engine.num_workers() == 1 ? "" : "s");
  if (const std::string drafts = DraftSummary(result.drafting); !drafts.empty()) {
    Note("{}\n", drafts);
  }
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
        {"open_seconds", engine.timings().open_seconds},
        {"fill_seconds", engine.timings().fill_seconds},
        {"cache_write_seconds", engine.timings().cache_write_seconds},
        {"peak_rss_bytes", PeakResidentBytes()},
        {"prefill_seconds", result.prompt_seconds},
        {"decode_seconds", result.decode_seconds},
        {"prefill_tokens_per_second", Rate(result.prompt_tokens, result.prompt_seconds)},
        {"decode_tokens_per_second", Rate(decoded, result.decode_seconds)},
        {"plain_step_bytes", engine.plain_step_bytes()}}},
      {"drafting", DraftJson(result.drafting)},
      {"weights", exec::WeightOriginName(engine.weights().origin())},
      {"isa", engine.isa_name()},
      {"workers", engine.num_workers()},
      {"program_hash", engine.program_hash()}};
  Put("{}\n", json.dump());
}

/// What turns ids into text. A checkpoint without a tokenizer can still run token ids.
struct Texts {
  std::optional<text::Tokenizer> tokenizer;
  std::vector<std::int32_t> stop_ids;
};

Result<Texts> LoadTexts(const std::string& directory, const model::Model& model, bool from_ids) {
  Texts texts;
  auto tokenizer = text::Tokenizer::Load(directory, model.vocab_size);
  if (!tokenizer && from_ids && tokenizer.error().code == ErrorCode::kNotFound) {
    for (const std::int64_t id : model.eos_token_ids) {
      texts.stop_ids.push_back(static_cast<std::int32_t>(id));
    }
    return texts;
  }
  MEGALITH_ASSIGN_OR_RETURN(texts.tokenizer, std::move(tokenizer));
  MEGALITH_ASSIGN_OR_RETURN(texts.stop_ids, text::FindStopIds(directory, *texts.tokenizer));
  return texts;
}

Status Run(const RunOptions& options, const PromptSources& sources, const Cli& cli) {
  // All that can be refused is refused before the weights are read.
  MEGALITH_RETURN_IF_ERROR(kernels::CheckSampling(options.sampling));
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ReadConfig(directory));
  MEGALITH_ASSIGN_OR_RETURN(const Drafting drafting,
                            ResolveDrafting(options.draft, directory, config.model));
  const bool from_ids = sources.ids->count() > 0;
  MEGALITH_ASSIGN_OR_RETURN(const Texts texts, LoadTexts(directory, config.model, from_ids));
  MEGALITH_ASSIGN_OR_RETURN(
      const std::vector<std::int32_t> prompt,
      from_ids ? ParseIds(options.ids)
               : ReadPrompt(options, sources, *texts.tokenizer, config.model.bos_token_id));
  if (prompt.empty()) return Fail(ErrorCode::kUsage, "run: the prompt is empty");
  MEGALITH_RETURN_IF_ERROR(CheckIds(prompt, config.model.vocab_size));
  const std::int64_t context = config.model.max_position_embeddings;
  if (static_cast<std::int64_t>(prompt.size()) > context) {
    return Fail(ErrorCode::kOutOfRange, "prompt: {} tokens, the model's context is {}",
                prompt.size(), context);
  }

  drafting.Report();
  engine::EngineOptions load;
  load.rows_per_step = options.rows_per_step;
  load.drafter = drafting.drafter;
  load.max_drafts = drafting.options.max_drafts;
  // Rounded up so that the Program, and its hash, do not change with every length.
  load.max_positions = static_cast<std::int32_t>(
      std::min(context, RoundUp(static_cast<std::int64_t>(prompt.size()) + options.max_tokens,
                                engine::kDefaultPositions)));
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                            LoadEngine(directory, cli, options.load, std::move(load)));
  engine::GenerateOptions generate;
  generate.max_tokens = options.max_tokens;
  generate.sampling = options.sampling;
  generate.drafting = drafting.options;
  generate.cancel = cli.cancel;
  if (!options.ignore_eos) generate.stop_ids = texts.stop_ids;

  std::optional<text::StreamDecoder> decoder;
  if (texts.tokenizer) decoder.emplace(*texts.tokenizer);
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (options.json) return;
    Put("{}", piece);
    std::fflush(stdout);
  };
  if (!options.json && !from_ids) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string shown, text::DecodeText(*texts.tokenizer, prompt));
    Put("{}", shown);
    std::fflush(stdout);
  }
  engine::Sequence sequence(*engine, 0);
  MEGALITH_ASSIGN_OR_RETURN(const engine::GenerateResult result,
                            engine::Generate(sequence, prompt, generate, [&](std::int32_t token) {
                              if (!decoder) {
                                emit(fmt::format("{}{}", text.empty() ? "" : ",", token));
                              } else if (auto piece = decoder->Push(token)) {
                                emit(*piece);
                              }
                              return std::ferror(stdout) == 0;  // nobody reads any more
                            }));
  if (decoder) emit(decoder->Finish());
  if (options.json) {
    PrintJson(*engine, prompt, result, text);
  } else {
    Put("\n");
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
  const auto sources = std::make_shared<PromptSources>();
  CLI::App* command = AddCommand(app, cli, "run", "Continue a prompt, greedy unless told otherwise",
                                 "megalith run\n"
                                 "megalith run -p \"And the king said unto\" -n 40\n"
                                 "megalith run /models/Kimi-K3 --prompt-file question.txt -n 200 "
                                 "--temperature 1 --top-p 0.95\n"
                                 "megalith run --draft ngram --prompt-file code.py -n 300\n"
                                 "megalith run --ids 3840,3077,259 -n 16 --json",
                                 [options, sources, &cli] { return Run(*options, *sources, cli); });
  AddModelArgument(*command, options->model);
  AddLoadOptions(*command, options->load);
  AddPrefillOption(*command, options->load.prefill);
  CLI::Option_group* prompt = command->add_option_group("prompt");
  sources->text =
      prompt->add_option("-p,--prompt", options->prompt, "Text to continue")->type_name("TEXT");
  sources->file =
      prompt->add_option("--prompt-file", options->prompt_file, "File with the text; - is stdin")
          ->type_name("F");
  CLI::Option* ids =
      prompt->add_option("--ids", options->ids, "Token ids, separated by commas or spaces")
          ->type_name("IDS");
  sources->ids = ids;
  prompt->require_option(0, 1);
  command->add_option("-n,--max-tokens", options->max_tokens, "Most tokens to generate")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
      ->capture_default_str();
  AddSamplingOptions(*command, options->sampling);
  AddDraftOptions(*command, options->draft);
  command
      ->add_option("--rows-per-step", options->rows_per_step,
                   "Prompt tokens per step; does not change the result")
      ->type_name("N")
      ->check(CLI::Range(1, program::kMaxRowBucket))
      ->capture_default_str();
  command->add_flag("--bos", options->bos, "Put the model's [BOS] token before the text")
      ->excludes(ids);
  command->add_flag("--ignore-eos", options->ignore_eos, "Do not stop at end tokens");
  command->add_flag("--json", options->json, "One JSON object instead of text");
}

}  // namespace megalith::apps
