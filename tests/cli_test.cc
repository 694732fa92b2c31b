// The program as a user starts it: exit codes, and what goes to stdout and what to stderr.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "megalith_process.h"
#include "tools/temp_dir.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

/// The commands that `megalith --help` lists.
std::vector<std::string> Commands() {
  std::istringstream help(Megalith("--help").out);
  std::vector<std::string> commands;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (listed && line.starts_with("  ") && line.size() > 2 && line[2] != ' ') {
      commands.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
    listed = listed || line.starts_with("Subcommands:");
  }
  return commands;
}

TEST(CommandLine, WithoutACommandIsWrongUse) {
  const Outcome outcome = Megalith("");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err, "");
}

TEST(CommandLine, UnknownCommandNamesTheKnownOnes) {
  const Outcome outcome = Megalith("no-such-command --json");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("no-such-command"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("doctor"), std::string::npos) << outcome.err;
}

TEST(CommandLine, HelpAndVersionAreResults) {
  for (const char* option : {"--help", "--version"}) {
    const Outcome outcome = Megalith(option);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_NE(outcome.out.find(option == std::string("--help") ? "Usage" : "megalith "),
              std::string::npos)
        << outcome.out;
    EXPECT_EQ(outcome.err, "");
  }
}

TEST(CommandLine, EveryCommandHasHelpWithExamplesAndRefusesUnknownOptions) {
  const std::vector<std::string> commands = Commands();
  ASSERT_FALSE(commands.empty());
  for (const std::string& command : commands) {
    const Outcome help = Megalith(command + " --help");
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_NE(help.out.find("Examples:\n  megalith " + command), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "") << command;
    const Outcome unknown = Megalith(command + " --no-such-option");
    EXPECT_EQ(unknown.exit_code, 2) << command;
    EXPECT_TRUE(unknown.err.starts_with("megalith: error: ")) << unknown.err;
    EXPECT_EQ(unknown.out, "") << command;
  }
}

TEST(CommandLine, WrongIsaAndWorkersAreWrongUse) {
  for (const char* option : {"--isa z80", "--workers 0", "--workers -3", "--workers many"}) {
    const Outcome outcome = Megalith(std::string("doctor --no-bandwidth ") + option);
    EXPECT_EQ(outcome.exit_code, 2) << option;
    EXPECT_EQ(outcome.out, "") << option;
    EXPECT_NE(outcome.err, "") << option;
  }
  EXPECT_EQ(Megalith("doctor --no-bandwidth", "MEGALITH_FORCE_ISA=z80").exit_code, 2);
}

TEST(CommandLine, ResultsThatCannotBeWrittenAreAFailure) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const std::string command =
      std::string("'") + MEGALITH_PROGRAM + "' doctor --no-bandwidth >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(Synth, ModelRunsAndIsReplacedOnlyByWish) {
  const tools::TempDir temp;
  const std::string folder = temp.File("synth");
  const Outcome made = Megalith("synth '" + folder + "' --json -q --seed 3 --layers 4 --vocab 500");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto json = nlohmann::json::parse(made.out, nullptr, false);
  EXPECT_EQ(json["shards"], 5);
  EXPECT_EQ(json["seed"], 3);
  EXPECT_GT(json["tensor_bytes"], 1000000);
  EXPECT_TRUE(json["bytes_per_second"].is_number());
  const Outcome ran = Megalith("run '" + folder + "' --ids 5,6,7 -n 12 --json -q --ignore-eos");
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const auto ids = nlohmann::json::parse(ran.out)["ids"];
  ASSERT_EQ(ids.size(), 12U);
  EXPECT_GT(std::set<int>(ids.begin(), ids.end()).size(), 6U) << "no endless repetition";

  const Outcome refused = Megalith("synth '" + folder + "'");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("--force"), std::string::npos) << refused.err;
  EXPECT_EQ(Megalith("synth '" + folder + "' --force -q").exit_code, 0);
  for (const char* wrong : {"--experts 2", "--layers 0", "--preset k4", "--set no_such_key=1",
                            "--hidden 100", "--preset k3-mini --config x", "--shard-size 0"}) {
    const Outcome outcome = Megalith("synth '" + folder + "_other' " + wrong);
    EXPECT_EQ(outcome.exit_code, 2) << wrong << outcome.err;
    EXPECT_FALSE(fs::exists(folder + "_other")) << wrong;
  }
  EXPECT_EQ(Megalith("synth '" + folder + "_other' --config /no/such/file").exit_code, 3);
}

TEST(Synth, DrafterIsWrittenBesideTheModelAndShown) {
  const tools::TempDir temp;
  const std::string folder = temp.File("synth");
  const Outcome wrong = Megalith("synth '" + folder + "' --drafter --draft-set block_size=0 -q");
  EXPECT_EQ(wrong.exit_code, 2) << wrong.err;
  EXPECT_NE(wrong.err.find("block_size"), std::string::npos) << wrong.err;
  EXPECT_EQ(Megalith("synth '" + folder + "' --draft-set block_size=4 -q").exit_code, 2);
  EXPECT_FALSE(fs::exists(folder));
  const Outcome made =
      Megalith("synth '" + folder + "' --drafter --draft-set block_size=4 --json -q");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto json = nlohmann::json::parse(made.out, nullptr, false);
  EXPECT_EQ(json["drafter"]["shards"], 1);
  const Outcome shown = Megalith("inspect --json '" + folder + "'");
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const auto report = nlohmann::json::parse(shown.out, nullptr, false);
  EXPECT_EQ(report["drafter"]["block_size"], 4);
  EXPECT_EQ(report["drafter"]["parameters"], json["drafter"]["parameters"]);
  EXPECT_EQ(report["drafter"]["file_bytes"], json["drafter"]["file_bytes"]);
  EXPECT_EQ(report["total"]["parameters"], json["parameters"]);
  EXPECT_EQ(report["warnings"].size(), 0U) << shown.out;
}

TEST(Synth, DrafterHasTheMarkovHeadThatIsWantedAndDraftsWithIt) {
  const tools::TempDir temp;
  const std::string folder = "'" + temp.File("synth") + "'";
  EXPECT_EQ(Megalith("synth " + folder + " --drafter --markov-head lstm -q").exit_code, 2);
  EXPECT_EQ(Megalith("synth " + folder + " --markov-head rnn -q").exit_code, 2);
  const Outcome without_rank =
      Megalith("synth " + folder + " --drafter --markov-head rnn --draft-set markov_rank=0" +
               " --draft-set confidence_head_with_markov=false -q");
  EXPECT_EQ(without_rank.exit_code, 2) << without_rank.err;
  EXPECT_NE(without_rank.err.find("markov_rank"), std::string::npos) << without_rank.err;
  for (const char* head : {"gated", "rnn"}) {
    const Outcome made =
        Megalith("synth " + folder + " --drafter --force -q --markov-head " + head);
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const Outcome shown = Megalith("inspect --json " + folder);
    ASSERT_EQ(shown.exit_code, 0) << shown.err;
    const auto report = nlohmann::json::parse(shown.out, nullptr, false);
    EXPECT_EQ(report["drafter"]["markov_head_type"], head);
    EXPECT_EQ(report["warnings"].size(), 0U) << shown.out;
    const auto run = [&](const std::string& options) {
      const Outcome outcome = Megalith(
          "run " + folder + " --ids 5,6,7 -n 20 --workers 2 --json -q --ignore-eos " + options);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      return nlohmann::json::parse(outcome.out, nullptr, false)["ids"];
    };
    EXPECT_EQ(run("--draft off").size(), 20U);
    EXPECT_EQ(run("--draft-rows 5"), run("--draft off"));
  }
}

TEST(Doctor, JsonDescribesTheMachine) {
  const Outcome outcome = Megalith("doctor --json --no-bandwidth --isa portable --workers 1");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const auto json = nlohmann::json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  EXPECT_GT(json["memory"]["total_bytes"].get<std::uint64_t>(), 0U);
  EXPECT_FALSE(json["topology"]["cores"].empty());
  EXPECT_EQ(json["workers"]["count"], 1);
  EXPECT_TRUE(json["read_bandwidth"].empty());
  int num_selected = 0;
  for (const auto& path : json["processor"]["kernel_paths"]) {
    if (path["selected"] == true) {
      ++num_selected;
      EXPECT_EQ(path["name"], "portable");
      EXPECT_EQ(path["usable"], true);
    }
  }
  EXPECT_EQ(num_selected, 1);
}

TEST(Doctor, EveryUsablePathCanBeForcedByOptionAndVariable) {
  const auto json =
      nlohmann::json::parse(Megalith("doctor --json --no-bandwidth").out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  for (const auto& path : json["processor"]["kernel_paths"]) {
    const std::string name = path["name"];
    const bool usable = path["usable"];
    const std::string selected =
        name + (name.size() < 12 ? std::string(12 - name.size(), ' ') : "") + " usable, selected";
    for (const bool by_variable : {false, true}) {
      const Outcome outcome = by_variable
                                  ? Megalith("doctor --no-bandwidth", "MEGALITH_FORCE_ISA=" + name)
                                  : Megalith("doctor --no-bandwidth --isa " + name);
      EXPECT_EQ(outcome.exit_code, usable ? 0 : 2) << name << outcome.err;
      EXPECT_EQ(outcome.out.find(selected) != std::string::npos, usable) << name << outcome.out;
    }
  }
}

TEST(Doctor, BandwidthIsMeasuredForOneAndAllWorkers) {
  const Outcome outcome = Megalith("doctor --json --workers 2");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["read_bandwidth"].size(), 2U);
  EXPECT_EQ(json["read_bandwidth"][0]["num_threads"], 1);
  EXPECT_EQ(json["read_bandwidth"][1]["num_threads"], 2);
  for (const auto& entry : json["read_bandwidth"]) {
    EXPECT_GT(entry["best_gb_per_s"].get<double>(), 0);
    EXPECT_GE(entry["total_bytes"].get<std::uint64_t>(), std::uint64_t{1} << 20);
  }
}

}  // namespace
}  // namespace megalith
