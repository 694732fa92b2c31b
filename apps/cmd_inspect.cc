// megalith inspect: what a checkpoint is and costs, from headers only.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli.h"
#include "commands.h"
#include "console.h"
#include "default_model.h"
#include "weights/inspect.h"

namespace megalith::apps {
namespace {

struct Options {
  std::string model;
  std::int64_t context = 0;
  std::int64_t sequences = 1;
  std::int64_t draft_rows = weights::InspectOptions().draft_rows;
  std::string draft;
  bool json = false;
};

Status Inspect(const Options& options) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string path, ResolveConfig(options.model));
  weights::InspectOptions inspect;
  if (options.context > 0) inspect.context_tokens = options.context;
  inspect.num_sequences = options.sequences;
  inspect.drafter = options.draft;
  inspect.draft_rows = options.draft_rows;
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
      ->add_option("--draft", options->draft,
                   "A drafter's folder or config.json; default: the folder dspark of the model")
      ->type_name("PATH");
  command
      ->add_option("--draft-rows", options->draft_rows,
                   "Rows of a step that checks drafts in the drafter's memory plan")
      ->type_name("N")
      ->check(CLI::Range(2, 32))
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object instead of text");
}

}  // namespace megalith::apps
