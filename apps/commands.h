#pragma once

#include "cli.h"

// The sub-commands, one file each: cmd_<name>.cc.

namespace megalith::apps {

void RegisterRun(CLI::App& app, Cli& cli);
void RegisterChat(CLI::App& app, Cli& cli);
void RegisterScore(CLI::App& app, Cli& cli);
void RegisterServe(CLI::App& app, Cli& cli);
void RegisterTokenize(CLI::App& app, Cli& cli);
void RegisterDetokenize(CLI::App& app, Cli& cli);
void RegisterInspect(CLI::App& app, Cli& cli);
void RegisterCompile(CLI::App& app, Cli& cli);
void RegisterSynth(CLI::App& app, Cli& cli);
void RegisterBench(CLI::App& app, Cli& cli);
void RegisterTrace(CLI::App& app, Cli& cli);
void RegisterDoctor(CLI::App& app, Cli& cli);

}  // namespace megalith::apps
