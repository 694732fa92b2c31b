// megalith bench: measurements, each beside what the machine could do at that moment.
#include <CLI/CLI.hpp>

#include "commands.h"
#include "commands_bench.h"

namespace megalith::apps {

void RegisterBench(CLI::App& app, Cli& cli) {
  CLI::App* group = app.add_subcommand("bench",
                                       "Measure memory, kernels, decoding, prefill, drafting, "
                                       "loading and ranks beside the machine's "
                                       "limits");
  group->require_subcommand(1);
  group->footer(
      "Every result carries what was read or computed, the machine's own rate measured right\n"
      "before and after it, their ratio, and a hash of the tokens. Contestants take turns, and a\n"
      "round in which the machine changed by more than 15 % is dropped and counted.\n\n"
      "Examples:\n"
      "  megalith bench bandwidth\n"
      "  megalith bench kernels --only mxfp4 --rows 1,8\n"
      "  megalith bench decode models/k3-nano --rows 1,8 --mode program,per-op\n"
      "  megalith bench prefill models/k3-nano --tokens 512\n"
      "  megalith bench draft models/k3-nano\n"
      "  megalith bench load models/k3-nano\n"
      "  megalith bench fabric --ranks 2,4\n\n"
      "megalith bench COMMAND --help shows the options of a command, with more examples.");
  RegisterBenchBandwidth(*group, cli);
  RegisterBenchKernels(*group, cli);
  RegisterBenchDecode(*group, cli);
  RegisterBenchPrefill(*group, cli);
  RegisterBenchDraft(*group, cli);
  RegisterBenchLoad(*group, cli);
  RegisterBenchFabric(*group, cli);
}

}  // namespace megalith::apps
