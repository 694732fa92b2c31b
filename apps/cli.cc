#include "cli.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace megalith::apps {

CLI::App* AddCommand(CLI::App& app, Cli& cli, const std::string& name,
                     const std::string& description, const std::string& examples,
                     std::function<Status()> body) {
  CLI::App* command = app.add_subcommand(name, description);
  std::string footer = "Examples:\n";
  for (std::string_view rest = examples; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    footer += fmt::format("  {}\n", rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  footer +=
      "\nResults go to stdout, messages to stderr. Exit codes: 0 fine, 1 the run failed,\n"
      "2 wrong use, 3 a file that was read is missing or broken.";
  command->footer(footer);
  command
      ->add_option("--workers", cli.common.workers,
                   "Worker threads; default: one for each physical core this process may use. Of "
                   "several ranks: of each, and each has its part of the cores")
      ->check(CLI::Range(1, kMaxWorkers))
      ->type_name("N");
  command
      ->add_option("--isa", cli.common.isa,
                   "Instruction-set path; default: MEGALITH_FORCE_ISA, else the best")
      ->type_name("NAME");
  command->add_flag("-q,--quiet", cli.common.quiet, "Only warnings and errors on stderr");
  command->callback([&cli, body = std::move(body)] { cli.command = body; });
  return command;
}

CLI::Option* AddModelArgument(CLI::App& command, std::string& model) {
  return command
      .add_option("MODEL", model,
                  "Checkpoint folder; default: MEGALITH_MODEL, else the embedded k3-nano")
      ->type_name("");
}

Result<kernels::Isa> ChooseIsa(const CommonOptions& options) {
  if (options.isa.empty()) return kernels::SelectIsa();
  MEGALITH_ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::ParseIsa(options.isa));
  if (!kernels::IsaSupported(isa)) {
    std::string usable;
    for (const kernels::Isa other : kernels::SupportedIsas()) {
      usable += fmt::format("{}{}", usable.empty() ? "" : ", ", kernels::IsaName(other));
    }
    return Fail(ErrorCode::kUsage, "--isa {}: this machine cannot run it; usable: {}", options.isa,
                usable);
  }
  return isa;
}

}  // namespace megalith::apps
