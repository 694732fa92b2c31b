#include "text/grammar/characters.h"

#include <map>
#include <utility>
#include <vector>

#include "text/json_value.h"
#include "text/utf8.h"

namespace megalith::text::grammar {
namespace {

// The short escapes: character and letter.
constexpr std::pair<char, char> kShortEscapes[] = {
    {'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};

const CodePointSet& UnescapedIn(Spelling spelling) {
  static const CodePointSet json({{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kMaxCodePoint}});
  static const CodePointSet attribute({{0, '"' - 1}, {'"' + 1, '&' - 1}, {'&' + 1, kMaxCodePoint}});
  static const CodePointSet raw = CodePointSet::All();
  switch (spelling) {
    case Spelling::kJson:
      return json;
    case Spelling::kAttribute:
      return attribute;
    case Spelling::kRaw:
      return raw;
  }
  return raw;
}

// Adds edges for sets of characters that lead to one state; they share what follows the first
// bytes.
class CharacterEdges {
 public:
  CharacterEdges(GrammarBuilder& builder, StateId to) : builder_(builder), to_(to) {}

  void Add(StateId from, const CodePointSet& set) {
    for (const CodePointRange& range : set.ranges()) AddRange(from, range.first, range.last);
  }

 private:
  // Splits where the number of bytes changes.
  void AddRange(StateId from, char32_t first, char32_t last) {
    for (const char32_t border : {char32_t{0x7F}, char32_t{0x7FF}, char32_t{0xFFFF}}) {
      if (first <= border && border < last) {
        AddRange(from, first, border);
        AddRange(from, border + 1, last);
        return;
      }
    }
    const std::string low = Encode(first);
    const std::string high = Encode(last);
    AddSequence(from, low, high);
  }

  static std::string Encode(char32_t code_point) {
    std::string bytes;
    AppendUtf8(code_point, bytes);
    return bytes;
  }

  // All byte strings from `low` to `high`, both of the same length.
  void AddSequence(StateId from, std::string_view low, std::string_view high) {
    auto first = static_cast<std::uint8_t>(low[0]);
    auto last = static_cast<std::uint8_t>(high[0]);
    const std::string all_low(low.size() - 1, '\x80');
    const std::string all_high(low.size() - 1, '\xBF');
    if (first == last) {
      builder_.AddSymbol(from, first, StateBefore(low.substr(1), high.substr(1)));
      return;
    }
    if (low.substr(1) != all_low) {
      builder_.AddSymbol(from, first++, StateBefore(low.substr(1), all_high));
    }
    if (high.substr(1) != all_high) {
      builder_.AddSymbol(from, last--, StateBefore(all_low, high.substr(1)));
    }
    if (first <= last) builder_.AddSymbols(from, first, last, StateBefore(all_low, all_high));
  }

  // The state from which these byte strings lead to the end.
  StateId StateBefore(std::string_view low, std::string_view high) {
    if (low.empty()) return to_;
    std::pair<std::string, std::string> key(low, high);
    if (const auto it = states_.find(key); it != states_.end()) return it->second;
    const StateId state = builder_.NewState();
    states_.emplace(std::move(key), state);
    AddSequence(state, low, high);
    return state;
  }

  GrammarBuilder& builder_;
  StateId to_;
  std::map<std::pair<std::string, std::string>, StateId> states_;
};

// Edges for the characters of `set` that must be escaped, each in its one form.
void AddEscapes(GrammarBuilder& builder, StateId from, const CodePointSet& set, Spelling spelling,
                StateId to) {
  if (spelling == Spelling::kRaw) return;
  if (spelling == Spelling::kAttribute) {
    for (const char c : {'"', '&'}) {
      if (set.Contains(static_cast<char32_t>(c))) {
        builder.AddBytes(from, Spell({&c, 1}, spelling), to);
      }
    }
    return;
  }
  std::vector<char> escaped;
  for (char32_t c = 0; c <= U'\\'; ++c) {
    if (!UnescapedIn(spelling).Contains(c) && set.Contains(c)) {
      escaped.push_back(static_cast<char>(c));
    }
  }
  if (escaped.empty()) return;
  const StateId behind_backslash = builder.AddSymbol(from, '\\');
  for (const char c : escaped) {
    builder.AddBytes(behind_backslash, std::string_view(Spell({&c, 1}, spelling)).substr(1), to);
  }
}

bool ReadsAll(const CodePointDfa& dfa, std::size_t state, const CodePointSet& wanted) {
  std::vector<CodePointRange> loop;
  for (const CodePointDfa::Edge& edge : dfa.states[state].edges) {
    if (edge.target == state) loop.push_back(edge.range);
  }
  if (loop.empty()) return false;
  return CodePointSet(std::move(loop)).Complement().Intersection(wanted).empty();
}

}  // namespace

void AddDfa(GrammarBuilder& builder, StateId from, const CodePointDfa& dfa, Spelling spelling,
            StateId to) {
  std::vector<StateId> states;
  std::vector<CharacterEdges> edges;
  for (const CodePointDfa::State& state : dfa.states) {
    states.push_back(builder.NewState());
    edges.emplace_back(builder, states.back());
    if (state.accepting) builder.AddEmpty(states.back(), to);
  }
  builder.AddEmpty(from, states[0]);
  for (std::size_t i = 0; i < dfa.states.size() && !builder.overflowed(); ++i) {
    std::map<std::size_t, std::vector<CodePointRange>> by_target;
    for (const CodePointDfa::Edge& edge : dfa.states[i].edges) {
      by_target[edge.target].push_back(edge.range);
    }
    for (auto& [target, ranges] : by_target) {
      const CodePointSet set(std::move(ranges));
      edges[target].Add(states[i], set.Intersection(UnescapedIn(spelling)));
      AddEscapes(builder, states[i], set, spelling, states[target]);
    }
    if (spelling != Spelling::kAttribute && ReadsAll(dfa, i, UnescapedIn(spelling))) {
      builder.MarkText(
          states[i], spelling == Spelling::kJson ? TextClass::kJsonString : TextClass::kCharacters);
    }
  }
}

void AddPlainCharacter(GrammarBuilder& builder, StateId from, Spelling spelling, StateId to) {
  CharacterEdges(builder, to).Add(from, UnescapedIn(spelling));
}

void AddJsonEscape(GrammarBuilder& builder, StateId from, StateId to) {
  for (const auto& [c, letter] : kShortEscapes) {
    builder.AddSymbol(from, static_cast<std::uint8_t>(letter), to);
  }
  builder.AddSymbol(from, '/', to);
  // \uXXXX; halves of surrogate pairs only together.
  const StateId unit = builder.AddSymbol(from, 'u');
  const auto add_digits = [&builder](StateId state, std::string_view digits, StateId next) {
    for (const char digit : digits) {
      builder.AddSymbol(state, static_cast<std::uint8_t>(digit), next);
    }
  };
  constexpr std::string_view kAnyDigit = "0123456789abcdefABCDEF";
  const StateId three_more = builder.NewState();
  const StateId two_more = builder.NewState();
  const StateId one_more = builder.NewState();
  add_digits(unit, "0123456789abcefABCEF", three_more);
  add_digits(three_more, kAnyDigit, two_more);
  add_digits(two_more, kAnyDigit, one_more);
  add_digits(one_more, kAnyDigit, to);
  const StateId behind_d = builder.NewState();
  add_digits(unit, "dD", behind_d);
  add_digits(behind_d, "01234567", two_more);
  const StateId high_two_more = builder.NewState();
  const StateId high_one_more = builder.NewState();
  const StateId high_end = builder.NewState();
  add_digits(behind_d, "89abAB", high_two_more);
  add_digits(high_two_more, kAnyDigit, high_one_more);
  add_digits(high_one_more, kAnyDigit, high_end);
  const StateId low = builder.AddBytes(high_end, "\\u");
  const StateId low_three_more = builder.NewState();
  add_digits(low, "dD", low_three_more);
  add_digits(low_three_more, "cdefCDEF", two_more);
}

std::string Spell(std::string_view text, Spelling spelling) {
  std::string out;
  switch (spelling) {
    case Spelling::kRaw:
      out = text;
      break;
    case Spelling::kAttribute:
      for (const char c : text) {
        if (c == '&') {
          out += "&amp;";
        } else if (c == '"') {
          out += "&quot;";
        } else {
          out.push_back(c);
        }
      }
      break;
    case Spelling::kJson:
      AppendJsonEscaped(text, out);
      break;
  }
  return out;
}

}  // namespace megalith::text::grammar
