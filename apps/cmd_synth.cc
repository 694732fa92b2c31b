// megalith synth: a random checkpoint of any size in the real file format.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/topology.h"
#include "base/units.h"
#include "cli.h"
#include "commands.h"
#include "console.h"
#include "model/config.h"
#include "model/drafter.h"
#include "progress_bar.h"
#include "synth/config_edit.h"
#include "synth/drafter.h"
#include "synth/plan.h"
#include "synth/presets.h"
#include "synth/write.h"

namespace megalith::apps {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;

struct Options {
  std::string out;
  std::string preset = "k3-tiny";
  std::string config;
  synth::ConfigEdits edits;
  std::uint64_t seed = 0;
  std::uint64_t shard_bytes = 0;
  bool drafter = false;
  std::string markov_head;  ///< empty: as --draft-set says, or vanilla
  std::vector<std::string> drafter_edits;
  bool replace = false;
  bool json = false;
};

/// The config.json to make a checkpoint of.
Result<std::string> MakeConfig(const Options& options) {
  if (options.config.empty()) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string preset, synth::PresetConfig(options.preset));
    return synth::EditConfig(preset, fmt::format("preset {}", options.preset), options.edits);
  }
  // Refused here with the file's own words, before anything is edited.
  MEGALITH_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.config, kMaxConfigBytes));
  MEGALITH_RETURN_IF_ERROR(model::ParseConfig(text, options.config));
  return synth::EditConfig(text, options.config, options.edits);
}

/// The drafter's plan, if one is wanted.
Result<std::optional<synth::CheckpointPlan>> PlanDrafter(const Options& options,
                                                         const std::string& model_config,
                                                         const synth::PlanOptions& plan_options) {
  if (!options.drafter) return std::nullopt;
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ParseConfig(model_config));
  std::vector<std::string> edits = options.drafter_edits;
  if (!options.markov_head.empty()) {
    edits.push_back(fmt::format("markov_head_type=\"{}\"", options.markov_head));
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::string drafter,
                            synth::MakeDrafterConfig(config.model, edits));
  MEGALITH_ASSIGN_OR_RETURN(synth::CheckpointPlan plan,
                            synth::PlanDrafter(drafter, config.model, plan_options));
  // The planned config is known to be sound.
  if (!options.markov_head.empty() && nlohmann::json::parse(drafter).at("markov_rank") == 0) {
    return Fail(ErrorCode::kUsage,
                "--markov-head {}: a drafter with markov_rank 0 has no Markov head",
                options.markov_head);
  }
  return plan;
}

nlohmann::ordered_json PlanJson(const synth::CheckpointPlan& plan) {
  return {{"shards", plan.shards.size()},
          {"tensors", plan.num_tensors},
          {"parameters", plan.num_parameters},
          {"tensor_bytes", plan.tensor_bytes},
          {"file_bytes", plan.file_bytes}};
}

/// "64 tensors, 4744900481 parameters, 9.5 GB in 1 shard"
std::string PlanText(const synth::CheckpointPlan& plan) {
  return fmt::format("{} tensors, {} parameters, {} in {} shard{}", plan.num_tensors,
                     plan.num_parameters, FormatBytes(plan.file_bytes), plan.shards.size(),
                     plan.shards.size() == 1 ? "" : "s");
}

/// Edits that cannot be are wrong use, whoever finds that out; a broken file is not.
Status AsUsage(const Options& options, Error error) {
  const bool from_file = !options.config.empty() && !model::ReadConfig(options.config);
  if (!from_file && error.code == ErrorCode::kBadConfig) error.code = ErrorCode::kUsage;
  return tl::unexpected(std::move(error));
}

Status Synth(const Options& options, const Cli& cli) {
  const auto config = MakeConfig(options);
  if (!config) return AsUsage(options, config.error());
  synth::PlanOptions plan_options;
  plan_options.seed = options.seed;
  plan_options.shard_bytes = options.shard_bytes;
  MEGALITH_ASSIGN_OR_RETURN(const synth::CheckpointPlan plan,
                            synth::PlanCheckpoint(*config, plan_options));
  MEGALITH_ASSIGN_OR_RETURN(const std::optional<synth::CheckpointPlan> drafter,
                            PlanDrafter(options, *config, plan_options));

  synth::WriteOptions write;
  write.num_threads = cli.common.workers;
  if (write.num_threads == 0) {
    MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
    write.num_threads = DefaultWorkers(topology);
  }
  write.replace = options.replace;
  write.cancel = cli.cancel;
  const std::int64_t start = NowNs();
  {
    ProgressBar bar(cli.common.quiet);
    write.progress = bar.Callback();
    MEGALITH_RETURN_IF_ERROR(
        synth::WriteCheckpoint(plan, options.out, write, drafter ? &*drafter : nullptr));
  }
  const double seconds = SecondsSince(start);
  const std::uint64_t file_bytes = plan.file_bytes + (drafter ? drafter->file_bytes : 0);
  const double rate = static_cast<double>(file_bytes) / seconds;
  if (options.json) {
    nlohmann::ordered_json json = {
        {"path", options.out},
        {"source", options.config.empty() ? options.preset : options.config},
        {"seed", options.seed}};
    json.update(PlanJson(plan));
    if (drafter) json["drafter"] = PlanJson(*drafter);
    json["seconds"] = seconds;
    json["bytes_per_second"] = rate;
    Put("{}\n", json.dump());
  } else {
    Put("{}: {}, seed {}\n", options.out, PlanText(plan), options.seed);
    if (drafter) Put("drafter in {}/dspark: {}\n", options.out, PlanText(*drafter));
    Note("written in {:.1f} s, {:.2f} GB/s with the flush to the disk\n", seconds, rate * 1e-9);
  }
  return {};
}

void AddEdits(CLI::App& command, synth::ConfigEdits& edits) {
  for (const synth::EditableNumber& number : synth::EditableNumbers()) {
    command
        .add_option(fmt::format("--{}", number.option), edits.*number.member,
                    fmt::format("{} ({})", number.description, number.keys))
        ->type_name("N")
        ->group("Numbers to replace");
  }
  command
      .add_option("--layer-kinds", edits.layer_kinds,
                  "A letter for each layer, K (KDA) or M (MLA); sets their number too")
      ->type_name("LETTERS")
      ->group("Numbers to replace");
  command
      .add_option("--set", edits.assignments,
                  "Any other key of text_config and its JSON value, e.g. "
                  "linear_attn_config.use_full_rank_gate=false; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all()
      ->group("Numbers to replace");
}

}  // namespace

void RegisterSynth(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      app, cli, "synth",
      "Write a random checkpoint of a preset or config, in the real file format: what needs a "
      "model of some size, not its words",
      "megalith synth /tmp/slice --preset k3-slice\n"
      "megalith synth /tmp/wide --preset k3-mini --experts 256 --experts-per-token 8 --seed 7\n"
      "megalith synth /tmp/short --config Kimi-K3/config.json --layers 4 --drafter",
      [options, &cli] { return Synth(*options, cli); });
  command->add_option("OUT", options->out, "Folder to write")->type_name("")->required();
  std::string presets = "What to make: ";
  std::vector<std::string> names;
  for (const synth::Preset& preset : synth::Presets()) {
    presets += fmt::format("{}{} ({})", names.empty() ? "" : "; ", preset.name, preset.description);
    names.emplace_back(preset.name);
  }
  CLI::Option* preset = command->add_option("--preset", options->preset, presets)
                            ->type_name("NAME")
                            ->check(CLI::IsMember(names))
                            ->capture_default_str();
  command->add_option("--config", options->config, "A config.json to make a checkpoint of")
      ->type_name("FILE")
      ->excludes(preset);
  command
      ->add_option("--seed", options->seed,
                   "Other seeds give other weights; the same one the same bytes")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--shard-size", options->shard_bytes,
                   "Bytes of a shard (also 500MB, 2GiB); default: one shard a layer")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  CLI::Option* drafter = command->add_flag(
      "--drafter", options->drafter, "Also write a random DSpark drafter for it into OUT/dspark");
  std::vector<std::string> markov_heads;
  for (const model::MarkovHead head :
       {model::MarkovHead::kVanilla, model::MarkovHead::kGated, model::MarkovHead::kRnn}) {
    markov_heads.emplace_back(model::MarkovHeadName(head));
  }
  command
      ->add_option("--markov-head", options->markov_head,
                   "How the drafter's tokens depend on those before them (markov_head_type)")
      ->type_name("NAME")
      ->check(CLI::IsMember(markov_heads))
      ->needs(drafter);
  command
      ->add_option("--draft-set", options->drafter_edits,
                   "A key of the drafter's config.json and its JSON value, e.g. block_size=4 or "
                   "num_hidden_layers=2; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all()
      ->needs(drafter);
  command->add_flag(
      "--force", options->replace,
      "Replace the checkpoint that OUT holds, and its drafter; other files in it stay");
  command->add_flag("--json", options->json, "One JSON object instead of text");
  AddEdits(*command, options->edits);
}

}  // namespace megalith::apps
