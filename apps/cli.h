#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <functional>
#include <string>

#include "base/cancel.h"
#include "base/result.h"
#include "fabric/fabric.h"
#include "kernels/kernel_table.h"

// How a sub-command is made: cmd_<name>.cc defines Register<Name>(app, cli), which calls AddCommand
// with its body, adds its own options to what that returns, and is listed in commands.h and
// main.cc. A body writes results to stdout and nothing else there; what goes wrong it returns.

namespace megalith::apps {

class RankJob;

/// The verifier's work grows with the square of the workers; no machine has more cores than this.
inline constexpr int kMaxWorkers = 1024;

/// Options every command takes.
struct CommonOptions {
  int workers = 0;     ///< of a rank; 0: one for each of its physical cores (DefaultWorkers)
  std::string isa;     ///< empty: MEGALITH_FORCE_ISA or the best
  bool quiet = false;  ///< only warnings and errors on stderr
};

struct Cli {
  CommonOptions common;
  CancelFlag* cancel = nullptr;      ///< set by Ctrl-C; pass it to anything that takes long
  RankJob* ranks = nullptr;          ///< to load engines on; not null
  fabric::Fabric* fabric = nullptr;  ///< of the job that a launcher has started; null: none
  std::function<Status()> command;   ///< the body chosen on the command line
  /// Of a launcher's job all ranks run the body; else rank 0 does, and its engines have the others.
  bool runs_on_every_rank = false;
};

/// Adds a sub-command with the common options. `examples` is shown at the end of its help, one
/// command a line without indentation. The body runs after all options are parsed.
CLI::App* AddCommand(CLI::App& app, Cli& cli, const std::string& name,
                     const std::string& description, const std::string& examples,
                     std::function<Status()> body);

/// Adds the positional MODEL, a checkpoint folder; see ResolveModel for what an empty one means.
CLI::Option* AddModelArgument(CLI::App& command, std::string& model);

/// The path named by --isa, else by MEGALITH_FORCE_ISA, else the best. kUsage if there is no such
/// path or this machine cannot run it.
Result<kernels::Isa> ChooseIsa(const CommonOptions& options);

}  // namespace megalith::apps
