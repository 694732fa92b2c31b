#include "sampling_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

namespace megalith::apps {

void AddSamplingOptions(CLI::App& command, kernels::SamplingOptions& options) {
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
  const CLI::Validator is_seed(
      [](std::string& value) {
        std::uint64_t seed = 0;
        const auto [rest, error] = std::from_chars(value.data(), value.data() + value.size(), seed);
        return error == std::errc() && rest == value.data() + value.size()
                   ? std::string()
                   : fmt::format("a number from 0 to 18446744073709551615 expected, '{}' given",
                                 value);
      },
      "", "seed");
  command.add_option("--seed", options.seed, "Same seed, same text")
      ->check(is_seed)
      ->type_name("S")
      ->capture_default_str();
}

}  // namespace megalith::apps
