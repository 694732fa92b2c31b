// megalith trace on the embedded model: what scripts rely on.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "megalith_process.h"
#include "tools/temp_dir.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kNano = "'" MEGALITH_SOURCE_DIR "/models/k3-nano'";

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(TraceCommand, WritesFilesAndFiguresThatAddUp) {
  const tools::TempDir temp;
  const fs::path folder = temp.path();
  const Outcome outcome =
      Megalith("trace -q --json --all-steps --steps 3 --rows 2 --workers 2 --perfetto '" +
               (folder / "steps.json").string() + "' --svg '" + (folder / "step.svg").string() +
               "' " + kNano);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["steps"], 3);
  ASSERT_EQ(json[0]["workers"].size(), 2U);
  for (const Json& worker : json[0]["workers"]) {
    std::int64_t sum = 0;
    for (const char* part : {"start_ns", "reading_ns", "other_ns", "wait_ns", "finish_ns"}) {
      sum += worker[part].get<std::int64_t>();
    }
    EXPECT_EQ(sum, json[0]["step_ns"].get<std::int64_t>());
  }
  int steps = 0;
  const Json trace = Json::parse(ReadAll(folder / "steps.json"));
  for (const Json& event : trace["traceEvents"]) {
    steps += event.value("cat", "") == "step" ? 1 : 0;
  }
  EXPECT_EQ(steps, 3);
  EXPECT_TRUE(ReadAll(folder / "step.svg").ends_with("</svg>\n"));
}

TEST(TraceCommand, PromptsTokensPrefillAndPerOpRun) {
  for (const char* options : {"-p 'In the beginning' --steps 2", "--tokens 5,6,7 --steps 1",
                              "--prefill 20 --rows-per-step 8", "--mode per-op --steps 2"}) {
    const Outcome outcome = Megalith(std::string("trace -q ") + options + " " + kNano);
    EXPECT_EQ(outcome.exit_code, 0) << options << outcome.err;
    EXPECT_NE(outcome.out.find("critical path"), std::string::npos) << options;
  }
}

TEST(TraceCommand, ShowsWaitsForOtherRanks) {
  for (const char* options :
       {"--ranks 2 --steps 3", "--tp 4 --steps 2 --mode per-op", "--ranks 2 --prefill 30 --json"}) {
    const Outcome outcome = Megalith(std::string("trace -q --all-steps ") + options + " " + kNano);
    EXPECT_EQ(outcome.exit_code, 0) << options << outcome.err;
    EXPECT_NE(outcome.out.find("rank 1"), std::string::npos) << options << outcome.out;
  }
  const tools::TempDir temp;
  const std::string svg = temp.File("ranks.svg");
  const Outcome drawn = Megalith("trace -q --ranks 2 --steps 1 --svg '" + svg + "' " + kNano);
  EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
}

TEST(TraceCommand, WrongUseIsRefused) {
  for (const char* options :
       {"--steps 0", "--prefill 8 --steps 2", "-p x --tokens 1", "--tokens 999999", "--tokens x",
        "-p ''", "--mode other", "--context 100000000", "--svg ''"}) {
    const Outcome outcome = Megalith(std::string("trace ") + options + " " + kNano);
    EXPECT_EQ(outcome.exit_code, 2) << options << outcome.err;
    EXPECT_EQ(outcome.out, "") << options;
  }
}

}  // namespace
}  // namespace megalith
