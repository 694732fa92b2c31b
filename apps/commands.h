#pragma once

#include "cli.h"

// The sub-commands, one file each: cmd_<name>.cc.

namespace megalith::apps {

void RegisterDoctor(CLI::App& app, Cli& cli);

}  // namespace megalith::apps
