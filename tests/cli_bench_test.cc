// megalith bench on the embedded model, as small as it gets: that every command runs and says what
// scripts read. No number is expected of any time.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "megalith_process.h"

namespace megalith {
namespace {

using Json = nlohmann::json;

Json RunBench(const std::string& arguments) {
  const Outcome outcome = Megalith("bench " + arguments + " --json -q");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  Json json = Json::parse(outcome.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << outcome.out;
  if (!json.is_object()) return json;
  const Json& conditions = json["conditions"];
  for (const char* name : {"version", "commit", "cpu"}) {
    EXPECT_TRUE(conditions[name].is_string()) << name;
  }
  EXPECT_FALSE(json["results"].empty());
  return json;
}

/// What every line that is held against a yardstick has.
void ExpectHeldAgainst(const Json& result, const std::string& rate) {
  EXPECT_TRUE(result["yardstick"].is_string());
  EXPECT_TRUE(result["rounds"].is_number());
  EXPECT_TRUE(result["dropped"].is_number());
  // Null if the machine was never steady.
  for (const std::string& name : {rate, "probe_" + rate, std::string("ratio")}) {
    EXPECT_TRUE(result[name].is_null() || result[name]["median"].is_number()) << name;
  }
  EXPECT_EQ(result["samples"].size(), result["rounds"].get<std::size_t>());
}

TEST(BenchCommand, BandwidthReadsWithEveryMethod) {
  const Json json = RunBench("bandwidth --workers 1 --rounds 1 --probe-mib 1");
  for (const Json& result : json["results"]) {
    EXPECT_EQ(result["threads"], 1);
    EXPECT_GT(result["gb_per_s"]["median"], 0.0);
  }
}

TEST(BenchCommand, KernelsNamesKernelsAndYardsticks) {
  const Json json = RunBench(
      "kernels --isa portable --inputs 64 --rows 1,16 --rounds 1 --turn-ms 0.01 --cold-mib 8 "
      "--probe-mib 1 --only matmul_bf16");
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][0]["kernel"], "matmul_bf16");
  ExpectHeldAgainst(json["results"][0], "gb_per_s");
  ExpectHeldAgainst(json["results"][1], "gflop_per_s");
}

TEST(BenchCommand, DecodeTakesTurnsAndHashesTokens) {
  const Json json = RunBench(
      "decode --rows 1,2 --mode program,per-op --workers 1,2 --context 2 --steps 1 --rounds 1 "
      "--probe-mib 1");
  ASSERT_EQ(json["results"].size(), 8u);
  EXPECT_EQ(json["all_interleaved"], true);
  EXPECT_EQ(json["weights"].size(), 2u);
  const std::string hash = json["results"][0]["output_hash"];
  EXPECT_EQ(hash.size(), 16u);
  for (const Json& result : json["results"]) {
    EXPECT_EQ(result["output_hash"], hash);
    EXPECT_GT(result["weight_bytes_per_step"], 8e6);
    EXPECT_GT(result["experts_per_layer"], 0);
    ExpectHeldAgainst(result, "gb_per_s");
  }
}

TEST(BenchCommand, PrefillReportsTheTimeToTheFirstToken) {
  const Json json = RunBench("prefill --tokens 5 --rows-per-step 2,8 --rounds 1");
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][0]["output_hash"], json["results"][1]["output_hash"]);
  for (const Json& result : json["results"]) {
    EXPECT_TRUE(result.contains("first_token_s"));
    EXPECT_GT(result["activation_bytes"], 0);
    ExpectHeldAgainst(result, "gflop_per_s");
  }
}

TEST(BenchCommand, LoadReportsPeakMemory) {
  const Json json = RunBench("load --rounds 1 --probe-mib 1");
  const Json& result = json["results"][0];
  EXPECT_GT(result["packed_bytes"], 9'000'000);
  EXPECT_GT(result["peak_bytes"], 0);
  ExpectHeldAgainst(result, "gb_per_s");
}

TEST(BenchCommand, TablesAreForPeople) {
  const Outcome outcome =
      Megalith("bench decode -q --context 2 --steps 1 --rounds 1 --probe-mib 1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("tok/s"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

TEST(BenchCommand, WrongUseIsRefused) {
  EXPECT_EQ(Megalith("bench").exit_code, 2);
  EXPECT_EQ(Megalith("bench nothing").exit_code, 2);
  EXPECT_EQ(Megalith("bench decode --rows 0").exit_code, 2);
  EXPECT_EQ(Megalith("bench decode --mode other").exit_code, 2);
  EXPECT_EQ(Megalith("bench decode --isa sse9").exit_code, 2);
  EXPECT_EQ(Megalith("bench kernels --inputs 33").exit_code, 2);
  EXPECT_EQ(Megalith("bench decode --context 16000000").exit_code, 2);
  const Outcome help = Megalith("bench --help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"bandwidth", "kernels", "decode", "prefill", "load"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    EXPECT_NE(Megalith(std::string("bench ") + command + " --help").out.find("Examples:"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace megalith
