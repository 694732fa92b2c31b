// megalith inspect: what a checkpoint is and costs, from headers only.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli.h"
#include "commands.h"
#include "console.h"
#include "default_model.h"
#include "drafting.h"
#include "weights/inspect.h"

namespace megalith::apps {
namespace {

struct Options {
  std::string model;
  std::int64_t context = 0;
  std::int64_t sequences = 1;
  DraftChoice draft;
  bool json = false;
};

Status Inspect(const Options& options) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string path, ResolveConfig(options.model));
  weights::InspectOptions inspect;
  if (options.context > 0) inspect.context_tokens = options.context;
  inspect.num_sequences = options.sequences;
  MEGALITH_ASSIGN_OR_RETURN(const DraftSources sources, ParseDraftSources(options.draft.drafter));
  MEGALITH_ASSIGN_OR_RETURN(const DraftRows rows, ParseDraftRows(options.draft.rows));
  inspect.drafter = sources.drafter;
  inspect.drafter_beside = sources.automatic;
  inspect.drafts_from_text = sources.text;
  inspect.max_drafts = rows.max_drafts;
  MEGALITH_ASSIGN_OR_RETURN(const weights::InspectReport report, weights::Inspect(path, inspect));
  Put("{}\n", options.json ? weights::ToJson(report) : weights::ToText(report));
  return {};
}

}  // namespace

void RegisterInspect(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      app, cli, "inspect",
      "Show a model from its headers: layers, parameters, bytes, state, tensors, memory plan",
      "megalith inspect models/k3-nano\n"
      "megalith inspect /models/Kimi-K3 --context 131072 --sequences 4\n"
      "megalith inspect /models/Kimi-K3 --draft /models/Kimi-K3-speculator.dspark\n"
      "megalith inspect models/k3-nano/config.json --json",
      [options] { return Inspect(*options); });
  AddModelArgument(*command, options->model);
  command->add_option("--context", options->context, "Tokens per sequence in the memory plan")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  command->add_option("--sequences", options->sequences, "Sequences in the memory plan")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--draft", options->draft.drafter,
                   "Who drafts, as in run: shows the drafter and the memory that drafting takes. "
                   "DIR may also be the drafter's config.json")
      ->type_name(kDraftForms)
      ->capture_default_str();
  command
      ->add_option("--draft-rows", options->draft.rows,
                   "Rows of a step that checks drafts, as in run; auto: up to 8")
      ->type_name("N|auto")
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object instead of text");
}

}  // namespace megalith::apps
