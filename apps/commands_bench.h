#pragma once

#include "cli.h"

// The sub-commands of bench, one file each: cmd_bench_<name>.cc.

namespace megalith::apps {

void RegisterBenchBandwidth(CLI::App& group, Cli& cli);
void RegisterBenchKernels(CLI::App& group, Cli& cli);
void RegisterBenchDecode(CLI::App& group, Cli& cli);
void RegisterBenchPrefill(CLI::App& group, Cli& cli);
void RegisterBenchDraft(CLI::App& group, Cli& cli);
void RegisterBenchFabric(CLI::App& group, Cli& cli);
void RegisterBenchLoad(CLI::App& group, Cli& cli);

}  // namespace megalith::apps
