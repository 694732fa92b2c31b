// Random schemas, values and tokens: what the grammar lets through is valid, and what is valid (and
// written as the grammar wants it) is let through.

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar/grammar_test_util.h"
#include "text/grammar/schema_oracle.h"

namespace megalith::text::grammar {
namespace {

// Names in the order in which values have them. Schemas declare the first few, so that undeclared
// ones stand behind, where the grammar wants them.
constexpr std::string_view kNames[] = {"a", "ab", "b", "c \"x\""};
// Never in `properties`.
constexpr std::string_view kOtherName = "z";
constexpr std::string_view kPatterns[] = {"^a*$", "b", "^[a-c]{1,2}$", "^(ab|c)*$", "^\\w+$"};

/// Schemas of all supported kinds, and values for them, from one small world so that they meet.
class RandomSchemas {
 public:
  explicit RandomSchemas(TestRandom& random) : random_(random) {}

  JsonValue Value(int depth) {
    switch (random_.Below(depth > 0 ? 8 : 6)) {
      case 0:
        return JsonValue();
      case 1:
        return JsonValue::Boolean(random_.Below(2) == 0);
      case 2:
        return JsonValue::Integer(static_cast<std::int64_t>(random_.Below(16)) - 4);
      case 3:
        // Never whole: 2.0 is an integer to JSON schema, but integers are written without a point.
        return JsonValue::Double(static_cast<double>(random_.Below(32)) / 4 - 3.875);
      case 4:
      case 5:
        return JsonValue::String(Text());
      case 6: {
        std::vector<JsonValue> items;
        for (std::size_t n = random_.Below(4); n > 0; --n) items.push_back(Value(depth - 1));
        return JsonValue::Array(std::move(items));
      }
      default: {
        std::vector<JsonMember> members;
        for (const std::string_view name : kNames) {
          if (random_.Below(2) == 0) members.push_back({std::string(name), Value(depth - 1)});
        }
        if (random_.Below(4) == 0) members.push_back({std::string(kOtherName), Value(depth - 1)});
        return JsonValue::Object(std::move(members));
      }
    }
  }

  /// `joins`: allOf may occur; the order of an object's members is then no longer that of kNames.
  JsonValue Schema(int depth, bool joins) {
    if (random_.Below(10) == 0) return JsonValue::Boolean(random_.Below(4) != 0);
    std::vector<JsonMember> members;
    const auto add = [&members](std::string key, JsonValue value) {
      members.push_back({std::move(key), std::move(value)});
    };
    if (random_.Below(8) == 0) {
      std::vector<JsonValue> values;
      for (std::size_t n = 1 + random_.Below(4); n > 0; --n) values.push_back(Value(1));
      add("enum", JsonValue::Array(std::move(values)));
      if (random_.Below(2) == 0) add("type", Types());
      return JsonValue::Object(std::move(members));
    }
    if (random_.Below(4) != 0) add("type", Types());
    if (random_.Below(3) == 0) AddStringKeywords(members);
    if (random_.Below(3) == 0) AddNumberKeywords(members);
    if (depth > 0) {
      if (random_.Below(2) == 0) AddObjectKeywords(members, depth, joins);
      if (random_.Below(3) == 0) AddArrayKeywords(members, depth, joins);
      if (random_.Below(4) == 0) add("anyOf", Schemas(depth, joins));
      if (joins && random_.Below(3) == 0) add("allOf", Schemas(depth, joins));
      if (random_.Below(8) == 0) add("$ref", JsonValue::String("#/$defs/d"));
    }
    return JsonValue::Object(std::move(members));
  }

  /// With a definition that refers to the whole.
  JsonValue Root(bool joins) {
    JsonValue schema = Schema(3, joins);
    if (!schema.is_object()) return schema;
    std::vector<JsonMember> members = schema.members();
    std::vector<JsonMember> definition = {
        {"type", JsonValue::Array({JsonValue::String("array"), JsonValue::String("null")})},
        {"items", JsonValue::Object({{"$ref", JsonValue::String("#")}})}};
    members.push_back({"$defs", JsonValue::Object({{"d", JsonValue::Object(definition)}})});
    return JsonValue::Object(std::move(members));
  }

 private:
  std::string Text() {
    std::string text;
    for (std::size_t n = random_.Below(4); n > 0; --n) {
      text += random_.Pick(std::vector<std::string>{"a", "b", "c", "1", "\"", "\n"});
    }
    return text;
  }

  JsonValue Types() {
    std::vector<JsonValue> types;
    for (const std::string_view type :
         {"object", "array", "string", "integer", "number", "null", "boolean"}) {
      if (random_.Below(3) == 0) types.push_back(JsonValue::String(std::string(type)));
    }
    if (types.empty()) return JsonValue::String("object");
    return JsonValue::Array(std::move(types));
  }

  JsonValue Schemas(int depth, bool joins) {
    std::vector<JsonValue> schemas;
    for (std::size_t n = 1 + random_.Below(2); n > 0; --n) {
      schemas.push_back(Schema(depth - 1, joins));
    }
    return JsonValue::Array(std::move(schemas));
  }

  JsonValue Count(std::size_t bound) {
    return JsonValue::Integer(static_cast<std::int64_t>(random_.Below(bound)));
  }

  void AddStringKeywords(std::vector<JsonMember>& members) {
    if (random_.Below(2) == 0) members.push_back({"minLength", Count(3)});
    if (random_.Below(2) == 0) members.push_back({"maxLength", Count(5)});
    if (random_.Below(2) == 0) {
      members.push_back({"pattern", JsonValue::String(std::string(random_.Pick(kPatterns)))});
    }
  }

  void AddNumberKeywords(std::vector<JsonMember>& members) {
    const auto bound = [this] {
      return JsonValue::Double(static_cast<double>(random_.Below(40)) / 4 - 4);
    };
    members.push_back({random_.Below(2) == 0 ? "minimum" : "exclusiveMinimum", bound()});
    if (random_.Below(2) == 0) {
      members.push_back({random_.Below(2) == 0 ? "maximum" : "exclusiveMaximum", bound()});
    }
  }

  void AddObjectKeywords(std::vector<JsonMember>& members, int depth, bool joins) {
    std::vector<JsonMember> properties;
    std::vector<JsonValue> required;
    const std::size_t num_declared = random_.Below(std::size(kNames) + 1);
    for (const std::string_view name : std::span(kNames).first(num_declared)) {
      properties.push_back({std::string(name), Schema(depth - 1, joins)});
      if (random_.Below(3) == 0) required.push_back(JsonValue::String(std::string(name)));
    }
    if (num_declared == std::size(kNames) && random_.Below(2) == 0) {
      required.push_back(JsonValue::String(std::string(kOtherName)));
    }
    members.push_back({"properties", JsonValue::Object(std::move(properties))});
    if (!required.empty()) members.push_back({"required", JsonValue::Array(std::move(required))});
    if (random_.Below(2) == 0) {
      members.push_back({"additionalProperties", random_.Below(2) == 0 ? JsonValue::Boolean(false)
                                                                       : Schema(depth - 1, joins)});
    }
  }

  void AddArrayKeywords(std::vector<JsonMember>& members, int depth, bool joins) {
    if (random_.Below(2) == 0) members.push_back({"items", Schema(depth - 1, joins)});
    if (random_.Below(3) == 0) members.push_back({"prefixItems", Schemas(depth, joins)});
    if (random_.Below(3) == 0) members.push_back({"minItems", Count(3)});
    if (random_.Below(3) == 0) members.push_back({"maxItems", Count(4)});
  }

  TestRandom& random_;
};

std::string AnswerOf(const std::vector<TokenId>& ids) {
  ChatParserOptions options;
  options.start = Channel::kResponse;
  return ValueOf(ParseReply(NanoTokenizer(), ids, options)).content;
}

TEST(GrammarProperty, LetsThroughExactlyWhatTheSchemaAllows) {
  TestRandom random(20240);
  RandomSchemas schemas(random);
  int num_schemas = 0;
  int num_accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    const bool joins = round % 3 == 0;
    const JsonValue schema = schemas.Root(joins);
    ReplyFormat format;
    format.content_schema = schema;
    const auto grammar = TokenGrammar::Compile(format, NanoTrie());
    if (!grammar) {
      // Without a value, or too much at once; never for a keyword of these.
      ASSERT_EQ(grammar.error().message.find("this keyword"), std::string::npos)
          << grammar.error().message;
      if (grammar.error().code != ErrorCode::kUsage) continue;
      for (int i = 0; i < 50; ++i) {
        const JsonValue value = schemas.Value(2);
        ASSERT_FALSE(IsValid(value, schema, schema)) << WritePythonJson(schema) << '\n'
                                                     << WritePythonJson(value);
      }
      continue;
    }
    ++num_schemas;
    for (int i = 0; i < 40; ++i) {
      const JsonValue value = schemas.Value(3);
      const std::string text = WritePythonJson(value);
      const bool accepted = Accepts(*grammar, text);
      const bool valid = IsValid(value, schema, schema);
      num_accepted += accepted ? 1 : 0;
      if (joins) {
        ASSERT_LE(accepted, valid) << WritePythonJson(schema) << '\n' << text;
      } else {
        ASSERT_EQ(accepted, valid) << WritePythonJson(schema) << '\n' << text;
      }
    }
  }
  // The comparison is worth something only if both answers are common.
  EXPECT_GT(num_schemas, 800);
  EXPECT_GT(num_accepted, 3000);
}

TEST(GrammarProperty, RandomAllowedTokensEndInAValidAnswer) {
  TestRandom random(99);
  RandomSchemas schemas(random);
  int num_replies = 0;
  for (int round = 0; round < 400; ++round) {
    const JsonValue schema = schemas.Root(true);
    ReplyFormat format;
    format.content_schema = schema;
    const auto grammar = TokenGrammar::Compile(format, NanoTrie());
    if (!grammar) continue;
    for (int i = 0; i < 3; ++i) {
      GrammarMatcher matcher = Matcher(*grammar);
      const auto ids = RandomReply(matcher, NanoTokenizer(), random, random.Below(60));
      ASSERT_FALSE(ids.empty()) << WritePythonJson(schema);
      const std::string text = AnswerOf(ids);
      const auto value = ParseJson(text);
      ASSERT_TRUE(value) << WritePythonJson(schema) << '\n' << text;
      // std::regex knows ASCII alone.
      const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
      if (!ascii || text.find("\\u") != std::string::npos) continue;
      ASSERT_TRUE(IsValid(*value, schema, schema)) << WritePythonJson(schema) << '\n' << text;
      ++num_replies;
    }
  }
  EXPECT_GT(num_replies, 200);
}

TEST(GrammarProperty, ValidAnswersAreTakenHoweverTheyAreCutIntoTokens) {
  TestRandom random(5);
  RandomSchemas schemas(random);
  const auto grammar = Compile(JsonFormat("true"));
  for (int round = 0; round < 300; ++round) {
    const JsonValue value = schemas.Value(4);
    for (std::string text : {WritePythonJson(value), WriteCompactSortedJson(value)}) {
      if (round % 3 == 0) {
        text = "[\"";
        AppendJsonEscaped(RandomText(random, 30), text);
        text += "\"]";
      }
      const auto ids = RandomIds(NanoTokenizer(), text + std::string(kEndOfAnswer), random);
      GrammarMatcher matcher = Matcher(grammar);
      ASSERT_EQ(PushAll(matcher, ids), ids.size()) << text;
      ASSERT_TRUE(matcher.ended());
    }
  }
}

TEST(GrammarProperty, RandomAllowedTokensEndInValidCalls) {
  TestRandom random(17);
  const JsonValue parameters = ValueOf(ParseJson(R"({"type":"object","properties":{
      "a":{"type":"string","maxLength":9},"b":{"type":["integer","null"],"minimum":-3},
      "c":{"anyOf":[{"type":"string","enum":["x","y"]},{"type":"array","items":{"type":"boolean"}}]},
      "d":{"type":"object","properties":{"e":{"type":"number"}},"required":["e"],
           "additionalProperties":false}},
      "required":["a","c"],"additionalProperties":false})"));
  ReplyFormat format;
  format.calls = ReplyFormat::Calls::kRequired;
  format.tools.push_back(Tool("f", WritePythonJson(parameters)));
  const auto grammar = Compile(format);
  for (int round = 0; round < 150; ++round) {
    GrammarMatcher matcher = Matcher(grammar, Channel::kThink);
    const auto ids = RandomReply(matcher, NanoTokenizer(), random, random.Below(80));
    ASSERT_FALSE(ids.empty());
    const ChatReply reply = ValueOf(ParseReply(NanoTokenizer(), ids));
    ASSERT_GE(reply.tool_calls.size(), 1u);
    EXPECT_EQ(reply.finish_reason, FinishReason::kToolCalls);
    for (const ToolCall& call : reply.tool_calls) {
      EXPECT_EQ(call.name, "f");
      const auto arguments = ParseJson(call.arguments);
      ASSERT_TRUE(arguments) << call.arguments;
      EXPECT_TRUE(IsValid(*arguments, parameters, parameters)) << call.arguments;
    }
  }
}

}  // namespace
}  // namespace megalith::text::grammar
