#include "text/json_value.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "text/text_test_util.h"

namespace megalith::text {
namespace {

std::string Python(std::string_view json) {
  return WritePythonJson(ValueOf(ParseJson(json, JsonDialect::kPython)));
}

// Expected values were printed by Python 3.11: json.dumps(json.loads(x), ensure_ascii=False).
TEST(WritePythonJson, AsPythonWritesIt) {
  EXPECT_EQ(Python(R"({"b":[1,2,{"x":null}],"a":true})"),
            R"({"b": [1, 2, {"x": null}], "a": true})");
  EXPECT_EQ(Python(R"( [ ] )"), "[]");
  EXPECT_EQ(Python(R"({})"), "{}");
  EXPECT_EQ(Python(R"(["\u00e9\ud83d\ude00\/\u007f\u001f\b\f\n\r\t\"\\"])"),
            "[\"é\U0001F600/\x7F\\u001f\\b\\f\\n\\r\\t\\\"\\\\\"]");
  EXPECT_EQ(Python(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})");
  EXPECT_EQ(Python("[NaN,Infinity,-Infinity]"), "[NaN, Infinity, -Infinity]");
}

TEST(WritePythonJson, NumbersAsPythonWritesThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-7", "-7"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"1.0", "1.0"},
      {"-0.0", "-0.0"},
      {"1E5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"12345678901234567890.0", "1.2345678901234567e+19"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.5e-7", "1.5e-07"},
      {"123.456", "123.456"},
      {"0.1", "0.1"},
      {"1e22", "1e+22"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"1e400", "Infinity"},
      {"-1e400", "-Infinity"},
      {"0e99999999999999999999", "0.0"},
      {"5e-324", "5e-324"},
      {"1e99999999999999999999", "Infinity"},
      {"1e-99999999999999999999", "0.0"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"}};
  for (const auto& [json, want] : cases) EXPECT_EQ(Python(json), want) << json;
  // Long lexemes out of the range of double without an exponent.
  EXPECT_EQ(Python(std::string(400, '9') + ".0"), "Infinity");
  EXPECT_EQ(Python("0." + std::string(400, '0') + "1"), "0.0");
  EXPECT_EQ(Python("0." + std::string(400, '0') + "1e500"), "1e+99");
}

TEST(PythonFloatRepr, ReadsBackTheSame) {
  TestRandom random(31);
  for (int round = 0; round < 20000; ++round) {
    const double value = std::bit_cast<double>(random.Next());
    if (!std::isfinite(value)) continue;
    const std::string text = PythonFloatRepr(value);
    ASSERT_EQ(std::strtod(text.c_str(), nullptr), value) << text;
    ASSERT_NE(text.find_first_of(".e"), std::string::npos);
    ASSERT_EQ(ValueOf(ParseJson(text)).text(), text);
  }
}

TEST(WriteCompactSortedJson, SortsEveryLevelByCodePoint) {
  EXPECT_EQ(WriteCompactSortedJson(ValueOf(
                ParseJson(R"([{"b":1,"a":{"z":[{"y":1,"x":1.50}],"é":"é","Z":0,"𝄞":1,"豈":2}}])"))),
            R"([{"a":{"Z":0,"z":[{"x":1.5,"y":1}],"é":"é","豈":2,"𝄞":1},"b":1}])");
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "{a:1}",
                           "01",
                           "+1",
                           "1.",
                           ".5",
                           "1e",
                           "nul",
                           "tru",
                           "'a'",
                           "\"\n\"",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\u0041\"",
                           "\"\xFF\"",
                           "\"a",
                           "[1 2]",
                           "{\"a\" 1}",
                           "1 2",
                           "\xEF\xBB\xBF{}",
                           "NaN",
                           "-Infinity",
                           "-",
                           "[",
                           "\"\\"}) {
    const auto json = ParseJson(text);
    ASSERT_FALSE(json) << text;
    EXPECT_EQ(json.error().code, ErrorCode::kBadFile);
    EXPECT_NE(json.error().message.find("JSON byte"), std::string::npos);
  }
}

TEST(ParseJson, NestingIsLimited) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)));
  const auto json = ParseJson(nested(kMaxJsonDepth + 1));
  ASSERT_FALSE(json);
  EXPECT_EQ(json.error().code, ErrorCode::kOutOfRange);
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '[')));
}

TEST(ParseJson, AgreesWithNlohmannOnRandomText) {
  TestRandom random(37);
  const std::string_view tokens[] = {"{",           "}",     "[",  "]",    ",",   ":",    "\"a\"",
                                     "\"\\u00e9\"", "\"b\"", "1",  "-2.5", "1e3", "null", "true",
                                     "false",       " ",     "\n", "0",    "x"};
  int num_valid = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string text;
    for (std::size_t n = 1 + random.Below(7); n > 0; --n) text += random.Pick(tokens);
    const bool want = nlohmann::json::accept(text);
    const auto json = ParseJson(text);
    // nlohmann refuses numbers beyond double, RFC 8259 does not.
    if (json && WritePythonJson(*json).find("Infinity") != std::string::npos) continue;
    ASSERT_EQ(json.has_value(), want) << "seed 37: " << text;
    if (!want) continue;
    ++num_valid;
    ASSERT_EQ(nlohmann::json::parse(WritePythonJson(*json)), nlohmann::json::parse(text)) << text;
    ASSERT_EQ(nlohmann::json::parse(WriteCompactSortedJson(*json)), nlohmann::json::parse(text));
  }
  EXPECT_GT(num_valid, 1000);
}

TEST(AppendJsonEscaped, EveryStringReadsBack) {
  TestRandom random(41);
  for (int round = 0; round < 500; ++round) {
    std::string text = RandomText(random, random.Below(40));
    for (int i = 0; i < 5; ++i) text.push_back(static_cast<char>(random.Below(128)));
    std::string json = "\"";
    AppendJsonEscaped(text, json);
    json += '"';
    ASSERT_EQ(nlohmann::json::parse(json).get<std::string>(), text);
    ASSERT_EQ(ValueOf(ParseJson(json)).text(), text);
  }
}

TEST(JsonValue, FindAndAsInteger) {
  const JsonValue json = ValueOf(ParseJson(R"({"a":-12,"b":1.0,"c":99999999999999999999})"));
  EXPECT_EQ(json.Find("a")->AsInteger(), -12);
  EXPECT_EQ(json.Find("b")->AsInteger(), std::nullopt);
  EXPECT_EQ(json.Find("c")->AsInteger(), std::nullopt);
  EXPECT_EQ(json.Find("d"), nullptr);
  EXPECT_EQ(JsonValue().Find("a"), nullptr);
  EXPECT_EQ(json.Find("a")->AsDouble(), -12.0);
  EXPECT_EQ(json.Find("c")->AsDouble(), 1e20);
  EXPECT_EQ(JsonValue::String("1").AsDouble(), std::nullopt);
}

}  // namespace
}  // namespace megalith::text
