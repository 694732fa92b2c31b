// megalith: the command line. Everything it does is in the libraries; this parses and reports.
#include <fcntl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "build_commit.h"
#include "cli.h"
#include "commands.h"
#include "console.h"
#include "engine/rank_follower.h"
#include "exit_code.h"
#include "fabric/start.h"
#include "interrupt.h"
#include "rank_job.h"

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

/// How this process begins its messages.
std::string MessagePrefix(const fabric::Fabric* fabric) {
  if (fabric == nullptr || fabric->rank() == 0) return "megalith: ";
  return fmt::format("rank {}: megalith: ", fabric->rank());
}

void LogToStderr(bool quiet, const std::string& prefix) {
  SetLogSink([quiet, prefix](LogLevel level, std::string_view message) {
    if (level == LogLevel::kDebug || (quiet && level < LogLevel::kWarning)) return;
    Note("{}{}{}\n", prefix,
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

ExitCode Report(const Status& status, const fabric::Fabric* fabric) {
  if (status) return ExitCode::kFine;
  Note("{}error: {}: {}\n", MessagePrefix(fabric), ErrorCodeName(status.error().code),
       status.error().message);
  return ExitCodeOf(status.error().code);
}

void RegisterCommands(CLI::App& app, Cli& cli) {
  app.set_version_flag("--version", "megalith " MEGALITH_VERSION);
  app.require_subcommand(1);
  app.footer("megalith COMMAND --help shows the options of a command, with examples.");
  app.failure_message(FailureMessage);
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
}

/// What to end with if the command line asks for nothing that could be run: help, or a mistake.
std::optional<ExitCode> Parse(CLI::App& app, std::vector<std::string>& arguments,
                              const fabric::Fabric* fabric) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  const int count = static_cast<int>(pointers.size());
  // One rank is enough to say it.
  const bool speaks = fabric == nullptr || fabric->rank() == 0;
  if (const Status status = CheckCommandName(app, count, pointers.data()); !status) {
    return speaks ? Report(status, fabric) : ExitCodeOf(status.error().code);
  }
  try {
    app.parse(count, pointers.data());
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" with code 0.
    std::ostringstream nobody;
    const int code =
        speaks ? app.exit(error, std::cout, std::cerr) : app.exit(error, nobody, nobody);
    return code == 0 ? ExitCode::kFine : ExitCode::kUsage;
  }
  return std::nullopt;
}

Status RunCommand(Cli& cli) {
  const std::string build = fmt::format("{} {}", MEGALITH_VERSION, BuildCommit());
  if (cli.fabric != nullptr && cli.fabric->rank() != 0 && !cli.runs_on_every_rank) {
    IgnoreInterrupts();
    return engine::FollowLeader(*cli.fabric, build);
  }
  RankJob ranks(cli.runs_on_every_rank ? nullptr : cli.fabric, cli.cancel);
  MEGALITH_RETURN_IF_ERROR(ranks.Start(build));
  cli.ranks = &ranks;
  // A path that does not exist or does not run here is an error for every command.
  if (const auto isa = ChooseIsa(cli.common); !isa) return tl::unexpected(isa.error());
  MEGALITH_RETURN_IF_ERROR(cli.command());
  return FlushResults();
}

/// As one rank of the launcher's job, or, with a null `fabric`, alone.
ExitCode Run(std::vector<std::string> arguments, fabric::Fabric* fabric) {
  Cli cli;
  cli.cancel = CatchInterrupts();
  cli.fabric = fabric;
  const bool leads = fabric == nullptr || fabric->rank() == 0;
  LogToStderr(!leads, MessagePrefix(fabric));
  if (fabric != nullptr) {
    const Status status = ShareArguments(*fabric, &arguments);
    if (!status) return Report(status, fabric);
  }
  CLI::App app("Megalith runs Kimi K3-class language models as one proved program per device.",
               "megalith");
  RegisterCommands(app, cli);
  if (const auto ended = Parse(app, arguments, fabric)) return *ended;
  LogToStderr(!leads || cli.common.quiet, MessagePrefix(fabric));
  return Report(RunCommand(cli), fabric);
}

/// The number in an environment variable; none if that is not set.
Result<std::optional<std::uint32_t>> NumberIn(const char* variable, const char* expected) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  std::uint32_t number = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, number);
  if (error != std::errc() || rest != end) {
    return Fail(ErrorCode::kUsage, "{}: {} expected; '{}' found", variable, expected, text);
  }
  return number;
}

/// The job that an MPI launcher has started this process in.
Result<std::unique_ptr<fabric::Fabric>> StartLaunchedJob() {
  fabric::MpiOptions options;
  // Whose processes of one host cannot share memory, as in containers, wants 1.
  MEGALITH_ASSIGN_OR_RETURN(
      const auto sharing,
      NumberIn("MEGALITH_RANKS_SHARING", "the most ranks of a host that share memory, 0 for all,"));
  options.max_ranks_sharing = sharing.value_or(options.max_ranks_sharing);
  // Whose processes may have to wait for a core, or for a debugger, wants more or 0.
  MEGALITH_ASSIGN_OR_RETURN(
      const auto patience,
      NumberIn("MEGALITH_RANKS_PATIENCE", "seconds that a rank may not run, 0 for any number,"));
  if (patience) {
    options.stall_timeout_ms = std::int64_t{1000} * *patience;
    options.remote_stall_timeout_ms = options.stall_timeout_ms;
  }
  return fabric::StartFabric(options);
}

ExitCode Main(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  if (!fabric::StartedByMpi()) return Run(std::move(arguments), nullptr);
  auto fabric = StartLaunchedJob();
  if (!fabric) return Report(tl::unexpected(fabric.error()), nullptr);
  const ExitCode code = Run(std::move(arguments), fabric->get());
  // The end of a job that has failed ends the process.
  std::fflush(nullptr);
  return code;
}

}  // namespace
}  // namespace megalith::apps

int main(int argc, char** argv) {
  megalith::apps::ReserveStandardStreams();
  // The libraries do not throw; the standard library may, when memory runs out.
  try {
    return static_cast<int>(megalith::apps::Main(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "megalith: error: %s\n", error.what());
    return static_cast<int>(megalith::apps::ExitCode::kRunFailed);
  }
}
