#pragma once

// JSON schemas as rules of a grammar.

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "text/grammar/byte_grammar.h"
#include "text/grammar/characters.h"
#include "text/grammar/schema_shape.h"
#include "text/json_value.h"

namespace megalith::text::grammar {

/// White space: behind a line break at most so many spaces, or half as many tabs.
inline constexpr std::uint32_t kMaxIndentation = 64;

/// Rules that all schemas share.
struct JsonRules {
  /// Where white space may be: nothing, one space, or a line break and indentation.
  RuleId gap = 0;
  RuleId string = 0;  ///< any, with its quotes
  RuleId number = 0;
  RuleId integer = 0;

  static JsonRules Add(GrammarBuilder& builder);
};

/// Compiles one schema. Nothing it adds to the builder is reached from outside but by the rules it
/// returns.
class SchemaCompiler {
 public:
  /// `path`: of the schema, for messages. `builder` and `schema` must outlive this.
  SchemaCompiler(GrammarBuilder& builder, const JsonRules& rules, const JsonValue& schema,
                 std::string path);

  /// The JSON texts of the values that satisfy the schema. Errors as SchemaReader::Read, and
  /// kOutOfRange if there are too many states.
  Result<RuleId> CompileValue();

  /// The argument elements of a tool call, for a schema of their object. Like the members of an
  /// object, except that undeclared ones need a word in the schema: it has additionalProperties, or
  /// declares none at all.
  Result<RuleId> CompileArguments();

 private:
  // A rule that is called already and has no content yet.
  struct Pending {
    GrammarBuilder::Rule rule;
    Conjunction conjunction;
    TypeSet types;
    Spelling spelling;
  };
  using Key = std::tuple<std::vector<const JsonValue*>, TypeSet, Spelling>;

  RuleId RuleOf(const Conjunction& conjunction, TypeSet types = kAllTypes,
                Spelling spelling = Spelling::kJson);
  Status CompilePending();
  Status AddShape(const Shape& shape, Spelling spelling, StateId from, StateId to);
  void AddLiterals(const Shape& shape, Spelling spelling, StateId from, StateId to);
  StateId AddLiteral(const JsonValue& literal, StateId from);
  void AddNumbers(const Shape& shape, StateId from, StateId to);
  Status AddString(const Shape& shape, Spelling spelling, StateId from, StateId to);
  Result<CodePointDfa> CompilePatterns(const Shape& shape) const;
  void AddArray(const Shape& shape, StateId from, StateId to);
  void AddObject(const Shape& shape, StateId from, StateId to);
  void AddArguments(const Shape& shape, StateId from, StateId to);
  void AddArgument(const Conjunction& value, StateId behind_key, StateId to);
  StateId AddColon(StateId from);
  Status CheckStates() const;

  GrammarBuilder& builder_;
  const JsonRules& rules_;
  SchemaReader reader_;
  std::string path_;
  std::map<Key, RuleId> known_;
  std::deque<Pending> pending_;
};

}  // namespace megalith::text::grammar
