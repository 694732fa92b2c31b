// Which JSON texts a schema lets through, keyword by keyword.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar_test_util.h"
#include "text/grammar/schema_compiler.h"

namespace megalith::text::grammar {
namespace {

void ExpectTexts(std::string_view schema, const std::vector<std::string_view>& accepted,
                 const std::vector<std::string_view>& refused) {
  const auto grammar = Compile(JsonFormat(schema));
  const std::string_view shown = schema.substr(0, 500);
  for (const auto text : accepted) EXPECT_TRUE(Accepts(grammar, text)) << shown << ' ' << text;
  for (const auto text : refused) EXPECT_FALSE(Accepts(grammar, text)) << shown << ' ' << text;
}

TEST(Schema, EachTypeAcceptsItsValuesAlone) {
  const std::pair<std::string_view, std::string_view> values[] = {
      {"null", "null"},  {"boolean", "true"}, {"boolean", "false"},   {"integer", "-12"},
      {"number", "0.5"}, {"string", "\"a\""}, {"array", "[1, null]"}, {"object", "{\"a\":1}"}};
  for (const std::string_view type :
       {"null", "boolean", "integer", "number", "string", "array", "object"}) {
    const auto grammar = Compile(JsonFormat("{\"type\":\"" + std::string(type) + "\"}"));
    for (const auto& [value_type, value] : values) {
      const bool fits = type == value_type || (type == "number" && value_type == "integer");
      EXPECT_EQ(Accepts(grammar, value), fits) << type << ' ' << value;
    }
  }
}

TEST(Schema, ListOfTypesAndNullable) {
  ExpectTexts(R"({"type":["string","null"]})", {"\"\"", "null"}, {"1", "{}"});
  ExpectTexts(R"({"type":"integer","nullable":true})", {"1", "null"}, {"1.5", "\"\""});
}

TEST(Schema, TrueAcceptsAllJsonAndNothingElse) {
  ExpectTexts("true",
              {"0", "-0", "10", "1.5e-10", "1E+2", "1e279", "\"\"", "[]", "{}", "[[],{}]",
               "{\"a\": [1, {\"b\": null}]}", "\"\\u00e9\\ud83d\\ude00\\/\\n\"", "\"é😀\x7F\""},
              {"",
               " ",
               "01",
               "+1",
               "1.",
               ".5",
               "1e",
               "1e280",
               "1e999",
               "nul",
               "tru",
               "'a'",
               "\"a",
               "\"\n\"",
               "\"\\x\"",
               "\"\\ud83d\"",
               "\"\\ude00\"",
               "\"\\ud83dx\"",
               "\"\xFF\"",
               "\"\xC0\x80\"",
               "\"\xED\xA0\x80\"",
               "\"\xF4\x90\x80\x80\"",
               "\"\xE2\x82\"",
               "[1,]",
               "[,1]",
               "{1:2}",
               "{\"a\"}",
               "{\"a\":}",
               "{\"a\":1,}",
               "[1 2]",
               "1 ",
               " 1",
               "NaN",
               "{}{}",
               "[1",
               "{\"a\":1"});
}

TEST(Schema, WhiteSpaceIsBounded) {
  ExpectTexts("true",
              {"[1,2]", "[1, 2]", "[ 1, 2 ]", "[\n  1,\n  2\n]", "{\n\t\"a\": 1\n}", "[ ]", "{ }",
               "[\n1\n]"},
              {"[1 ,2]", "[1,  2]", "[1, \n2]", "[\n\n1]", "{\"a\" :1}", "{\"a\":  1}",
               "{\"a\":\n1}", "[\r\n1]", "[\t1]", "[\n \t1]"});
  const std::string most = "[\n" + std::string(kMaxIndentation, ' ') + "1]";
  const std::string more = "[\n" + std::string(kMaxIndentation + 1, ' ') + "1]";
  ExpectTexts("true", {most}, {more});
}

TEST(Schema, NestingEndsBeforeParsersRefuseIt) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  const auto grammar = Compile(JsonFormat("true"));
  EXPECT_TRUE(Accepts(grammar, nested(90)));
  EXPECT_FALSE(Accepts(grammar, nested(kMaxJsonDepth)));
  // At the deepest level only what needs no further one may come.
  GrammarMatcher matcher = Matcher(grammar);
  const TokenId bracket = *NanoTokenizer().vocabulary().Find("[");
  std::size_t depth = 0;
  while (matcher.Push(bracket)) ++depth;
  EXPECT_EQ(depth, kMaxCallDepth - 1u);
  TestRandom random(1);
  EXPECT_FALSE(RandomReply(matcher, NanoTokenizer(), random, 0).empty());
}

TEST(Schema, EnumAndConst) {
  ExpectTexts(R"({"enum":["a","ab","\"é\n",1,-2.5,true,null,[1,{"k":"v"}],{}]})",
              {"\"a\"", "\"ab\"", "\"\\\"é\\n\"", "1", "-2.5", "true", "null",
               "[1, {\"k\": \"v\"}]", "[1,{\"k\":\"v\"}]", "{}"},
              {"\"\"", "\"abc\"", "\"b\"", "2", "1.0", "false", "[]", "[1,{}]", "[1]"});
  ExpectTexts(R"({"const":{"a":[]}})", {"{\"a\": []}"}, {"{}", "{\"a\":[1]}"});
  ExpectTexts(R"({"type":"string","enum":["a",1,null]})", {"\"a\""}, {"1", "null"});
  ExpectTexts(R"({"type":["string","null"],"enum":["a",1,null]})", {"\"a\"", "null"}, {"1"});
  ExpectTexts(R"({"allOf":[{"enum":[1,2,3]},{"enum":[2,3,4]}]})", {"2", "3"}, {"1", "4"});
}

TEST(Schema, ObjectMembersComeInOrderAndOptionalOnesMayBeLeftOut) {
  ExpectTexts(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":true},
          "required":["b"],"additionalProperties":false})",
      {R"({"b":""})", R"({"a":1,"b":""})", R"({"a": 1, "b": "", "c": []})", R"({"b":"","c":1})",
       "{\n  \"b\": \"\"\n}"},
      {"{}", R"({"a":1})", R"({"b":"","a":1})", R"({"b":1})", R"({"b":"","d":1})",
       R"({"b":"","b":""})", R"({,"b":""})", R"({"b":"",})"});
}

TEST(Schema, AdditionalMembersHaveTheirSchemaAndOtherNames) {
  ExpectTexts(
      R"({"type":"object","properties":{"a":{"type":"integer"},"ab\"":true},
          "additionalProperties":{"type":"string"}})",
      {"{}", R"({"a":1})", R"({"a":1,"b":"","c":"x"})", R"({"x":""})", R"({"ab":""})", R"({"":""})",
       R"({"ab\"":1,"ab\"c":""})", R"({"\n\u001f":""})"},
      {R"({"a":""})", R"({"b":1})", R"({"b":"","a":1})", R"({"\u0061":""})", R"({"ab\"x":1})"});
  // Absent means anything, as JSON schema has it.
  ExpectTexts(R"({"type":"object","properties":{"a":{"type":"integer"}}})",
              {R"({"a":1,"b":[]})", R"({"z":0})"}, {R"({"a":"x"})"});
}

TEST(Schema, RequiredNamesNeedNoProperties) {
  ExpectTexts(R"({"type":"object","required":["x","x"],"properties":{"a":true}})",
              {R"({"x":1})", R"({"a":1,"x":2,"y":3})"}, {"{}", R"({"a":1})", R"({"x":1,"x":1})"});
}

TEST(Schema, MembersThatCannotBeAreLeftOut) {
  ExpectTexts(R"({"type":"object","properties":{"a":false,"b":{"enum":[]},"c":true}})",
              {"{}", R"({"c":1})"}, {R"({"a":1})", R"({"b":1})"});
}

TEST(Schema, ArrayItemsAndLengths) {
  ExpectTexts(R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1,2,3]"},
              {"[\"\"]", "[1,\"\"]", "[,]"});
  ExpectTexts(R"({"type":"array","minItems":2,"maxItems":3})", {"[1,2]", "[1,\"\",null]"},
              {"[]", "[1]", "[1,2,3,4]"});
  ExpectTexts(R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"});
  ExpectTexts(R"({"type":"array","items":false})", {"[]"}, {"[1]"});
  ExpectTexts(R"({"type":"array","minItems":3})", {"[1,2,3]", "[1,2,3,4,5]"}, {"[1,2]"});
}

TEST(Schema, PrefixItems) {
  ExpectTexts(R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],
                  "items":{"type":"null"}})",
              {"[]", "[1]", "[1,\"\"]", "[1,\"\",null]", "[1,\"\",null,null]"},
              {"[\"\"]", "[1,1]", "[1,\"\",1]"});
  ExpectTexts(R"({"type":"array","prefixItems":[true,true],"items":false,"minItems":1})",
              {"[1]", "[1,2]"}, {"[]", "[1,2,3]"});
  ExpectTexts(R"({"type":"array","prefixItems":[true,true],"minItems":3,"maxItems":4})",
              {"[1,2,3]", "[1,2,3,4]"}, {"[1,2]", "[1,2,3,4,5]"});
  ExpectTexts(R"({"type":"array","prefixItems":[true,true],"maxItems":1})", {"[]", "[1]"},
              {"[1,2]"});
}

TEST(Schema, StringLengthIsCountedInCharacters) {
  ExpectTexts(R"({"type":"string","minLength":2,"maxLength":3})",
              {"\"ab\"", "\"éé\"", "\"😀é\\n\"", "\"\\ud83d\\ude00a\"", "\"\\u0061\\\"\\\\\""},
              {"\"\"", "\"é\"", "\"abcd\"", "\"\\ud83d\\ude00\"", "\"abc\\n\""});
  ExpectTexts(R"({"type":"string","maxLength":0})", {"\"\""}, {"\"a\""});
  ExpectTexts(R"({"type":"string","minLength":1})", {"\"a\"", "\"abcdef\""}, {"\"\""});
}

TEST(Schema, PatternsAndFormats) {
  ExpectTexts(R"({"type":"string","pattern":"^[a-z\"é]+$"})", {"\"abc\"", "\"é\\\"\""},
              {"\"\"", "\"A\"", "\"\\u0061\""});
  ExpectTexts(R"({"type":"string","pattern":"^a*$","minLength":2,"maxLength":3})",
              {"\"aa\"", "\"aaa\""}, {"\"a\"", "\"aaaa\""});
  ExpectTexts(R"({"type":"string","pattern":"b","allOf":[{"pattern":"^a"}]})",
              {"\"ab\"", "\"a\\nb\""}, {"\"a\"", "\"b\"", "\"ba\""});
  for (const int max_length : {20, 254, 1000}) {
    ExpectTexts(fmt::format(R"({{"type":"string","format":"email","maxLength":{}}})", max_length),
                {"\"first.last@b.example\""}, {"\"a\"", "\"a..b@c\""});
  }
  ExpectTexts(R"({"type":"string","format":"date"})", {"\"2024-02-29\""},
              {"\"2023-02-29\"", "\"\""});
}

TEST(Schema, IntegerBoundsAreExact) {
  for (const auto& [min, max] : std::vector<std::pair<int, int>>{
           {0, 0}, {0, 9}, {5, 5}, {5, 123}, {10, 99}, {99, 101}, {-5, 5}, {-123, -7}, {-10, 0}}) {
    const auto grammar = Compile(
        JsonFormat(fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", min, max)));
    const auto exclusive = Compile(JsonFormat(fmt::format(
        R"({{"type":"integer","exclusiveMinimum":{},"exclusiveMaximum":{}}})", min - 1, max + 1)));
    for (int value = -1100; value <= 1100; ++value) {
      const bool fits = min <= value && value <= max;
      EXPECT_EQ(Accepts(grammar, std::to_string(value)), fits) << min << ' ' << max << ' ' << value;
      EXPECT_EQ(Accepts(exclusive, std::to_string(value)), fits) << min << ' ' << value;
    }
  }
  ExpectTexts(R"({"type":"integer","minimum":10})", {"10", "11", "100", "9223372036854775807"},
              {"9", "0", "-10", "1", "10.0"});
  ExpectTexts(R"({"type":"integer","maximum":-3})", {"-3", "-4", "-30"}, {"-2", "0", "3", "-0"});
  ExpectTexts(R"({"type":"integer","minimum":1.5,"maximum":3.5})", {"2", "3"}, {"1", "4"});
  ExpectTexts(R"({"type":"integer","minimum":100000000000000000000})", {"100000000000000000000"},
              {"99999999999999999999", "1"});
}

TEST(Schema, NumberBoundsAreExact) {
  for (const auto& [min, max] :
       std::vector<std::pair<std::string, std::string>>{{"0", "1"},
                                                        {"-1", "1"},
                                                        {"0.25", "0.75"},
                                                        {"-1.5", "-0.25"},
                                                        {"1", "1"},
                                                        {"9.5", "10.25"}}) {
    for (const bool exclusive : {false, true}) {
      const std::string_view prefix = exclusive ? "exclusiveM" : "m";
      const std::string schema = fmt::format(R"({{"type":"number","{}inimum":{},"{}aximum":{}}})",
                                             prefix, min, prefix, max);
      if (exclusive && min == max) {
        EXPECT_NE(SchemaError(schema), "") << schema;
        continue;
      }
      const auto grammar = Compile(JsonFormat(schema));
      for (int eighths = -100; eighths <= 100; ++eighths) {
        const double value = eighths / 8.0;
        const double low = std::stod(min);
        const double high = std::stod(max);
        const bool fits = exclusive ? low < value && value < high : low <= value && value <= high;
        const std::string text = PythonFloatRepr(value);
        if (text == "-0.0") continue;
        EXPECT_EQ(Accepts(grammar, text), fits) << schema << ' ' << text;
        if (eighths % 8 == 0) {
          EXPECT_EQ(Accepts(grammar, std::to_string(eighths / 8)), fits) << schema << ' ' << text;
        }
      }
    }
  }
  ExpectTexts(R"({"type":"number","minimum":0,"maximum":1})", {"0", "0.0", "1", "1.000", "0.00001"},
              {"1.0001", "-0.1", "2", "1e-5", "0.", "00", "10"});
  ExpectTexts(R"({"type":"number","exclusiveMaximum":1e-3})", {"0.0009", "0", "-5"},
              {"0.001", "1"});
}

TEST(Schema, AnyOfAndOneOfAcceptEitherOne) {
  for (const std::string_view keyword : {"anyOf", "oneOf"}) {
    ExpectTexts(fmt::format(R"({{"{}":[{{"type":"integer"}},{{"type":"array","items":true}},
                               {{"type":"object","properties":{{"a":{{"type":"integer"}}}},
                                "required":["a"],"additionalProperties":false}},
                               {{"type":"object","properties":{{"a":{{"type":"string"}}}},
                                "required":["a"],"additionalProperties":false}}]}})",
                            keyword),
                {"1", "[\"\"]", R"({"a":1})", R"({"a":"x"})"}, {"\"\"", "{}", R"({"a":null})"});
  }
  ExpectTexts(R"({"type":"string","anyOf":[{"maxLength":1},{"enum":["abc"]},{"type":"integer"}]})",
              {"\"a\"", "\"abc\""}, {"\"ab\"", "1"});
}

TEST(Schema, AllOfJoinsObjects) {
  ExpectTexts(R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                           {"properties":{"b":{"type":"string"},"a":{"minimum":5}}}]})",
              {R"({"a":5})", R"({"a":7,"b":""})", R"({"a":5,"c":null})"},
              {"{}", R"({"a":1})", R"({"a":5,"b":1})", "1"});
  ExpectTexts(R"({"allOf":[{"type":"object","properties":{"a":true},"additionalProperties":false},
                           {"properties":{"b":true}}]})",
              {"{}", R"({"a":1})"}, {R"({"b":1})"});
}

TEST(Schema, ReferencesAndRecursion) {
  ExpectTexts(R"({"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
                  "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
                  "required":["v","next"],"additionalProperties":false}},"$ref":"#/$defs/node"})",
              {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
              {R"({"v":1})", R"({"v":1,"next":{"v":2}})"});
  ExpectTexts(R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]", "{}"});
  ExpectTexts(R"({"definitions":{"a/b~c %":{"type":"null"}},"$ref":"#/definitions/a~1b~0c%20%25"})",
              {"null"}, {"1"});
  ExpectTexts(
      R"({"type":"object","properties":{"a":{"$ref":"#/properties/b"},"b":{"type":"null"}}})",
      {R"({"a":null})"}, {R"({"a":1})"});
  ExpectTexts(R"({"anyOf":[{"type":"array","items":{"$ref":"#"}},
                           {"type":"array","items":{"$ref":"#"},"minItems":1},{"type":"integer"}]})",
              {"[[1],[[2,[]]]]", "1"}, {"[\"\"]"});
}

TEST(Schema, AnnotationsSayNothing) {
  ExpectTexts(R"({"$schema":"x","$id":"y","$comment":"","title":"t","description":"d","default":1,
                  "examples":[1],"type":"null"})",
              {"null"}, {"1"});
}

TEST(Schema, RefusedKeywordsAreNamedByPath) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"({"not":{}})", "unsupported: schema.not: this keyword is not supported"},
      {R"({"type":"object","properties":{"a b":{"if":true}}})",
       "unsupported: schema.properties[\"a b\"].if: this keyword is not supported"},
      {R"({"type":"array","uniqueItems":true})",
       "unsupported: schema.uniqueItems: this keyword is not supported"},
      {R"({"type":"integer","multipleOf":2})",
       "unsupported: schema.multipleOf: this keyword is not supported"},
      {R"({"type":"object","patternProperties":{}})",
       "unsupported: schema.patternProperties: this keyword is not supported"},
      {R"x({"anyOf":[true,{"properties":{"a":{"pattern":"(?=a)"}}}]})x",
       "unsupported: schema.anyOf[1].properties.a.pattern: byte 1 of the pattern: look-ahead, "
       "look-behind or flags"},
      {R"({"enum":["a"],"maxLength":3})",
       "unsupported: schema.maxLength: not supported beside enum or const (schema.enum)"},
      {R"({"$ref":"http://x"})",
       "unsupported: schema.$ref: a reference into this schema (\"#/...\") expected, \"http://x\" "
       "found"},
      {R"({"items":[true]})",
       "usage: schema.items: a schema (object or boolean) expected, array found"},
      {R"({"$ref":"#/$defs/x"})",
       "usage: schema.$ref: \"#/$defs/x\" leads to nothing in this schema"},
      {R"({"type":"text"})",
       "usage: schema.type: null, boolean, integer, number, string, array or object expected, "
       "\"text\" found"},
      {R"({"type":[]})", "usage: schema.type: at least one type expected, array found"},
      {R"({"minLength":-1})",
       "usage: schema.minLength: an integer from 0 to 2^30 expected, -1 found"},
      {R"({"minItems":"1"})",
       "usage: schema.minItems: an integer from 0 to 2^30 expected, string found"},
      {R"({"maximum":true})", "usage: schema.maximum: a number expected, boolean found"},
      {R"({"maximum":1e300})",
       "unsupported: schema.maximum: a number with at most 64 digits before and behind the point "
       "expected, 1e+300 found"},
      {R"({"required":["a",1]})", "usage: schema.required[1]: a name expected, 1 found"},
      {R"({"properties":[]})",
       "usage: schema.properties: an object of schemas expected, array found"},
      {R"({"anyOf":[]})",
       "usage: schema.anyOf: an array of at least one schema expected, array found"},
      {R"({"$ref":"#"})", "usage: schema: the schema refers to itself without a value in between"},
      {R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"$ref":"#/$defs/a"})",
       "usage: schema.$defs.a: the schema refers to itself without a value in between"},
      {R"("x")", "usage: schema: a schema (object or boolean) expected, string found"},
  };
  for (const auto& [schema, error] : cases) EXPECT_EQ(SchemaError(schema), error) << schema;
  EXPECT_TRUE(SchemaError(R"({"format":"regex"})")
                  .starts_with("unsupported: schema.format: one of date, date-time, duration"));
}

TEST(Schema, SchemasWithoutAValueAreRefused) {
  for (const std::string_view schema :
       {"false", R"({"enum":[]})", R"({"type":"string","minLength":2,"maxLength":1})",
        R"({"type":"object","properties":{"a":false},"required":["a"]})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"type":"array","items":false,"minItems":1})",
        R"({"type":"integer","minimum":2,"maximum":1})",
        R"({"type":"integer","minimum":1.2,"maximum":1.8})",
        R"({"type":"string","pattern":"^a$","minLength":2})",
        R"({"allOf":[{"type":"string"},{"type":"null"}]})"}) {
    EXPECT_NE(SchemaError(schema).find(": no value satisfies the schema, or only values nested in "
                                       "more than 99 levels"),
              std::string::npos)
        << schema << SchemaError(schema);
  }
}

TEST(Schema, TooLargeOnesAreRefusedInTime) {
  // 2^60 alternatives; 2^64 references; a long list; many states.
  std::string product = R"({"allOf":[{"anyOf":[true,true]})";
  for (int i = 0; i < 60; ++i) product += R"(,{"anyOf":[{"minLength":1},{"minLength":2}]})";
  EXPECT_TRUE(SchemaError(product + "]}").starts_with("unsupported: "));
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 60; ++i) {
    chain += fmt::format(
        R"("d{0}":{{"allOf":[{{"$ref":"#/$defs/d{1}"}},{{"$ref":"#/$defs/d{1}"}}]}},)", i, i + 1);
  }
  EXPECT_TRUE(SchemaError(chain + R"("d60":true}})").starts_with("unsupported: "));
  std::string list = R"({"enum":[0)";
  for (int i = 1; i < 60'000; ++i) list += "," + std::to_string(i);
  EXPECT_TRUE(SchemaError(list + "]}").starts_with("out_of_range: "));
  std::string states = R"({"type":"object","properties":{)";
  for (int i = 0; i < 1000; ++i) {
    states += fmt::format(R"("m{}":{{"type":"string","pattern":"^[a-zé]{{0,{}}}$"}},)", i, 100 + i);
  }
  EXPECT_TRUE(SchemaError(states + R"("z":true}})").starts_with("out_of_range: "));
}

TEST(Schema, LargeOnesWithinTheLimitsWork) {
  std::string list = R"({"enum":["0")";
  for (int i = 1; i < 5000; ++i) list += ",\"" + std::to_string(i * 7919) + "\"";
  ExpectTexts(list + "]}", {"\"7919\"", "\"39587081\"", "\"0\""}, {"\"1\"", "\"79191\""});
  std::string object = R"({"type":"object","additionalProperties":false,"properties":{"m0":true)";
  for (int i = 1; i < 1000; ++i) object += fmt::format(",\"m{}\":{{\"type\":\"integer\"}}", i);
  ExpectTexts(object + "}}", {"{}", R"({"m5":1,"m999":2})"}, {R"({"m6":1,"m5":2})", R"({"m":1})"});
}

}  // namespace
}  // namespace megalith::text::grammar
