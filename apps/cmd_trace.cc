// megalith trace: where the time of a step goes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cli.h"
#include "commands.h"
#include "console.h"
#include "default_model.h"
#include "exec/cpu/engine.h"
#include "exec/device_memory.h"
#include "loading.h"
#include "model/config.h"
#include "output_file.h"
#include "text/tokenizer.h"
#include "trace/perfetto.h"
#include "trace/report.h"
#include "trace/svg.h"

namespace megalith::apps {
namespace {

/// Steps run before those that are traced, so that caches and clocks have settled.
constexpr std::int32_t kWarmUpSteps = 3;
/// Of the tokens nobody chose.
constexpr std::uint32_t kTokenSeed = 20260731;

struct TraceOptions {
  std::string model;
  LoadOptions load;
  std::string prompt;
  std::string tokens;
  std::int32_t steps = 20;
  std::int32_t rows = 1;
  std::int32_t prefill = 0;
  std::int32_t context = 16;
  std::int32_t rows_per_step = engine::EngineOptions().rows_per_step;
  std::string mode = "program";
  std::string perfetto;
  std::string svg;
  bool all_steps = false;
  bool json = false;

  const CLI::Option* prompt_option = nullptr;
  const CLI::Option* tokens_option = nullptr;
  bool HasPrompt() const { return prompt_option->count() + tokens_option->count() > 0; }
};

/// Tokens spread over the vocabulary, so that rows choose different experts.
class TokenSource {
 public:
  explicit TokenSource(std::int64_t vocab_size) : vocab_size_(vocab_size) {}
  std::int32_t Next() {
    return static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(vocab_size_));
  }
  std::vector<std::int32_t> Take(std::int32_t count) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    std::generate(tokens.begin(), tokens.end(), [this] { return Next(); });
    return tokens;
  }

 private:
  std::mt19937 random_{kTokenSeed};
  std::int64_t vocab_size_;
};

/// Runs steps and keeps what the executor recorded of those that count.
class Recorder {
 public:
  Recorder(exec::Executor& executor, const CancelFlag* cancel)
      : executor_(executor), cancel_(cancel) {
    executor.TraceEveryStep();
    const exec::DeviceMemory& memory = executor.memory();
    for (std::size_t i = 0; i < memory.num_programs(); ++i) {
      const program::Program& program = *memory.program(i);
      for (std::int32_t worker = 0; worker < program.num_workers; ++worker) {
        longest_step_ = std::max(longest_step_, InstructionsInStep(program, worker));
      }
    }
  }

  /// One step; `counts`: it is to be reported.
  Result<exec::StepOutput> Step(const exec::StepInput& input, bool counts) {
    MEGALITH_RETURN_IF_ERROR(CheckCancelled(cancel_, "trace"));
    // Reading disturbs the next step, so it is done only when the rings are about to overflow.
    if ((unread_ + 1) * longest_step_ > exec::kDefaultTraceRecords) Read();
    MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput logits, executor_.Step(input));
    ++unread_;
    counts_.push_back(counts);
    return logits;
  }

  std::vector<program::TraceStep> Take() {
    Read();
    return std::move(steps_);
  }

 private:
  static std::size_t InstructionsInStep(const program::Program& program, std::int32_t worker) {
    std::size_t count = 0;
    for (const program::Visit& visit : program.visits) {
      const program::Segment& segment = program.segments[visit.segment];
      count += segment.streams[static_cast<std::size_t>(worker)].instructions.size();
    }
    return count;
  }

  /// The engine has run steps of its own before (the check at load): ours are its latest.
  void Read() {
    program::Trace trace = executor_.ReadTrace();
    const std::size_t kept = std::min(unread_, trace.steps.size());
    for (std::size_t i = 0; i < kept; ++i) {
      if (!counts_[counts_.size() - kept + i]) continue;
      steps_.push_back(std::move(trace.steps[trace.steps.size() - kept + i]));
    }
    unread_ = 0;
  }

  exec::Executor& executor_;
  const CancelFlag* cancel_;
  std::size_t longest_step_ = 1;
  std::size_t unread_ = 0;
  std::vector<bool> counts_;  // of every step so far
  std::vector<program::TraceStep> steps_;
};

Result<std::vector<std::int32_t>> ReadPrompt(const TraceOptions& options,
                                             const std::string& directory,
                                             const model::Model& model) {
  std::vector<std::int32_t> ids;
  if (options.tokens_option->count() > 0) {
    MEGALITH_ASSIGN_OR_RETURN(ids, ParseIds(options.tokens));
  } else {
    MEGALITH_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer,
                              text::Tokenizer::Load(directory, model.vocab_size));
    MEGALITH_ASSIGN_OR_RETURN(ids, tokenizer.Encode(options.prompt));
  }
  if (ids.empty()) return Fail(ErrorCode::kUsage, "trace: at least one token of prompt expected");
  MEGALITH_RETURN_IF_ERROR(CheckIds(ids, model.vocab_size));
  return ids;
}

/// Runs `tokens` into a slot in steps of at most `rows` rows; logits of the last token.
Result<exec::StepOutput> Feed(Recorder& recorder, std::int32_t slot,
                              const std::vector<std::int32_t>& tokens, std::int32_t rows,
                              bool counts) {
  exec::StepOutput logits;
  const auto total = static_cast<std::int32_t>(tokens.size());
  for (std::int32_t done = 0; done < total; done += rows) {
    const std::int32_t count = std::min(rows, total - done);
    const exec::Run run{slot, done, count};
    const std::int32_t last = count - 1;
    const bool is_last = done + count == total;
    const std::span<const std::int32_t> step_tokens(tokens.data() + done,
                                                    static_cast<std::size_t>(count));
    MEGALITH_ASSIGN_OR_RETURN(
        logits, recorder.Step({{&run, 1}, step_tokens, {&last, is_last ? 1U : 0U}}, counts));
  }
  return logits;
}

std::int32_t ArgMax(std::span<const float> values) {
  return static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

/// Decoding: `rows` sequences, one token of each a step. With a prompt they follow the model's
/// first choice, without one random tokens.
Status RunDecode(Recorder& recorder, const TraceOptions& options,
                 const std::vector<std::int32_t>& prompt, TokenSource& source) {
  std::vector<exec::Run> runs;
  std::vector<std::int32_t> tokens;
  for (std::int32_t row = 0; row < options.rows; ++row) {
    const std::vector<std::int32_t> start =
        options.HasPrompt() ? prompt : source.Take(options.context);
    MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput logits,
                              Feed(recorder, row, start, options.rows_per_step, false));
    tokens.push_back(options.HasPrompt() ? ArgMax(logits.Row(0)) : source.Next());
    runs.push_back({row, static_cast<std::int32_t>(start.size()), 1});
  }
  std::vector<std::int32_t> logit_rows(runs.size());
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  for (std::int32_t step = 0; step < kWarmUpSteps + options.steps; ++step) {
    MEGALITH_ASSIGN_OR_RETURN(const exec::StepOutput logits,
                              recorder.Step({runs, tokens, logit_rows}, step >= kWarmUpSteps));
    for (std::size_t row = 0; row < runs.size(); ++row) {
      tokens[row] =
          options.HasPrompt() ? ArgMax(logits.Row(static_cast<std::int64_t>(row))) : source.Next();
      ++runs[row].first_position;
    }
  }
  return {};
}

/// A prompt, after one step of it to warm up.
Status RunPrefill(Recorder& recorder, exec::Executor& executor, const TraceOptions& options,
                  const std::vector<std::int32_t>& prompt) {
  const std::vector<std::int32_t> warm_up(
      prompt.begin(),
      prompt.begin() + std::min<std::ptrdiff_t>(std::ssize(prompt), options.rows_per_step));
  MEGALITH_RETURN_IF_ERROR(Feed(recorder, 0, warm_up, options.rows_per_step, false));
  MEGALITH_RETURN_IF_ERROR(executor.ReleaseSlot(0));
  MEGALITH_RETURN_IF_ERROR(Feed(recorder, 0, prompt, options.rows_per_step, true));
  return {};
}

/// Steps of one Program (row bucket), joined with it.
struct Bucket {
  std::unique_ptr<trace::TraceReader> reader;
  std::vector<trace::Timeline> timelines;
};

/// By row bucket, smallest first; those without steps are left out.
Result<std::vector<Bucket>> ReadBuckets(const exec::DeviceMemory& memory,
                                        const std::vector<program::TraceStep>& steps) {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < memory.num_programs(); ++i) {
    Bucket bucket{std::make_unique<trace::TraceReader>(*memory.program(i)), {}};
    for (const program::TraceStep& step : steps) {
      if (static_cast<std::size_t>(step.info.program) != i) continue;
      MEGALITH_ASSIGN_OR_RETURN(trace::Timeline timeline, bucket.reader->Read(step));
      bucket.timelines.push_back(std::move(timeline));
    }
    if (!bucket.timelines.empty()) buckets.push_back(std::move(bucket));
  }
  return buckets;
}

Result<std::optional<OutputFile>> CreateIfNamed(const std::string& path) {
  std::optional<OutputFile> file;
  if (path.empty()) return file;
  MEGALITH_ASSIGN_OR_RETURN(OutputFile created, OutputFile::Create(path));
  file.emplace(std::move(created));
  return file;
}

Status WriteFiles(const std::vector<Bucket>& buckets, std::optional<OutputFile>& perfetto,
                  std::optional<OutputFile>& svg) {
  if (perfetto) {
    std::vector<trace::TracedSteps> all;
    for (const Bucket& bucket : buckets) all.push_back({bucket.reader.get(), bucket.timelines});
    MEGALITH_RETURN_IF_ERROR(perfetto->Commit(trace::PerfettoJson(all)));
  }
  if (svg) {
    // Of the largest bucket: the one that a prompt spends its time in.
    const Bucket& bucket = buckets.back();
    const trace::Timeline& step = bucket.timelines[trace::MedianStep(bucket.timelines)];
    MEGALITH_RETURN_IF_ERROR(svg->Commit(trace::TimelineSvg(*bucket.reader, step)));
  }
  return {};
}

/// A step that took so many times the median was held up by another process: its numbers say
/// nothing about this one.
constexpr double kDisturbed = 1.5;

/// Takes them out of a bucket of steps that do the same; returns how many.
std::size_t LeaveOutDisturbed(Bucket& bucket) {
  const auto median =
      static_cast<double>(bucket.timelines[trace::MedianStep(bucket.timelines)].duration);
  return std::erase_if(bucket.timelines, [&](const trace::Timeline& timeline) {
    return static_cast<double>(timeline.duration) > kDisturbed * median;
  });
}

void PrintReports(const std::vector<Bucket>& buckets, const engine::Engine& engine, bool json) {
  if (json) Put("[");
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    const trace::Summary summary = trace::Summarize(*bucket.reader, bucket.timelines);
    if (json) {
      Put("{}{}", i == 0 ? "" : ",\n", trace::ReportJson(summary));
      continue;
    }
    Put("{}{}, {} workers, {} rows a step, {} positions\n", i == 0 ? "" : "\n", engine.isa_name(),
        engine.num_workers(), bucket.timelines.front().rows, bucket.timelines.front().context_rows);
    Put("{}", trace::ReportText(summary));
  }
  if (json) Put("]\n");
}

/// The same model with a barrier after every op and nothing fetched across ops: for comparison.
Result<engine::Variant> MakePerOp(const engine::Engine& engine, const TraceOptions& options,
                                  const engine::EngineOptions& load) {
  engine::VariantOptions variant;
  const std::int32_t largest = program::RowBucket(load.rows_per_step);
  if (largest > 1) variant.row_buckets.push_back(largest);
  variant.logit_rows = options.rows;
  variant.num_sequences = options.rows;
  variant.max_positions = load.max_positions;
  variant.barrier_after_each_op = true;
  variant.prefetch = false;
  return engine.MakeVariant(variant);
}

Status Trace(const TraceOptions& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ReadConfig(directory));
  std::vector<std::int32_t> prompt;
  TokenSource source(config.model.vocab_size);
  if (options.HasPrompt()) {
    MEGALITH_ASSIGN_OR_RETURN(prompt, ReadPrompt(options, directory, config.model));
  } else if (options.prefill > 0) {
    prompt = source.Take(options.prefill);
  }
  const std::int64_t start = options.prefill > 0 || options.HasPrompt()
                                 ? static_cast<std::int64_t>(prompt.size())
                                 : options.context;
  const std::int64_t positions = options.prefill > 0 ? start : start + kWarmUpSteps + options.steps;
  if (positions > config.model.max_position_embeddings) {
    return Fail(ErrorCode::kOutOfRange, "trace: {} positions needed, the model's context is {}",
                positions, config.model.max_position_embeddings);
  }
  MEGALITH_ASSIGN_OR_RETURN(std::optional<OutputFile> perfetto, CreateIfNamed(options.perfetto));
  MEGALITH_ASSIGN_OR_RETURN(std::optional<OutputFile> svg, CreateIfNamed(options.svg));

  engine::EngineOptions load;
  load.num_sequences = options.rows;
  load.rows_per_step = std::max(options.rows, options.rows_per_step);
  load.logit_rows_per_step = options.rows;
  load.max_positions = static_cast<std::int32_t>(positions);
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                            LoadEngine(directory, cli, options.load, load));
  engine::Variant per_op;
  if (options.mode == "per-op") {
    MEGALITH_ASSIGN_OR_RETURN(per_op, MakePerOp(*engine, options, load));
  }
  exec::Executor& executor = per_op.executor ? *per_op.executor : engine->executor();
  Recorder recorder(executor, cli.cancel);
  MEGALITH_RETURN_IF_ERROR(options.prefill > 0 ? RunPrefill(recorder, executor, options, prompt)
                                               : RunDecode(recorder, options, prompt, source));
  MEGALITH_ASSIGN_OR_RETURN(std::vector<Bucket> buckets,
                            ReadBuckets(executor.memory(), recorder.Take()));
  if (buckets.empty()) return Fail(ErrorCode::kInternal, "trace: no step was recorded");
  MEGALITH_RETURN_IF_ERROR(WriteFiles(buckets, perfetto, svg));
  // The steps of a prompt differ by nature.
  const std::size_t left_out =
      options.prefill > 0 || options.all_steps ? 0 : LeaveOutDisturbed(buckets.front());
  if (left_out > 0 && !cli.common.quiet) {
    Note("{} of {} steps left out of the figures: longer than {} times the median, so disturbed\n",
         left_out, left_out + buckets.front().timelines.size(), kDisturbed);
  }
  PrintReports(buckets, *engine, options.json);
  return {};
}

}  // namespace

void RegisterTrace(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<TraceOptions>();
  CLI::App* command =
      AddCommand(app, cli, "trace", "Run some steps and show where their time goes",
                 "megalith trace models/k3-nano\n"
                 "megalith trace models/k3-nano --svg step.svg --perfetto steps.json\n"
                 "megalith trace models/k3-nano --rows 8 --context 256 --json\n"
                 "megalith trace models/k3-nano --prefill 512",
                 [options, &cli] { return Trace(*options, cli); });
  AddModelArgument(*command, options->model);
  AddLoadOptions(*command, options->load);
  CLI::Option* text = command->add_option("-p,--prompt", options->prompt,
                                          "Text to continue; default: random tokens throughout");
  CLI::Option* tokens = command->add_option("--tokens", options->tokens,
                                            "Token ids to continue, separated by commas");
  text->excludes(tokens);
  options->prompt_option = text;
  options->tokens_option = tokens;
  command->add_option("--steps", options->steps, "Steps to decode and trace")
      ->type_name("N")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--rows", options->rows, "Sequences decoded together, one row of each a step")
      ->type_name("N")
      ->check(CLI::Range(1, program::kMaxRowBucket))
      ->capture_default_str();
  command->add_option("--context", options->context, "Random tokens before the first step traced")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->excludes(text)
      ->excludes(tokens);
  command
      ->add_option("--prefill", options->prefill,
                   "Trace the steps of a prompt of N random tokens instead of decoding")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24))
      ->excludes("--steps")
      ->excludes("--rows")
      ->excludes("--context")
      ->excludes(text)
      ->excludes(tokens);
  command
      ->add_option("--rows-per-step", options->rows_per_step,
                   "Prompts are cut into steps of at most so many tokens")
      ->type_name("N")
      ->check(CLI::Range(1, program::kMaxRowBucket))
      ->capture_default_str();
  command
      ->add_option("--mode", options->mode,
                   "program, or per-op: the same kernels with a barrier after every op and nothing "
                   "fetched ahead")
      ->check(CLI::IsMember({"program", "per-op"}))
      ->capture_default_str();
  command
      ->add_option("--perfetto", options->perfetto,
                   "Write all traced steps as Chrome trace JSON, for ui.perfetto.dev; - is stdout")
      ->type_name("FILE");
  command
      ->add_option("--svg", options->svg,
                   "Write a drawing of the step of median duration; - is stdout")
      ->type_name("FILE");
  command->add_flag("--all-steps", options->all_steps,
                    "Count also steps longer than 1.5 times the median, which other processes have "
                    "held up");
  command->add_flag("--json", options->json, "Figures as JSON: one object for each row bucket");
}

}  // namespace megalith::apps
