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

TEST(BenchCommand, PrefillComparesFastWithExact) {
  const Json json = RunBench(
      "prefill --workers 2 --tokens 130 --rows-per-step 128 --prefill exact,fast --rounds 1");
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][0]["prefill"], "exact");
  EXPECT_FALSE(json["results"][0].contains("over_exact"));
  const Json& fast = json["results"][1];
  EXPECT_EQ(fast["prefill"], "fast");
  EXPECT_TRUE(fast.contains("over_exact"));
  EXPECT_GT(fast["logits_beside_exact"]["largest_difference"], 0.0);
  EXPECT_NE(fast["output_hash"], json["results"][0]["output_hash"]);
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

TEST(BenchCommand, FabricExchangesBetweenThreadsAndBetweenProcesses) {
  const Json json = RunBench("fabric --ranks 1,3 --bytes 64,4096 --exchanges 5 --rounds 1");
  // Two kinds, two numbers of ranks, two sizes, two operations.
  ASSERT_EQ(json["results"].size(), 16u);
  EXPECT_EQ(json["results"][15]["fabric"], "shm");
  EXPECT_EQ(json["results"][15]["ranks"], 3);
  EXPECT_EQ(json["results"][15]["operation"], "reduce");
  EXPECT_EQ(json["results"][15]["bytes"], 4096);
  EXPECT_EQ(json["results"][15]["exchanges"], 5);
  EXPECT_TRUE(json["results"][15]["us"]["median"].is_number());
  EXPECT_EQ(Megalith("bench fabric --bytes 66 -q").exit_code, 2);
  EXPECT_EQ(Megalith("bench fabric --fabric smoke -q").exit_code, 2);
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

TEST(BenchCommand, DraftReportsCostsOfRoundsAndRates) {
  const Json json = RunBench(
      "draft --rows 1,3 --draft-rows 3,auto --context 2 -n 8 --steps 1 --repeats 1 --probe-mib 1");
  EXPECT_TRUE(json["drafter"].is_string());
  EXPECT_EQ(json["context"], 2);
  // Rows 1, 3, 3 with proposals; plain, 3 rows, auto, n-grams, both.
  ASSERT_EQ(json["results"].size(), 8u);
  EXPECT_EQ(json["results"][7]["drafter"], "both");
  const Json& steady = json["results"][2];
  EXPECT_EQ(steady["part"], "costs");
  EXPECT_EQ(steady["rows"], 3);
  EXPECT_EQ(steady["proposals"], 2);
  EXPECT_GT(steady["bytes_ratio"], json["results"][1]["bytes_ratio"]);
  for (const char* name : {"time_ratio", "time_over_bytes", "break_even_tokens_per_round"}) {
    EXPECT_TRUE(steady[name].is_null() || steady[name] > 0.0) << name;
  }
  const Json& drafted = json["results"][4];
  EXPECT_EQ(drafted["part"], "rates");
  EXPECT_EQ(drafted["drafter"], "dspark");
  EXPECT_EQ(drafted["rows"], "3");
  EXPECT_EQ(drafted["acceptance_by_position"].size(), 2u);
  EXPECT_GE(drafted["tokens_per_round"], 1.0);
  for (const Json& result : json["results"]) {
    ExpectHeldAgainst(result, "gb_per_s");
    if (result["part"] == "rates") {
      EXPECT_EQ(result["same_ids_as_plain"], true);
    }
  }
}

TEST(BenchCommand, DraftTakesSyntheticDraftsAndNoDrafter) {
  const Json json = RunBench(
      "draft --draft off --rows 2 --draft-rows 8 --synthetic-acceptance 8 -p And -n 17 --steps 1 "
      "--repeats 1 --probe-mib 1");
  EXPECT_TRUE(json["drafter"].is_null());
  ASSERT_EQ(json["results"].size(), 4u);  // rows 1, 2; plain, synthetic
  EXPECT_EQ(json["results"][3]["drafter"], "synthetic");
  EXPECT_EQ(json["results"][3]["tokens_per_round"], 8.0);  // 16 tokens after the first
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
  EXPECT_EQ(Megalith("bench draft --rows 0").exit_code, 2);
  EXPECT_EQ(Megalith("bench draft --draft-rows some").exit_code, 2);
  EXPECT_EQ(Megalith("bench draft --draft-rows 1").exit_code, 2);
  EXPECT_EQ(Megalith("bench draft --draft nowhere,ngram").exit_code, 2);
  EXPECT_EQ(Megalith("bench draft --draft ./nowhere").exit_code, 3);
  EXPECT_EQ(Megalith("bench draft --draft-rows 2 --synthetic-acceptance 3").exit_code, 2);
  const Outcome help = Megalith("bench --help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"bandwidth", "kernels", "decode", "prefill", "draft", "load"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    EXPECT_NE(Megalith(std::string("bench ") + command + " --help").out.find("Examples:"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace megalith
