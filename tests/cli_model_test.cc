// The commands that use a model, on the embedded one: what scripts rely on.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megalith_process.h"
#include "tools/temp_dir.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kNano = "'" MEGALITH_SOURCE_DIR "/models/k3-nano'";
const std::string kNanoDrafter = "'" MEGALITH_SOURCE_DIR "/models/k3-nano/dspark'";

/// In a folder of this process: tests run beside each other.
std::string Temporary(const std::string& name) {
  static const tools::TempDir folder;
  return folder.File(name);
}

std::string ReadBinary(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The run's JSON object; fails the test if there is none.
Json RunJson(const std::string& arguments) {
  const Outcome outcome = Megalith("run --json -q " + arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return Json::parse(outcome.out, nullptr, false);
}

TEST(RunCommand, JsonHasWhatScriptsReadAndTheGoldenTokens) {
  const Json json =
      RunJson("--ids 3840,3077,259,2124,483,1979,282 -n 12 --workers 2 --isa portable --draft off");
  EXPECT_EQ(json["prompt_ids"], Json::parse("[3840,3077,259,2124,483,1979,282]"));
  EXPECT_EQ(json["ids"], Json::parse("[259,1064,270,259,903,300,3078,259,903,330,774,2595]"));
  EXPECT_EQ(json["text"], " the heaven and the earth.\nAnd the earth was without form");
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["isa"], "portable");
  EXPECT_EQ(json["workers"], 2);
  EXPECT_EQ(json["timings"]["plain_step_bytes"], 8666816);
  EXPECT_TRUE(json["drafting"].is_null());
  for (const char* timing : {"load_seconds", "compile_seconds", "prefill_seconds", "decode_seconds",
                             "prefill_tokens_per_second", "decode_tokens_per_second"}) {
    EXPECT_TRUE(json["timings"][timing].is_number()) << timing;
  }
}

TEST(RunCommand, DraftingGivesTheSameTokensAndItsFigures) {
  const std::string arguments = "--ids 3840,3077,259,2124,483,1979,282 -n 40 --workers 2 ";
  for (const std::string sampling : {"", "--temperature 0.8 --top-p 0.95 --seed 3 "}) {
    const Json plain = RunJson(arguments + sampling + "--draft off");
    for (const std::string& draft :
         {std::string("--draft auto"), std::string("--draft ngram"), std::string("--draft-rows 8"),
          std::string("--draft-rows 2"), std::string("--draft ngram --draft-rows 5"),
          "--draft " + kNanoDrafter, "--draft " + kNanoDrafter + ",ngram"}) {
      const Json drafted = RunJson(arguments + sampling + draft);
      EXPECT_EQ(drafted["ids"], plain["ids"]) << sampling << draft;
      EXPECT_EQ(drafted["text"], plain["text"]) << sampling << draft;
    }
  }
  const Json fixed = RunJson(arguments + "--draft-rows 4");
  const Json& drafting = fixed["drafting"];
  EXPECT_GT(drafting["accepted"], 0);
  EXPECT_EQ(drafting["rounds"].get<int>() + drafting["accepted"].get<int>(), 39);
  EXPECT_EQ(drafting["drafted_by_position"].size(), 3U);
  EXPECT_LT(drafting["drafted_from_text"], drafting["drafted"]);
  EXPECT_LE(drafting["accepted_from_text"], drafting["drafted_from_text"]);
  // Beside the model's weights a step reads what keeps up the drafter's context: fc, two layers'
  // keys and values, and their norms.
  EXPECT_EQ(fixed["timings"]["plain_step_bytes"], 8666816 + 221184 + 196608 + 384 + 256);
}

TEST(RunCommand, DraftersThatCannotBeAreRefused) {
  const auto refused = [](const std::string& arguments, int exit_code, const std::string& what) {
    const Outcome outcome = Megalith("run -q -p x -n 2 " + arguments);
    EXPECT_EQ(outcome.exit_code, exit_code) << arguments;
    EXPECT_NE(outcome.err.find(what), std::string::npos) << outcome.err;
  };
  refused("--draft nowhere", 2, "DIR|ngram|DIR,ngram|auto|off expected, 'nowhere' given");
  refused("--draft nowhere,ngram", 2, "there is no folder 'nowhere'");
  for (const char* none : {",ngram", "auto,ngram", "ngram,ngram", "off,ngram", "AUTO", "none"}) {
    refused(std::string("--draft ") + none, 2, std::string("'") + none + "' given");
  }
  refused("--draft ./nowhere", 3, "there is no folder './nowhere'");
  refused("--draft ./nowhere,ngram", 3, "there is no folder './nowhere'");
  refused("--draft /tmp", 3, "'/tmp' has no config.json");
  refused("--draft " + kNanoDrafter + "/config.json", 3, "is a file");
  refused("--draft ''", 2, "a value expected");
  refused("--draft " + kNano, 3, "config.json");  // a model is no drafter
  refused("--draft-rows 0", 2, "--draft-rows");
  refused("--draft-rows 33", 2, "1 to 32 expected");
  refused("--draft-rows many", 2, "'many' given");
}

/// k3-nano without its drafter, in a folder of its own.
std::string NanoAlone(const std::string& name) {
  const fs::path folder = Temporary(name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(MEGALITH_SOURCE_DIR "/models/k3-nano")) {
    if (entry.path().filename() != "dspark") {
      fs::create_symlink(entry.path(), folder / entry.path().filename());
    }
  }
  return folder.string();
}

TEST(RunCommand, SaysWhoDraftsOrWhyNobody) {
  const std::string folder = NanoAlone("megalith_who_drafts");
  const std::string dspark = folder + "/dspark";
  const auto says = [&folder](const std::string& arguments, const std::string& text) {
    const Outcome outcome = Megalith("run '" + folder + "' --ids 5 -n 4 " + arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << text << "\n" << outcome.err;
  };
  says("", "no drafts: there is no drafter " + dspark + "; --draft ngram needs none");
  says("--draft ngram", "drafts from n-grams of the text, up to 8 rows a step, as many as pay");
  says("--draft ngram --draft-rows 4", "drafts from n-grams of the text, 4 rows a step");
  says("--draft " + kNanoDrafter + " --draft-rows 12",
       "/dspark, 9 rows a step");  // all it proposes
  says("--draft " + kNanoDrafter + ",ngram --draft-rows 12", " and n-grams, 12 rows a step");
  says("--draft off --draft-rows 4", "no drafts: --draft off");
  // What is there and is no drafter is an error, whatever it is.
  const auto refuses = [&folder](const std::string& text) {
    const Outcome outcome = Megalith("run -q '" + folder + "' --ids 5 -n 4");
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << text << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find("--draft off does without it"), std::string::npos) << outcome.err;
    const Outcome shown = Megalith("inspect '" + folder + "'");
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    EXPECT_NE(shown.out.find("drafter not shown: "), std::string::npos) << shown.out;
  };
  fs::create_symlink("/nonexistent", dspark);
  refuses("there is no folder '" + dspark + "'");
  fs::remove(dspark);
  std::ofstream(dspark) << "a file";
  refuses("'" + dspark + "' is a file");
  fs::remove(dspark);
  fs::create_directories(dspark);
  refuses("'" + dspark + "' has no config.json");
  std::ofstream(dspark + "/config.json") << "{}";
  const Outcome broken = Megalith("run '" + folder + "' --ids 5 -n 4");
  EXPECT_EQ(broken.exit_code, 3) << broken.err;
  EXPECT_NE(broken.err.find(dspark), std::string::npos) << broken.err;
  EXPECT_NE(broken.err.find("--draft off does without it"), std::string::npos) << broken.err;
  EXPECT_EQ(Megalith("run '" + folder + "' --ids 5 -n 4 --draft off").exit_code, 0);
  fs::remove(dspark + "/config.json");
  fs::create_directory(dspark + "/config.json");
  EXPECT_EQ(Megalith("run '" + folder + "' --ids 5 -n 4").exit_code, 3);
  fs::remove_all(dspark);
  fs::copy(MEGALITH_SOURCE_DIR "/models/k3-nano/dspark", dspark);
  says("",
       "drafts from " + dspark + " and n-grams, up to 8 rows a step, as many as pay; --draft off");
  fs::remove_all(folder);
}

TEST(RunCommand, SecondStartMapsThePackedCacheAndSaysTheSame) {
  const std::string folder = Temporary("megalith_packed_cache");
  fs::remove_all(folder);
  const std::string arguments = "--ids 3840,3077 -n 6 --workers 2 --packed-cache '" + folder + "'";
  const Json first = RunJson(arguments);
  EXPECT_EQ(first["weights"], "packed");
  EXPECT_GT(first["timings"]["cache_write_seconds"], 0.0);
  EXPECT_GT(first["timings"]["peak_rss_bytes"], 10'000'000);
  const Json second = RunJson(arguments);
  EXPECT_EQ(second["weights"], "cache mapped");
  EXPECT_EQ(second["timings"]["cache_write_seconds"], 0.0);
  EXPECT_EQ(second["ids"], first["ids"]);
  const Json third = RunJson(arguments + " --packed-cache-use copy");
  EXPECT_EQ(third["weights"], "cache copied");
  EXPECT_EQ(third["ids"], first["ids"]);
  fs::remove_all(folder);
}

TEST(RunCommand, HashIsThatOfCompileWhateverTheLength) {
  const std::string one = RunJson("--ids 5 -n 1 --workers 2 --draft off")["program_hash"];
  EXPECT_EQ(RunJson("--ids 5,6,7 -n 30 --workers 2 --draft off")["program_hash"], one);
  const Outcome compiled = Megalith("compile --json --workers 2 " + kNano);
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  EXPECT_EQ(Json::parse(compiled.out)["hash"], one);
}

TEST(RunCommand, TextGoesToStdoutAndTheSummaryToStderr) {
  const Outcome outcome = Megalith("run -p 'In the beginning God created' -n 8");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(outcome.out.starts_with("In the beginning God created")) << outcome.out;
  EXPECT_NE(outcome.err.find("tok/s"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("read by a plain step"), std::string::npos) << outcome.err;
  EXPECT_EQ(Megalith("run -q -n 2").err, "");
}

TEST(RunCommand, SameSeedGivesTheSameTextAnotherSeedAnother) {
  const std::string options = "-p 'And the king' -n 24 --temperature 1 --top-p 0.95 --seed ";
  EXPECT_EQ(RunJson(options + "7 --workers 1")["text"], RunJson(options + "7 --workers 3")["text"]);
  EXPECT_NE(RunJson(options + "7")["text"], RunJson(options + "8")["text"]);
}

TEST(RunCommand, EndTokensStopUnlessIgnored) {
  // The golden chat prompt "Genesis 1:1": the answer ends with <|end_of_msg|>.
  std::ifstream file(MEGALITH_SOURCE_DIR "/models/k3-nano/golden.json");
  const Json golden = Json::parse(file);
  for (const Json& prompt : golden["prompts"]) {
    if (prompt["kind"] == "text") continue;
    std::string ids;
    for (const Json& id : prompt["ids"]) ids += (ids.empty() ? "" : ",") + id.dump();
    const Json stopped = RunJson("-n 200 --ids " + ids);
    if (stopped["finish_reason"] != "stop") continue;
    EXPECT_EQ(stopped["ids"].back(), 3842);
    const Json ignored = RunJson("-n 200 --ignore-eos --ids " + ids);
    EXPECT_EQ(ignored["finish_reason"], "length");
    EXPECT_EQ(ignored["ids"].size(), 200u);
    return;
  }
  FAIL() << "no golden chat prompt reaches its end token";
}

TEST(RunCommand, MessagesNobodyReadsDoNotFailTheRun) {
  for (const char* redirection : {"2>&-", "2>/dev/full"}) {
    const Outcome outcome = Megalith("run -p 'And the' -n 2", "", redirection);
    EXPECT_EQ(outcome.exit_code, 0) << redirection;
    EXPECT_TRUE(outcome.out.starts_with("And the")) << redirection;
  }
  EXPECT_EQ(Megalith("run -n 2", "", ">&-").exit_code, 1);
  EXPECT_EQ(Megalith("run -n 2", "", ">/dev/full").exit_code, 1);
}

TEST(RunCommand, WrongUseIsRefusedBeforeLoadingWithTheReason) {
  const auto expect = [](const std::string& arguments, int exit_code, const std::string& words) {
    const Outcome outcome = Megalith("run " + arguments);
    EXPECT_EQ(outcome.exit_code, exit_code) << arguments;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << arguments << ": " << outcome.err;
    EXPECT_EQ(outcome.err.find("engine"), std::string::npos) << "loaded before refusing";
    EXPECT_EQ(outcome.out, "") << arguments;
  };
  expect("--ids 4096", 2, "4096");
  expect("--ids 1,x", 2, "'x'");
  expect("--ids -1", 2, "-1");
  expect("--ids 99999999999", 2, "99999999999");
  expect("--ids ''", 2, "ids");
  expect("-p ''", 2, "empty");
  expect("-p a --ids 1", 2, "");
  expect("--temperature nan", 2, "temperature");
  expect("--temperature ''", 2, "temperature");
  expect("--top-p 1.1", 2, "top_p");
  expect("--min-p -1", 2, "min_p");
  expect("--top-k -1", 2, "top_k");
  expect("--seed 18446744073709551616", 2, "seed");
  expect("-n 0", 2, "");
  expect("--prompt-file /nonexistent", 3, "/nonexistent");
  expect("--prompt-file /tmp", 3, "/tmp");
  expect("/nonexistent -p a", 3, "/nonexistent");
  expect("/tmp -p a", 3, "/tmp");
  expect(kNano, 2, "prompt");
}

TEST(RunCommand, FileWithInvalidUtf8IsNamed) {
  const std::string path = Temporary("invalid_utf8.txt");
  std::ofstream(path) << "a\xff";
  const Outcome outcome = Megalith("run --prompt-file '" + path + "'");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.err.find(path), std::string::npos) << outcome.err;
}

TEST(RunCommand, CheckpointWithoutATokenizerRunsIds) {
  const Outcome outcome =
      Megalith("run '" MEGALITH_TEST_DATA "/golden/k3-unit' --ids 1,2 -n 3 --json -q");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["ids"].size(), 3u);
}

TEST(ScoreCommand, SameBitsForEveryWorkerCountAndStepSizeAndTheInterpreter) {
  const std::string path = Temporary("logits.npy");
  const std::string ids = "score " + kNano + " -q --ids 3840,3077,259,2124,483 --logits-out '" +
                          path + "' --isa portable ";
  ASSERT_EQ(Megalith(ids).exit_code, 0);
  const std::string first = ReadBinary(path);
  EXPECT_GT(first.size(), 5u * 4096 * 4);
  for (const char* options : {"--workers 3", "--rows-per-step 1", "--rows-per-step 2 --workers 5",
                              "--engine reference"}) {
    fs::remove(path);
    ASSERT_EQ(Megalith(ids + options).exit_code, 0) << options;
    EXPECT_TRUE(ReadBinary(path) == first) << options;
  }
  fs::remove(path);
}

TEST(ScoreCommand, FastPrefillIsAChoiceWithOtherBitsAndLimits) {
  const std::string path = Temporary("fast_logits.npy");
  std::string ids = "3840";
  for (int i = 0; i < 99; ++i) ids += "," + std::to_string(259 + 7 * i);
  const std::string score = "score " + kNano + " -q --ids " + ids + " --logits-out '" + path + "' ";
  ASSERT_EQ(Megalith(score + "--rows-per-step 100").exit_code, 0);
  const std::string exact = ReadBinary(path);
  ASSERT_EQ(Megalith(score + "--rows-per-step 100 --prefill fast --workers 3").exit_code, 0);
  const std::string fast = ReadBinary(path);
  EXPECT_EQ(fast.size(), exact.size());
  EXPECT_FALSE(fast == exact);
  ASSERT_EQ(Megalith(score + "--rows-per-step 100 --prefill fast --workers 1").exit_code, 0);
  EXPECT_TRUE(ReadBinary(path) == fast);
  for (const char* options : {"--prefill fast --activations fp32 --isa portable",
                              "--prefill fast --rows-per-step 63", "--prefill faster"}) {
    const Outcome refused = Megalith(score + options);
    EXPECT_EQ(refused.exit_code, 2) << options << refused.err;
    EXPECT_NE(refused.err.find("prefill"), std::string::npos) << refused.err;
  }
  fs::remove(path);
}

TEST(ScoreCommand, AFileAppearsCompleteOrNotAtAll) {
  EXPECT_EQ(Megalith("score --ids 1 --logits-out /nonexistent/x.npy").exit_code, 1);
  EXPECT_EQ(Megalith("score --ids 1 --logits-out /tmp").exit_code, 2);
  EXPECT_EQ(Megalith("score --ids 1 --logits-out /dev/full").exit_code, 1);
  EXPECT_EQ(Megalith("score --ids 4096 --logits-out x.npy").exit_code, 2);
  EXPECT_FALSE(fs::exists("x.npy"));
  const Outcome both = Megalith("score --ids 1 --activations fp32 --isa avx2 --logits-out x.npy");
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("portable"), std::string::npos) << both.err;
  const std::string shard = MEGALITH_SOURCE_DIR "/models/k3-nano/config.json";
  EXPECT_EQ(Megalith("score --ids 1 --logits-out '" + shard + "'").exit_code, 2);
}

TEST(ScoreCommand, NanLogitsAreAnError) {
  const std::string copy = Temporary("nan_nano");
  fs::remove_all(copy);
  fs::copy(MEGALITH_SOURCE_DIR "/models/k3-nano", copy, fs::copy_options::recursive);
  // Scales of 2^127 are legal and overflow in the products.
  {
    std::fstream file(copy + "/model-00001-of-000002.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    std::string header(8, '\0');
    file.read(header.data(), 8);
    std::uint64_t length = 0;
    std::memcpy(&length, header.data(), 8);
    std::string json(length, '\0');
    file.read(json.data(), static_cast<std::streamsize>(length));
    const Json tensors = Json::parse(json);
    for (const auto& [name, tensor] : tensors.items()) {
      if (name.find("w1.weight_scale") == std::string::npos) continue;
      const std::uint64_t begin = tensor["data_offsets"][0];
      const std::uint64_t end = tensor["data_offsets"][1];
      file.seekp(static_cast<std::streamoff>(8 + length + begin));
      file << std::string(end - begin, static_cast<char>(254));
    }
  }
  const std::string out = Temporary("nan.npy");
  for (const std::string& command : std::vector<std::string>{
           "run '" + copy + "' --ids 3077,259,2124 -n 4",
           "score '" + copy + "' --ids 3077,259,2124 --logits-out '" + out + "'"}) {
    const Outcome outcome = Megalith(command);
    EXPECT_EQ(outcome.exit_code, 1) << command << outcome.err;
    EXPECT_NE(outcome.err.find("numeric"), std::string::npos) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(out));
  fs::remove_all(copy);
}

TEST(TokenizeCommand, RoundTripIsExactAndMarkersStayText) {
  const Outcome ids = Megalith("tokenize -p '<|open|> unto the king'");
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(ids.out.find("3843"), std::string::npos) << "a typed marker became a control id";
  std::string list = ids.out;
  list.pop_back();
  EXPECT_EQ(Megalith("detokenize --ids " + list).out, "<|open|> unto the king");
  EXPECT_EQ(Megalith("tokenize --specials -p '<|open|>'").out, "3843\n");
  EXPECT_EQ(Megalith("detokenize --ids 4096").exit_code, 2);
  EXPECT_EQ(Megalith("detokenize --ids ' 3077 259\n'").exit_code, 0);
}

TEST(CompileCommand, RealKimiK3ReadsItsSpecifiedBytes) {
  const Outcome outcome =
      Megalith("compile '" MEGALITH_TEST_DATA "/kimi-k3-config.json' --workers 64 --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["bytes"]["per_step"], 136990317568);
  for (const char* field : {"instructions", "counters", "tiles", "compile_ms", "verify_ms"}) {
    EXPECT_TRUE(json[field].is_number()) << field;
  }
  const Outcome dump = Megalith("compile --workers 2 --dump " + kNano);
  EXPECT_EQ(dump.exit_code, 0);
  EXPECT_NE(dump.out.find("segment mla_moe"), std::string::npos);
  EXPECT_EQ(Megalith("compile --context 5000 " + kNano).exit_code, 2);
}

TEST(CompileCommand, RanksShareK3AndAddUp) {
  const std::string k3 = "compile '" MEGALITH_TEST_DATA "/kimi-k3-config.json' --workers 8 ";
  const Outcome outcome = Megalith(k3 + "--ranks 16 --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["ranks"], 16);
  EXPECT_EQ(json["tensor_parallel"], 16);
  EXPECT_EQ(json["exchanges"], 581);
  std::int64_t exchanges = 0;
  for (const Json& segment : json["exchanges_by_segment"]) {
    exchanges += segment["visits"].get<std::int64_t>() * segment["exchanges"].get<std::int64_t>();
  }
  EXPECT_EQ(exchanges, 581);
  EXPECT_EQ(json["hashes"].size(), 16U);
  // A sixteenth of 136,990,317,568 bytes, and what every rank reads.
  EXPECT_EQ(json["bytes"]["read_equal_share"], 8561894848);
  EXPECT_GT(json["bytes"]["read_least"], 8561894848);
  EXPECT_LT(json["bytes"]["read_most"], 8561894848 * 105 / 100);
  EXPECT_EQ(json["layouts"].size(), 5U);
  EXPECT_NEAR(json["layouts"][0]["expert_imbalance"].get<double>(), 1.0, 1e-9);
  EXPECT_NEAR(json["layouts"][4]["expert_imbalance"].get<double>(), 3.0488, 1e-4);

  const Outcome text = Megalith(k3 + "--tp 4 --ep 8");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("32 ranks of 8 workers: tensor parallel 4 x expert parallel 8"),
            std::string::npos)
      << text.out;
  const Outcome many = Megalith(k3 + "--ranks 97");
  EXPECT_EQ(many.exit_code, 2);
  EXPECT_NE(many.err.find("Possible: 1 to 96 ranks"), std::string::npos) << many.err;
  EXPECT_EQ(Megalith(k3 + "--ranks 7 --tp 3").exit_code, 2);
  EXPECT_EQ(Megalith(k3 + "--ranks 2 --dump").exit_code, 2);
  const Outcome pointless = Megalith(k3 + "--exchange-us 3");
  EXPECT_EQ(pointless.exit_code, 2);
  EXPECT_NE(pointless.err.find("--exchange-us: of the estimate"), std::string::npos)
      << pointless.err;
}

TEST(InspectCommand, TextAndJsonDescribeTheModel) {
  const Outcome text = Megalith("inspect " + kNano);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  const Outcome json = Megalith("inspect --json " + kNano);
  ASSERT_EQ(json.exit_code, 0) << json.err;
  EXPECT_TRUE(Json::parse(json.out).is_object());
  EXPECT_EQ(Megalith("inspect /nonexistent").exit_code, 3);
}

// What a drafter is asked for is shown before anything runs; one that is unknown is refused by
// name.
TEST(InspectCommand, ShowsEachKindOfDrafterAndRefusesOthers) {
  const Outcome beside = Megalith("inspect --json " + kNano);
  ASSERT_EQ(beside.exit_code, 0) << beside.err;
  EXPECT_EQ(Json::parse(beside.out)["drafter"]["format"], "speculators");
  EXPECT_NE(Megalith("inspect " + kNano).out.find("what enters layers 4, 6, 8"), std::string::npos);
  Json config = Json::parse(R"({
    "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3",
    "hidden_size": 192, "vocab_size": 4096, "intermediate_size": 384, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000,
    "target_layer_ids": [-1, 5], "block_size": 7, "mask_token_id": 4093, "markov_rank": 0})");
  const std::string file = Temporary("drafter.json");
  std::ofstream(file) << config.dump();
  const Outcome deep_spec = Megalith("inspect " + kNano + " --draft '" + file + "'");
  ASSERT_EQ(deep_spec.exit_code, 0) << deep_spec.err;
  for (const char* expected :
       {"(deepspec)", "1 whole context, both ways in the block: 0", "what enters layers 0, 6",
        "7 slots, 7 drafts", "no Markov, no confidence"}) {
    EXPECT_NE(deep_spec.out.find(expected), std::string::npos) << expected << deep_spec.out;
  }
  config["architectures"] = {"DFlashDraftModel"};
  std::ofstream(file) << config.dump();
  const Outcome other = Megalith("inspect " + kNano + " --draft '" + file + "'");
  EXPECT_NE(other.exit_code, 0);
  EXPECT_NE(other.err.find("DFlashDraftModel"), std::string::npos) << other.err;
  EXPECT_EQ(Megalith("inspect " + kNano + " --draft /nonexistent").exit_code, 3);
  EXPECT_EQ(Megalith("inspect " + kNano + " --draft none").exit_code, 2);
}

TEST(InspectCommand, PlansMemoryForWhateverDrafts) {
  const auto plan_of = [](const std::string& arguments) {
    const Outcome outcome = Megalith("inspect --json " + kNano + " " + arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out).value("drafting_plan", Json());
  };
  EXPECT_EQ(plan_of("")["drafts"], 7);
  EXPECT_EQ(plan_of("--draft-rows 3")["drafts"], 2);
  EXPECT_EQ(plan_of("--draft " + kNanoDrafter + " --draft-rows 12")["drafts"], 8);
  EXPECT_EQ(plan_of("--draft " + kNanoDrafter + ",ngram --draft-rows 12")["drafts"], 11);
  const Json text = plan_of("--draft ngram");
  EXPECT_EQ(text["drafts"], 7);
  EXPECT_EQ(text["weight_bytes"], 0);
  EXPECT_EQ(text["context_bytes"], 0);
  EXPECT_TRUE(plan_of("--draft off").is_null());
  EXPECT_TRUE(plan_of("--draft-rows 1").is_null());
}

TEST(ChatCommand, ScriptedTurnsAnswerKeepHistoryAndReuseIt) {
  const std::string questions = Temporary("questions.txt");
  std::ofstream(questions) << "Jesus wept\nTell me about wisdom.\n";
  const Outcome outcome =
      Megalith("chat --temperature 0 --isa portable", "", "<'" + questions + "'");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("(thinking) "), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("<|"), std::string::npos) << "a marker leaked";
  EXPECT_EQ(outcome.err.find("0 of them reused"), outcome.err.rfind("0 of them reused"))
      << "the second turn recomputed the first: " << outcome.err;
}

TEST(ChatCommand, AFailedTurnOfAScriptShowsInTheExitCode) {
  const std::string questions = Temporary("bad_questions.txt");
  std::ofstream(questions) << "\xff\nJesus wept\n";
  const Outcome outcome = Megalith("chat --temperature 0 -n 4", "", "<'" + questions + "'");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.out, "\n");
  EXPECT_EQ(Megalith("chat", "", "<&-").exit_code, 0);
}

}  // namespace
}  // namespace megalith
