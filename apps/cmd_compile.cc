// megalith compile: the Program of a model and machine, from config.json alone.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/topology.h"
#include "base/units.h"
#include "cli.h"
#include "commands.h"
#include "compile_ranks.h"
#include "console.h"
#include "default_model.h"
#include "engine/engine.h"
#include "loading.h"
#include "model/config.h"
#include "model/dspark.h"
#include "program/compile/compile.h"
#include "program/compile/layout_choice.h"
#include "program/dump.h"
#include "program/verifier.h"

namespace megalith::apps {
namespace {

struct Options {
  std::string model;
  std::int32_t rows = 1;
  std::int64_t context = 0;
  std::string dense = "bf16";
  std::string prefill = "exact";
  std::string draft;
  RankOptions ranks;
  double rank_bandwidth = 200.0;   // GB/s
  double worker_bandwidth = 20.0;  // GB/s
  double exchange_us = 5.0;
  double link_bandwidth = 10.0;  // GB/s
  std::vector<const CLI::Option*> of_estimate;
  bool dump = false;
  bool json = false;
};

struct Figures {
  double compile_ms = 0.0;
  double verify_ms = 0.0;
  std::int64_t tiles = 0;
  std::int64_t active_experts = 0;
  program::StepBytes bytes;
  std::int64_t most_worker_bytes = 0;
  std::int64_t mean_worker_bytes = 0;
};

Figures Measure(const program::Program& program, const model::Model& model, std::int32_t rows) {
  Figures figures;
  if (model.moe.num_experts > 0) {
    figures.active_experts = std::llround(
        program::ExpectedExperts(model.moe.num_experts, model.moe.num_experts_per_token, rows));
  }
  figures.bytes = program::CountStepBytes(program, rows, figures.active_experts);
  for (const program::Segment& segment : program.segments) {
    for (const program::Stream& stream : segment.streams) {
      figures.tiles += static_cast<std::int64_t>(stream.tiles.size());
    }
  }
  for (const std::int64_t bytes : program.weight_arena_bytes) {
    figures.most_worker_bytes = std::max(figures.most_worker_bytes, bytes);
    figures.mean_worker_bytes += bytes / program.num_workers;
  }
  return figures;
}

void PrintText(const program::VerifiedProgram& program, const Figures& figures) {
  const program::StepBytes& bytes = figures.bytes;
  Put("program {}\n", program.hash());
  Put("  {} workers, {} rows, {} segments, {} visits\n", program->num_workers, program->max_rows,
      program->segments.size(), program->visits.size());
  Put("  {} instructions, {} counters, {} weight tiles\n", program::CountInstructions(*program),
      program->counters.size(), figures.tiles);
  Put("  reads {} bytes a step without padding: dense {}, {} experts a layer {}, vectors {}, "
      "embedding {}\n",
      bytes.Source(), bytes.dense_source, figures.active_experts, bytes.expert_source,
      bytes.vector_source, bytes.embedding_source);
  Put("  packed layout {:+} bytes ({:+.4f} %)\n", bytes.packed - bytes.Source(),
      100.0 * static_cast<double>(bytes.packed - bytes.Source()) /
          static_cast<double>(bytes.Source()));
  Put("  packed weights {} a worker, fullest {}\n",
      FormatBytes(static_cast<std::uint64_t>(figures.mean_worker_bytes)),
      FormatBytes(static_cast<std::uint64_t>(figures.most_worker_bytes)));
  if (program->draft.max_runs > 0) {
    Put("  verifies up to {} drafts, proposes {} with a block of {} slots\n",
        program->state.states_per_slot - 1, program->draft.num_drafts, program->draft.block_rows);
  }
  Put("  activations {}\n",
      FormatBytes(static_cast<std::uint64_t>(program->activation_arena_bytes)));
  Put("  compiled in {:.1f} ms, verified in {:.1f} ms\n", figures.compile_ms, figures.verify_ms);
}

void PrintJson(const program::VerifiedProgram& program, const Figures& figures) {
  const program::StepBytes& bytes = figures.bytes;
  const nlohmann::ordered_json json = {{"hash", program.hash()},
                                       {"workers", program->num_workers},
                                       {"rows", program->max_rows},
                                       {"segments", program->segments.size()},
                                       {"visits", program->visits.size()},
                                       {"instructions", program::CountInstructions(*program)},
                                       {"counters", program->counters.size()},
                                       {"tiles", figures.tiles},
                                       {"bytes",
                                        {{"per_step", bytes.Source()},
                                         {"dense", bytes.dense_source},
                                         {"experts", bytes.expert_source},
                                         {"active_experts_per_layer", figures.active_experts},
                                         {"vectors", bytes.vector_source},
                                         {"embedding", bytes.embedding_source},
                                         {"packed", bytes.packed},
                                         {"layout_overhead", bytes.packed - bytes.Source()},
                                         {"largest_worker_arena", figures.most_worker_bytes},
                                         {"activations", program->activation_arena_bytes}}},
                                       {"proposed_drafts", program->draft.num_drafts},
                                       {"compile_ms", figures.compile_ms},
                                       {"verify_ms", figures.verify_ms}};
  Put("{}\n", json.dump(2));
}

Status Compile(const Options& options, const Cli& cli) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string path, ResolveConfig(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ReadConfig(path));
  const std::int64_t longest = config.model.max_position_embeddings;
  const std::int64_t context =
      options.context > 0 ? options.context : std::min(longest, engine::kDefaultPositions);
  if (context > longest) {
    return Fail(ErrorCode::kOutOfRange, "--context: at most {} for this model, {} given", longest,
                context);
  }
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
  program::CompileOptions compile =
      engine::CompileOptionsFor(topology, cli.common.workers, static_cast<std::int32_t>(context));
  if (!config.model.declares_mxfp4_experts) {
    compile.weight_format = [](std::string_view) { return program::WeightFormat::kBf16; };
  }
  MEGALITH_ASSIGN_OR_RETURN(compile.dense, program::ParseDenseFormats(options.dense));
  compile.fast_prefill = options.prefill == "fast";
  compile.max_rows = options.rows;
  model::DrafterConfig drafter;
  if (!options.draft.empty()) {
    if (options.rows > program::kMaxDrafts + 1) {
      return Fail(
          ErrorCode::kUsage,
          "--rows: with --draft at most {} expected, a step's token and {} drafts; {} given",
          program::kMaxDrafts + 1, program::kMaxDrafts, options.rows);
    }
    auto read = model::ReadDrafterConfig(options.draft, config.model);
    if (!read) return Fail(read.error().code, "--draft: {}", read.error().message);
    drafter = std::move(*read);
    compile.drafter = &drafter.drafter;
    compile.draft_runs = 1;
    compile.max_drafts = options.rows - 1;
    compile.max_logit_rows = compile.max_drafts + 1;
    compile.num_drafts = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(compile.max_drafts, 1, drafter.drafter.MaxDrafts()));
  }
  if (options.ranks.AreGiven()) {
    if (options.dump) {
      return Fail(ErrorCode::kUsage, "--dump: of one rank only, not with --ranks, --tp or --ep");
    }
    RankOptions ranks = options.ranks;
    ranks.machine = {options.rank_bandwidth * 1e9, options.worker_bandwidth * 1e9,
                     options.exchange_us * 1e-6, options.link_bandwidth * 1e9};
    return CompileRanks(config.model, compile, ranks, options.json);
  }
  for (const CLI::Option* option : options.of_estimate) {
    if (option->count() == 0) continue;
    return Fail(ErrorCode::kUsage,
                "{}: of the estimate for several ranks; --ranks, --tp or --ep expected",
                option->get_name());
  }
  const std::int64_t start = NowNs();
  MEGALITH_ASSIGN_OR_RETURN(program::Program program, program::Compile(config.model, compile));
  const std::int64_t compiled = NowNs();
  MEGALITH_ASSIGN_OR_RETURN(const program::VerifiedProgram verified,
                            program::Verify(std::move(program)));
  const std::int64_t proved = NowNs();
  MEGALITH_RETURN_IF_ERROR(CheckCancelled(cli.cancel, "compile"));

  Figures figures = Measure(*verified, config.model, options.rows);
  figures.compile_ms = static_cast<double>(compiled - start) * 1e-6;
  figures.verify_ms = static_cast<double>(proved - compiled) * 1e-6;
  if (options.dump) {
    Put("{}\n", options.json ? program::DumpJson(*verified) : program::DumpText(*verified));
  } else if (options.json) {
    PrintJson(verified, figures);
  } else {
    PrintText(verified, figures);
  }
  return {};
}

}  // namespace

void RegisterCompile(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, cli, "compile", "Compile and prove the Program of a model, from config.json",
                 "megalith compile models/k3-nano\n"
                 "megalith compile Kimi-K3/config.json --workers 64 --rows 8 --json\n"
                 "megalith compile models/k3-nano --workers 2 --dump\n"
                 "megalith compile models/k3-nano --draft models/k3-nano/dspark --rows 8\n"
                 "megalith compile Kimi-K3/config.json --workers 64 --ranks 16\n"
                 "megalith compile Kimi-K3/config.json --workers 64 --tp 4 --ep 8",
                 [options, &cli] { return Compile(*options, cli); });
  AddModelArgument(*command, options->model);
  command->add_option("--rows", options->rows, "Rows (tokens) a step may hold")
      ->type_name("N")
      ->check(CLI::Range(1, program::kMaxRowBucket))
      ->capture_default_str();
  command
      ->add_option("--context", options->context,
                   "Longest sequence; default: 4096 or what the model allows, as in run")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  AddDenseOption(*command, options->dense);
  AddPrefillOption(*command, options->prefill);
  command
      ->add_option("--draft", options->draft,
                   "Folder or config.json of a drafter: the step of one sequence that verifies "
                   "ROWS - 1 drafts and proposes as many, at least 1, at most the drafter's block")
      ->type_name("DIR");
  command
      ->add_option("--ranks", options->ranks.request.num_ranks,
                   "Ranks that share the model; without --tp and --ep in the fastest layout by "
                   "estimate, whose reasons are printed")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--tp", options->ranks.request.tensor_parallel,
                   "Ranks that split every expert (tensor parallel)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--ep", options->ranks.request.expert_parallel,
                   "Groups of ranks that experts are dealt out to (expert parallel)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  const auto add_of_estimate = [&](const char* name, double& value, const char* unit, double least,
                                   const std::string& what) {
    options->of_estimate.push_back(command->add_option(name, value, "For the estimate: " + what)
                                       ->type_name(unit)
                                       ->check(CLI::Range(least, 1e6))
                                       ->capture_default_str());
  };
  add_of_estimate("--rank-bandwidth", options->rank_bandwidth, "GB/s", 1e-3,
                  "GB/s of weights that one rank reads");
  add_of_estimate("--worker-bandwidth", options->worker_bandwidth, "GB/s", 1e-3,
                  "the most GB/s that one worker reads");
  add_of_estimate("--exchange-us", options->exchange_us, "US", 0.0,
                  "microseconds of an empty exchange");
  add_of_estimate("--link-bandwidth", options->link_bandwidth, "GB/s", 1e-3,
                  "GB/s that one rank receives");
  command->add_flag("--dump", options->dump, "Print every instruction (as JSON with --json)");
  command->add_flag("--json", options->json, "One JSON object instead of text");
}

}  // namespace megalith::apps
