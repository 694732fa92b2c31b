// megalith: the command line. Everything it does is in the libraries; this parses and reports.
#include <fcntl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "base/log.h"
#include "cli.h"
#include "commands.h"
#include "console.h"
#include "exit_code.h"
#include "interrupt.h"

namespace megalith::apps {
namespace {

/// A closed standard stream would give its number to the next file opened, and a model's shard
/// would be read as the user's words. Closed input is empty; closed output fails when written.
void ReserveStandardStreams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDONLY));
  }
}

/// Options that may be empty: they are text for the model.
bool MayBeEmpty(const CLI::Option& option) {
  for (const char* name : {"prompt", "text", "system"}) {
    if (option.check_lname(name)) return true;
  }
  return false;
}

/// An empty value, as from an unset shell variable, must not pass for a number or a default.
void RefuseEmptyValues(CLI::App& app) {
  const CLI::Validator not_empty(
      [](std::string& value) {
        return value.empty() ? std::string("a value expected, none given") : std::string();
      },
      "", "not_empty");
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() > 0 && !MayBeEmpty(*option)) option->check(not_empty);
    }
    for (CLI::App* group : command->get_subcommands({})) {
      for (CLI::Option* option : group->get_options()) {
        if (option->get_items_expected_max() > 0 && !MayBeEmpty(*option)) option->check(not_empty);
      }
    }
  }
}

void LogToStderr(bool quiet) {
  SetLogSink([quiet](LogLevel level, std::string_view message) {
    if (level == LogLevel::kDebug || (quiet && level < LogLevel::kWarning)) return;
    Note("megalith: {}{}\n",
         level == LogLevel::kInfo ? "" : fmt::format("{}: ", LogLevelName(level)), message);
  });
}

/// What to print for a command line that does not parse.
std::string FailureMessage(const CLI::App* app, const CLI::Error& error) {
  return fmt::format("megalith: error: {}\n{}\n", error.what(),
                     app->get_help_ptr() == nullptr ? "" : "Run with --help for more information.");
}

/// CLI11 says of an unknown command only that one is missing.
Status CheckCommandName(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return {};
  std::string known;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->check_name(argv[1])) return {};
    known += fmt::format("{}{}", known.empty() ? "" : ", ", command->get_name());
  }
  return Fail(ErrorCode::kUsage, "there is no command '{}'; the commands are {}", argv[1], known);
}

/// A full disk or closed pipe must not pass for success.
Status FlushResults() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Fail(ErrorCode::kIo, "stdout: results could not be written");
  }
  return {};
}

ExitCode Report(const Status& status) {
  if (status) return ExitCode::kFine;
  Note("megalith: error: {}: {}\n", ErrorCodeName(status.error().code), status.error().message);
  return ExitCodeOf(status.error().code);
}

ExitCode Run(int argc, char** argv) {
  CLI::App app("Megalith runs Kimi K3-class language models as one proved program per device.",
               "megalith");
  app.set_version_flag("--version", "megalith " MEGALITH_VERSION);
  app.require_subcommand(1);
  app.footer("megalith COMMAND --help shows the options of a command, with examples.");
  app.failure_message(FailureMessage);
  Cli cli;
  cli.cancel = CatchInterrupts();
  RegisterRun(app, cli);
  RegisterChat(app, cli);
  RegisterScore(app, cli);
  RegisterServe(app, cli);
  RegisterTokenize(app, cli);
  RegisterDetokenize(app, cli);
  RegisterInspect(app, cli);
  RegisterCompile(app, cli);
  RegisterSynth(app, cli);
  RegisterBench(app, cli);
  RegisterTrace(app, cli);
  RegisterDoctor(app, cli);
  RefuseEmptyValues(app);

  if (const Status status = CheckCommandName(app, argc, argv); !status) return Report(status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" with code 0.
    return app.exit(error, std::cout, std::cerr) == 0 ? ExitCode::kFine : ExitCode::kUsage;
  }
  LogToStderr(cli.common.quiet);
  // A path that does not exist or does not run here is an error for every command.
  Status status;
  if (const auto isa = ChooseIsa(cli.common); !isa) status = tl::unexpected(isa.error());
  if (status) status = cli.command();
  if (status) status = FlushResults();
  return Report(status);
}

}  // namespace
}  // namespace megalith::apps

int main(int argc, char** argv) {
  megalith::apps::ReserveStandardStreams();
  // The libraries do not throw; the standard library may, when memory runs out.
  try {
    return static_cast<int>(megalith::apps::Run(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "megalith: error: %s\n", error.what());
    return static_cast<int>(megalith::apps::ExitCode::kRunFailed);
  }
}
