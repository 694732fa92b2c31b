#include "sampling_options.h"

#include <CLI/CLI.hpp>

namespace megalith::apps {

void AddSamplingOptions(CLI::App& command, engine::SamplingOptions& options) {
  command.add_option("--temperature", options.temperature, "0 is greedy")
      ->type_name("T")
      ->capture_default_str();
  command.add_option("--top-p", options.top_p, "Keep the most likely tokens up to this mass")
      ->type_name("P")
      ->capture_default_str();
  command.add_option("--top-k", options.top_k, "Keep the K most likely tokens; 0: all")
      ->type_name("K")
      ->capture_default_str();
  command
      .add_option("--min-p", options.min_p, "Drop tokens less likely than M times the most likely")
      ->type_name("M")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Same seed, same text")
      ->type_name("S")
      ->capture_default_str();
}

}  // namespace megalith::apps
