#include "text/grammar/schema_compiler.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "text/grammar/pattern.h"
#include "text/grammar/string_format.h"

namespace megalith::text::grammar {
namespace {

// The characters of a text and its end, with a bounded length.
void AddText(GrammarBuilder& builder, StateId from, Spelling spelling, std::uint32_t min,
             std::optional<std::uint32_t> max, StateId to) {
  // Counting stops where it makes no difference any more.
  const std::uint32_t limit = max.value_or(kNoLimit);
  const StateId character = builder.NewState();
  const StateId between = min == 0 && !max ? character : builder.NewState();
  builder.AddEmpty(from, between);
  if (between != character) builder.AddCountUp(between, limit, max.value_or(min), character);
  AddPlainCharacter(builder, character, spelling, between);
  if (spelling == Spelling::kJson) {
    AddJsonEscape(builder, builder.AddSymbol(character, '\\'), between);
  }
  builder.MarkText(character,
                   spelling == Spelling::kJson ? TextClass::kJsonString : TextClass::kCharacters,
                   limit);
  builder.AddCountAtLeast(between, min, to);
}

std::vector<std::string_view> Views(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

}  // namespace

JsonRules JsonRules::Add(GrammarBuilder& builder) {
  const GrammarBuilder::Rule gap = builder.NewRule();
  builder.AddEmpty(gap.start, gap.end);
  builder.AddSymbol(gap.start, ' ', gap.end);
  const StateId line = builder.AddSymbol(gap.start, '\n');
  builder.AddEmpty(line, gap.end);
  for (const auto& [symbol, limit] :
       {std::pair{' ', kMaxIndentation}, std::pair{'\t', kMaxIndentation / 2}}) {
    const StateId between = builder.NewState();
    const StateId before = builder.NewState();
    builder.AddEmpty(line, between);
    builder.AddCountUp(between, limit, limit, before);
    builder.AddSymbol(before, static_cast<Symbol>(symbol), between);
    builder.AddEmpty(between, gap.end);
  }

  const GrammarBuilder::Rule string = builder.NewRule();
  const StateId end_quote = builder.NewState();
  AddText(builder, builder.AddSymbol(string.start, '"'), Spelling::kJson, 0, std::nullopt,
          end_quote);
  builder.AddSymbol(end_quote, '"', string.end);

  const GrammarBuilder::Rule number = builder.NewRule();
  AddNumber(builder, number.start, false, number.end);
  const GrammarBuilder::Rule integer = builder.NewRule();
  AddNumber(builder, integer.start, true, integer.end);
  return {gap.id, string.id, number.id, integer.id};
}

SchemaCompiler::SchemaCompiler(GrammarBuilder& builder, const JsonRules& rules,
                               const JsonValue& schema, std::string path)
    : builder_(builder), rules_(rules), reader_(schema, path), path_(std::move(path)) {}

Status SchemaCompiler::CheckStates() const {
  if (!builder_.overflowed()) return {};
  return Fail(ErrorCode::kOutOfRange,
              "{}: a schema that needs at most {} automaton states and {} edges expected", path_,
              GrammarBuilder::kMaxStates, GrammarBuilder::kMaxEdges);
}

Result<RuleId> SchemaCompiler::CompileValue() {
  MEGALITH_RETURN_IF_ERROR(reader_.CheckSize());
  const RuleId rule = RuleOf(reader_.root());
  MEGALITH_RETURN_IF_ERROR(CompilePending());
  return rule;
}

Result<RuleId> SchemaCompiler::CompileArguments() {
  MEGALITH_RETURN_IF_ERROR(reader_.CheckSize());
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<Shape> shapes, reader_.Read(reader_.root()));
  const GrammarBuilder::Rule rule = builder_.NewRule();
  for (const Shape& shape : shapes) {
    if ((shape.types & kObjectType) == 0) continue;
    if (shape.literals) {
      return Fail(ErrorCode::kUnsupported,
                  "{}: enum and const are not supported for all arguments together", path_);
    }
    AddArguments(shape, rule.start, rule.end);
  }
  MEGALITH_RETURN_IF_ERROR(CompilePending());
  return rule.id;
}

RuleId SchemaCompiler::RuleOf(const Conjunction& conjunction, TypeSet types, Spelling spelling) {
  Conjunction needed;
  std::vector<const JsonValue*> values;
  for (const SchemaPart& part : conjunction) {
    const bool says_nothing = part.value->is_boolean()
                                  ? part.value->boolean()
                                  : part.value->is_object() && part.value->members().empty();
    if (says_nothing || std::find(values.begin(), values.end(), part.value) != values.end()) {
      continue;
    }
    needed.push_back(part);
    values.push_back(part.value);
  }
  std::sort(values.begin(), values.end());
  Key key(std::move(values), types, spelling);
  if (const auto it = known_.find(key); it != known_.end()) return it->second;
  const GrammarBuilder::Rule rule = builder_.NewRule();
  known_.emplace(std::move(key), rule.id);
  pending_.push_back({rule, std::move(needed), types, spelling});
  return rule.id;
}

Status SchemaCompiler::CompilePending() {
  for (; !pending_.empty(); pending_.pop_front()) {
    const Pending& pending = pending_.front();
    MEGALITH_ASSIGN_OR_RETURN(std::vector<Shape> shapes, reader_.Read(pending.conjunction));
    for (Shape& shape : shapes) {
      shape.types &= pending.types;
      // Rules called by this one are added behind: `pending` stays where it is.
      MEGALITH_RETURN_IF_ERROR(
          AddShape(shape, pending.spelling, pending.rule.start, pending.rule.end));
      MEGALITH_RETURN_IF_ERROR(CheckStates());
    }
  }
  return CheckStates();
}

Status SchemaCompiler::AddShape(const Shape& shape, Spelling spelling, StateId from, StateId to) {
  if (shape.literals) {
    AddLiterals(shape, spelling, from, to);
    return {};
  }
  if ((shape.types & kNullType) != 0) builder_.AddBytes(from, "null", to);
  if ((shape.types & kBooleanType) != 0) {
    builder_.AddBytes(from, "true", to);
    builder_.AddBytes(from, "false", to);
  }
  if ((shape.types & kIntegerType) != 0) AddNumbers(shape, from, to);
  if ((shape.types & kStringType) != 0) {
    MEGALITH_RETURN_IF_ERROR(AddString(shape, spelling, from, to));
  }
  if ((shape.types & kArrayType) != 0) AddArray(shape, from, to);
  if ((shape.types & kObjectType) != 0) AddObject(shape, from, to);
  return {};
}

void SchemaCompiler::AddLiterals(const Shape& shape, Spelling spelling, StateId from, StateId to) {
  // Scalars share their beginnings; so a long list stays one state wide.
  std::map<std::pair<StateId, char>, StateId> tree;
  std::set<StateId> ends;
  for (const JsonValue* literal : *shape.literals) {
    if ((TypeOf(*literal) & shape.types) == 0) continue;
    if (literal->is_array() || literal->is_object()) {
      builder_.AddEmpty(AddLiteral(*literal, from), to);
      continue;
    }
    const std::string text =
        spelling == Spelling::kJson ? WritePythonJson(*literal) : Spell(literal->text(), spelling);
    StateId state = from;
    for (const char c : text) {
      const auto [it, added] = tree.emplace(std::pair(state, c), 0);
      if (added) it->second = builder_.AddSymbol(state, static_cast<std::uint8_t>(c));
      state = it->second;
      if (builder_.overflowed()) return;
    }
    if (ends.insert(state).second) builder_.AddEmpty(state, to);
  }
}

StateId SchemaCompiler::AddLiteral(const JsonValue& literal, StateId from) {
  if (!literal.is_array() && !literal.is_object()) {
    return builder_.AddBytes(from, WritePythonJson(literal));
  }
  const std::size_t num = literal.items().size() + literal.members().size();
  from = builder_.AddSymbol(from, literal.is_array() ? '[' : '{');
  for (std::size_t i = 0; i < num; ++i) {
    if (i > 0) from = builder_.AddSymbol(from, ',');
    from = builder_.AddCall(from, rules_.gap);
    if (literal.is_array()) {
      from = AddLiteral(literal.items()[i], from);
    } else {
      const JsonMember& member = literal.members()[i];
      from = builder_.AddBytes(from, "\"" + Spell(member.key, Spelling::kJson) + "\"");
      from = AddLiteral(member.value, AddColon(from));
    }
  }
  if (num > 0) from = builder_.AddCall(from, rules_.gap);
  return builder_.AddSymbol(from, literal.is_array() ? ']' : '}');
}

StateId SchemaCompiler::AddColon(StateId from) {
  const StateId colon = builder_.AddSymbol(from, ':');
  const StateId value = builder_.AddSymbol(colon, ' ');
  builder_.AddEmpty(colon, value);
  return value;
}

void SchemaCompiler::AddNumbers(const Shape& shape, StateId from, StateId to) {
  const bool integer = (shape.types & kFractionType) == 0;
  if (shape.bounds.any()) {
    AddBoundedNumber(builder_, from, shape.bounds, integer, to);
  } else {
    builder_.AddCall(from, integer ? rules_.integer : rules_.number, to);
  }
}

Result<CodePointDfa> SchemaCompiler::CompilePatterns(const Shape& shape) const {
  std::optional<CodePointDfa> all;
  for (const Shape::Pattern& pattern : shape.patterns) {
    auto dfa = CompilePattern(pattern.is_format
                                  ? PatternOfFormat(pattern.pattern, shape.max_length).value()
                                  : pattern.pattern);
    if (dfa && all) dfa = Intersect(*all, *dfa);
    if (!dfa) {
      return Fail(dfa.error().code, "{}: {}", pattern.path, dfa.error().message);
    }
    all = *std::move(dfa);
  }
  if (shape.min_length == 0 && !shape.max_length) return *std::move(all);
  auto limited = LimitLength(*all, shape.min_length, shape.max_length);
  if (!limited) {
    return Fail(limited.error().code, "{}: together with minLength and maxLength, {}",
                shape.patterns.front().path, limited.error().message);
  }
  return limited;
}

Status SchemaCompiler::AddString(const Shape& shape, Spelling spelling, StateId from, StateId to) {
  const bool quoted = spelling == Spelling::kJson;
  if (shape.patterns.empty() && shape.min_length == 0 && !shape.max_length && quoted) {
    builder_.AddCall(from, rules_.string, to);
    return {};
  }
  if (shape.max_length && *shape.max_length < shape.min_length) return {};
  StateId end = to;
  if (quoted) {
    from = builder_.AddSymbol(from, '"');
    end = builder_.NewState();
    builder_.AddSymbol(end, '"', to);
  }
  if (shape.patterns.empty()) {
    AddText(builder_, from, spelling, shape.min_length, shape.max_length, end);
    return {};
  }
  MEGALITH_ASSIGN_OR_RETURN(const CodePointDfa dfa, CompilePatterns(shape));
  AddDfa(builder_, from, dfa, spelling, end);
  return {};
}

void SchemaCompiler::AddArray(const Shape& shape, StateId from, StateId to) {
  const std::uint32_t min = shape.min_items;
  const std::uint32_t max = shape.max_items.value_or(kNoLimit);
  if (max < min) return;
  const StateId end = builder_.NewState();  // before the bracket
  builder_.AddSymbol(end, ']', to);
  const StateId begin = builder_.AddCall(builder_.AddSymbol(from, '['), rules_.gap);
  if (min == 0) builder_.AddEmpty(begin, end);
  // `at`: where an item can begin; behind a comma, but for the first.
  StateId at = begin;
  const auto num_prefix =
      static_cast<std::uint32_t>(std::min<std::size_t>(shape.num_prefix_items(), max));
  StateId behind = from;  // the last item so far
  for (std::uint32_t i = 0; i < num_prefix; ++i) {
    if (i > 0) at = builder_.AddCall(builder_.AddSymbol(behind, ','), rules_.gap);
    behind = builder_.AddCall(at, RuleOf(shape.ItemAt(i)));
    if (i + 1 >= min) builder_.AddCall(behind, rules_.gap, end);
  }
  const Conjunction rest = shape.ItemAt(num_prefix);
  if (max == num_prefix || IsNever(rest)) return;
  // All further items are alike and counted. Whether another one may follow is decided before the
  // comma, and the end is possible only where one is: nothing leads into a dead end.
  const std::uint32_t rest_min = min > num_prefix ? min - num_prefix : 0;
  const std::uint32_t rest_max = max == kNoLimit ? kNoLimit : max - num_prefix;
  const std::uint32_t cap = rest_max == kNoLimit ? rest_min : rest_max;
  const StateId item = builder_.NewState();
  const StateId behind_item = builder_.AddCall(item, RuleOf(rest));
  const StateId comma = builder_.NewState();
  builder_.AddCall(builder_.AddSymbol(comma, ','), rules_.gap, item);
  if (num_prefix == 0) {
    builder_.AddCountUp(begin, rest_max, cap, item);
  } else {
    builder_.AddCountUp(behind, rest_max, cap, comma);
  }
  builder_.AddCountUp(behind_item, rest_max, cap, comma);
  const StateId enough = builder_.NewState();
  builder_.AddCountAtLeast(behind_item, rest_min, enough);
  builder_.AddCall(enough, rules_.gap, end);
}

void SchemaCompiler::AddObject(const Shape& shape, StateId from, StateId to) {
  const std::vector<std::string> names = shape.MemberNames();
  const std::set<std::string_view> required(shape.required.begin(), shape.required.end());
  const StateId end = builder_.NewState();  // before the brace
  builder_.AddSymbol(end, '}', to);
  // Before name i: the first member can begin; or one behind a comma; the member before has ended;
  // or it and maybe others have been left out since, and only the end may come.
  StateId first = builder_.AddCall(builder_.AddSymbol(from, '{'), rules_.gap);
  StateId next = builder_.NewState();
  StateId after = builder_.NewState();
  StateId done = builder_.NewState();
  const auto add_comma = [&] {
    builder_.AddCall(builder_.AddSymbol(after, ','), rules_.gap, next);
    builder_.AddEmpty(after, done);
  };
  for (const std::string& name : names) {
    if (builder_.overflowed()) return;
    add_comma();
    const StateId next_first = builder_.NewState();
    const StateId next_next = builder_.NewState();
    const StateId next_after = builder_.NewState();
    const StateId next_done = builder_.NewState();
    if (!required.contains(name)) {
      builder_.AddEmpty(first, next_first);
      builder_.AddEmpty(next, next_next);
      builder_.AddEmpty(done, next_done);
    }
    const Conjunction value = shape.MemberNamed(name);
    if (!IsNever(value)) {
      const StateId quote = builder_.NewState();
      builder_.AddSymbol(first, '"', quote);
      builder_.AddSymbol(next, '"', quote);
      const StateId colon = AddColon(builder_.AddBytes(quote, Spell(name, Spelling::kJson) + "\""));
      builder_.AddCall(colon, RuleOf(value), next_after);
    }
    first = next_first;
    next = next_next;
    after = next_after;
    done = next_done;
  }
  add_comma();
  builder_.AddEmpty(first, end);
  builder_.AddCall(done, rules_.gap, end);
  const Conjunction additional = shape.AdditionalMembers();
  if (IsNever(additional)) return;
  const StateId key = builder_.NewState();
  builder_.AddEmpty(first, key);
  builder_.AddEmpty(next, key);
  const StateId behind_key = builder_.NewState();
  if (names.empty()) {
    builder_.AddCall(key, rules_.string, behind_key);
  } else {
    const StateId end_quote = builder_.NewState();
    AddDfa(builder_, builder_.AddSymbol(key, '"'), AllBut(Views(names)), Spelling::kJson,
           end_quote);
    builder_.AddSymbol(end_quote, '"', behind_key);
  }
  builder_.AddCall(AddColon(behind_key), RuleOf(additional), after);
}

void SchemaCompiler::AddArguments(const Shape& shape, StateId from, StateId to) {
  const std::vector<std::string> names = shape.MemberNames();
  const std::set<std::string_view> required(shape.required.begin(), shape.required.end());
  StateId at = from;
  for (const std::string& name : names) {
    if (builder_.overflowed()) return;
    const StateId next = builder_.NewState();
    if (!required.contains(name)) builder_.AddEmpty(at, next);
    const Conjunction value = shape.MemberNamed(name);
    if (!IsNever(value)) {
      const StateId tag = builder_.AddSymbol(at, kOpenMarker);
      AddArgument(value,
                  builder_.AddBytes(tag, "argument key=\"" + Spell(name, Spelling::kAttribute)),
                  next);
    }
    at = next;
  }
  builder_.AddEmpty(at, to);
  const Conjunction additional = shape.AdditionalMembers();
  if (IsNever(additional) || (additional.empty() && !names.empty())) return;
  const StateId more = builder_.NewState();
  builder_.AddEmpty(at, more);
  const StateId key = builder_.AddBytes(builder_.AddSymbol(more, kOpenMarker), "argument key=\"");
  const StateId behind_key = builder_.NewState();
  std::vector<std::string_view> taken = Views(names);
  taken.push_back("");
  AddDfa(builder_, key, AllBut(taken), Spelling::kAttribute, behind_key);
  AddArgument(additional, behind_key, more);
  builder_.AddEmpty(more, to);
}

// From inside the quotes of the key.
void SchemaCompiler::AddArgument(const Conjunction& value, StateId behind_key, StateId to) {
  static constexpr std::pair<std::string_view, TypeSet> kTypes[] = {
      {"string", kStringType}, {"number", kNumberType}, {"boolean", kBooleanType},
      {"null", kNullType},     {"array", kArrayType},   {"object", kObjectType}};
  const StateId type = builder_.AddBytes(behind_key, "\" type=\"");
  const StateId end = builder_.NewState();
  for (const auto& [name, types] : kTypes) {
    const StateId sep = builder_.AddBytes(type, std::string(name) + "\"");
    const Spelling spelling = types == kStringType ? Spelling::kRaw : Spelling::kJson;
    builder_.AddCall(builder_.AddSymbol(sep, kSepMarker), RuleOf(value, types, spelling), end);
  }
  const StateId close = builder_.AddBytes(builder_.AddSymbol(end, kCloseMarker), "argument");
  builder_.AddSymbol(close, kSepMarker, to);
}

}  // namespace megalith::text::grammar
