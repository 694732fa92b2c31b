#include "text/grammar/pattern.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace megalith::text::grammar {
namespace {

constexpr int kMaxGroupDepth = 64;
constexpr std::size_t kMaxNfaStates = 20'000;
constexpr std::uint32_t kMaxRepetitions = 4096;

struct Fragment {
  std::size_t start;
  std::size_t end;
};

struct Nfa {
  struct Edge {
    CodePointSet set;  // empty: reads nothing
    std::size_t target;
  };
  std::vector<std::vector<Edge>> states;

  std::size_t NewState() {
    states.emplace_back();
    return states.size() - 1;
  }
  void Link(std::size_t from, std::size_t to) { states[from].push_back({{}, to}); }
};

// What a part of a pattern is, before it becomes states: repetition needs it several times.
struct Node {
  enum class Kind { kSet, kSequence, kAlternatives, kRepeat };
  Kind kind = Kind::kSequence;
  CodePointSet set;            // kSet
  std::vector<Node> children;  // kRepeat: one
  std::uint32_t min = 0;       // kRepeat
  std::optional<std::uint32_t> max;
};

CodePointSet Digits() { return CodePointSet({{'0', '9'}}); }
CodePointSet WordCharacters() {
  return CodePointSet({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
}
// WhiteSpace and LineTerminator of ECMA-262.
CodePointSet Spaces() {
  return CodePointSet({{'\t', '\r'},
                       {' ', ' '},
                       {0xA0, 0xA0},
                       {0x1680, 0x1680},
                       {0x2000, 0x200A},
                       {0x2028, 0x2029},
                       {0x202F, 0x202F},
                       {0x205F, 0x205F},
                       {0x3000, 0x3000},
                       {0xFEFF, 0xFEFF}});
}
CodePointSet LineTerminators() {
  return CodePointSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  Result<Node> Parse() {
    Node pattern;
    pattern.kind = Node::Kind::kAlternatives;
    do {
      Node whole;
      if (!Take('^')) whole.children.push_back(Anything());
      MEGALITH_ASSIGN_OR_RETURN(Node sequence, ParseSequence(0));
      whole.children.push_back(std::move(sequence));
      if (!Take('$')) whole.children.push_back(Anything());
      if (offset_ < pattern_.size() && pattern_[offset_] != '|') {
        if (pattern_[offset_] == ')') return Bad("')' without '('");
        return Unsupported("'$' that does not end the pattern");
      }
      pattern.children.push_back(std::move(whole));
    } while (Take('|'));
    return pattern;
  }

 private:
  static Node SetNode(CodePointSet set) {
    Node node;
    node.kind = Node::Kind::kSet;
    node.set = std::move(set);
    return node;
  }
  static Node Repeat(Node child, std::uint32_t min, std::optional<std::uint32_t> max) {
    Node node;
    node.kind = Node::Kind::kRepeat;
    node.children.push_back(std::move(child));
    node.min = min;
    node.max = max;
    return node;
  }
  static Node Anything() { return Repeat(SetNode(CodePointSet::All()), 0, std::nullopt); }

  tl::unexpected<Error> Bad(std::string_view what) const {
    return Fail(ErrorCode::kUsage, "byte {} of the pattern: {}", offset_, what);
  }
  tl::unexpected<Error> Unsupported(std::string_view what) const {
    return Fail(ErrorCode::kUnsupported, "byte {} of the pattern: {}", offset_, what);
  }

  bool AtEnd() const { return offset_ >= pattern_.size(); }
  char Peek() const { return AtEnd() ? '\0' : pattern_[offset_]; }
  bool Take(char c) {
    if (AtEnd() || pattern_[offset_] != c) return false;
    ++offset_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (!pattern_.substr(offset_).starts_with(word)) return false;
    offset_ += word.size();
    return true;
  }
  // The pattern is valid UTF-8: it comes from JSON.
  char32_t TakeCodePoint() {
    const Utf8Step step = DecodeUtf8(pattern_, offset_);
    offset_ += step.length_bytes;
    return step.code_point;
  }

  Result<Node> ParseAlternatives(int depth) {
    Node node;
    node.kind = Node::Kind::kAlternatives;
    do {
      MEGALITH_ASSIGN_OR_RETURN(Node sequence, ParseSequence(depth));
      node.children.push_back(std::move(sequence));
    } while (Take('|'));
    return node;
  }

  // Up to '|', ')', '$' or the end.
  Result<Node> ParseSequence(int depth) {
    Node node;
    while (!AtEnd() && Peek() != '|' && Peek() != ')' && Peek() != '$') {
      MEGALITH_ASSIGN_OR_RETURN(Node atom, ParseAtom(depth));
      MEGALITH_ASSIGN_OR_RETURN(atom, ParseQuantifier(std::move(atom)));
      node.children.push_back(std::move(atom));
    }
    return node;
  }

  Result<Node> ParseAtom(int depth) {
    switch (Peek()) {
      case '^':
        return Unsupported("'^' that does not begin the pattern");
      case '(':
        return ParseGroup(depth);
      case '[':
        return ParseClass();
      case '.':
        ++offset_;
        return SetNode(LineTerminators().Complement());
      case '\\': {
        MEGALITH_ASSIGN_OR_RETURN(CodePointSet set, ParseEscape(false));
        return SetNode(std::move(set));
      }
      case '*':
      case '+':
      case '?':
      case '{':
        return Bad("a quantifier with nothing before it");
      case '}':
      case ']':
        return Bad("an unescaped bracket");
      default: {
        const char32_t code_point = TakeCodePoint();
        return SetNode(CodePointSet({{code_point, code_point}}));
      }
    }
  }

  Result<Node> ParseGroup(int depth) {
    if (depth == kMaxGroupDepth) return Unsupported("groups nested too deeply");
    ++offset_;
    if (Peek() == '?') {
      if (pattern_.substr(offset_).starts_with("?<") &&
          !pattern_.substr(offset_).starts_with("?<=") &&
          !pattern_.substr(offset_).starts_with("?<!")) {
        const std::size_t end = pattern_.find('>', offset_);
        if (end == std::string_view::npos) return Bad("a group's name without '>'");
        offset_ = end + 1;
      } else if (!TakeWord("?:")) {
        return Unsupported("look-ahead, look-behind or flags");
      }
    }
    MEGALITH_ASSIGN_OR_RETURN(Node node, ParseAlternatives(depth + 1));
    if (Peek() == '$') return Unsupported("'$' that does not end the pattern");
    if (!Take(')')) return Bad("')' expected, the pattern ends");
    return node;
  }

  Result<Node> ParseQuantifier(Node atom) {
    std::uint32_t min = 0;
    std::optional<std::uint32_t> max;
    if (Take('*')) {
    } else if (Take('+')) {
      min = 1;
    } else if (Take('?')) {
      max = 1;
    } else if (Take('{')) {
      MEGALITH_ASSIGN_OR_RETURN(min, ParseCount());
      max = min;
      if (Take(',')) {
        max.reset();
        if (Peek() != '}') {
          MEGALITH_ASSIGN_OR_RETURN(max, ParseCount());
        }
      }
      if (!Take('}')) return Bad("'}' expected");
      if (max && *max < min) return Bad("a quantifier whose numbers are out of order");
    } else {
      return atom;
    }
    Take('?');
    if (Peek() == '*' || Peek() == '+' || Peek() == '?' || Peek() == '{') {
      return Bad("a quantifier behind a quantifier");
    }
    return Repeat(std::move(atom), min, max);
  }

  Result<std::uint32_t> ParseCount() {
    if (Peek() < '0' || Peek() > '9') return Bad("a number expected");
    std::uint32_t count = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      count = count * 10 + static_cast<std::uint32_t>(pattern_[offset_++] - '0');
      if (count > kMaxRepetitions) return Unsupported("a quantifier above 4096");
    }
    return count;
  }

  Result<Node> ParseClass() {
    ++offset_;
    const bool negated = Take('^');
    std::vector<CodePointRange> ranges;
    while (!Take(']')) {
      if (AtEnd()) return Bad("']' expected, the pattern ends");
      MEGALITH_ASSIGN_OR_RETURN(const CodePointSet first, ParseClassAtom());
      if (Peek() == '-' && offset_ + 1 < pattern_.size() && pattern_[offset_ + 1] != ']') {
        ++offset_;
        MEGALITH_ASSIGN_OR_RETURN(const CodePointSet last, ParseClassAtom());
        if (!IsOne(first) || !IsOne(last)) return Bad("a class as the end of a range");
        const CodePointRange range = {first.ranges()[0].first, last.ranges()[0].first};
        if (range.last < range.first) return Bad("a range whose ends are out of order");
        ranges.push_back(range);
      } else {
        ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
      }
    }
    CodePointSet set(std::move(ranges));
    return SetNode(negated ? set.Complement() : std::move(set));
  }

  static bool IsOne(const CodePointSet& set) {
    return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last;
  }

  Result<CodePointSet> ParseClassAtom() {
    if (AtEnd()) return Bad("']' expected, the pattern ends");
    if (Peek() == '\\') return ParseEscape(true);
    const char32_t code_point = TakeCodePoint();
    return CodePointSet({{code_point, code_point}});
  }

  Result<CodePointSet> ParseEscape(bool in_class) {
    ++offset_;
    if (AtEnd()) return Bad("a character expected behind '\\'");
    const auto one = [](char32_t code_point) { return CodePointSet({{code_point, code_point}}); };
    const char c = Peek();
    const bool is_alphanumeric =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!is_alphanumeric) return one(TakeCodePoint());
    ++offset_;
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return Digits().Complement();
      case 'w':
        return WordCharacters();
      case 'W':
        return WordCharacters().Complement();
      case 's':
        return Spaces();
      case 'S':
        return Spaces().Complement();
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        if (Peek() >= '0' && Peek() <= '9') return Bad("an octal escape");
        return one(0);
      case 'b':
        if (in_class) return one('\b');
        return Unsupported("\\b");
      case 'x': {
        MEGALITH_ASSIGN_OR_RETURN(const char32_t code_point, ParseHex(2));
        return one(code_point);
      }
      case 'u': {
        MEGALITH_ASSIGN_OR_RETURN(const char32_t code_point, ParseUnicodeEscape());
        return one(code_point);
      }
      default:
        if (c >= '1' && c <= '9') return Unsupported("a back-reference");
        return Unsupported("this escape");
    }
  }

  Result<char32_t> ParseHex(int num_digits) {
    char32_t value = 0;
    for (int i = 0; i < num_digits; ++i) {
      const char c = Peek();
      if (c >= '0' && c <= '9') {
        value = value * 16 + static_cast<char32_t>(c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        value = value * 16 + static_cast<char32_t>((c | 0x20) - 'a' + 10);
      } else {
        return Bad("a hexadecimal digit expected");
      }
      ++offset_;
    }
    return value;
  }

  Result<char32_t> ParseUnicodeEscape() {
    char32_t value = 0;
    if (Take('{')) {
      do {
        MEGALITH_ASSIGN_OR_RETURN(const char32_t digit, ParseHex(1));
        value = value * 16 + digit;
        if (value > kMaxCodePoint) return Bad("a code point of at most U+10FFFF expected");
      } while (!Take('}'));
    } else {
      MEGALITH_ASSIGN_OR_RETURN(value, ParseHex(4));
      if (value >= 0xD800 && value <= 0xDBFF && TakeWord("\\u")) {
        MEGALITH_ASSIGN_OR_RETURN(const char32_t low, ParseHex(4));
        if (low < 0xDC00 || low > 0xDFFF) return Bad("a low surrogate expected");
        value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
      }
    }
    if (value >= 0xD800 && value <= 0xDFFF) return Unsupported("half a surrogate pair");
    return value;
  }

  std::string_view pattern_;
  std::size_t offset_ = 0;
};

// Adds the states of a part; nothing if there are too many.
std::optional<Fragment> AddNode(Nfa& nfa, const Node& node) {
  if (nfa.states.size() > kMaxNfaStates) return std::nullopt;
  const Fragment whole = {nfa.NewState(), nfa.NewState()};
  switch (node.kind) {
    case Node::Kind::kSet:
      // An empty class such as [] matches nothing: no edge.
      if (!node.set.empty()) nfa.states[whole.start].push_back({node.set, whole.end});
      return whole;
    case Node::Kind::kSequence: {
      std::size_t at = whole.start;
      for (const Node& child : node.children) {
        const auto part = AddNode(nfa, child);
        if (!part) return std::nullopt;
        nfa.Link(at, part->start);
        at = part->end;
      }
      nfa.Link(at, whole.end);
      return whole;
    }
    case Node::Kind::kAlternatives:
      for (const Node& child : node.children) {
        const auto part = AddNode(nfa, child);
        if (!part) return std::nullopt;
        nfa.Link(whole.start, part->start);
        nfa.Link(part->end, whole.end);
      }
      return whole;
    case Node::Kind::kRepeat: {
      std::size_t at = whole.start;
      // The last copy is the one that may repeat for ever.
      const std::uint32_t num_copies = node.max ? *node.max : std::max(node.min, 1u);
      for (std::uint32_t i = 0; i < num_copies; ++i) {
        const auto part = AddNode(nfa, node.children[0]);
        if (!part) return std::nullopt;
        if (i >= node.min) nfa.Link(at, whole.end);
        nfa.Link(at, part->start);
        if (!node.max && i + 1 == num_copies) nfa.Link(part->end, part->start);
        at = part->end;
      }
      nfa.Link(at, whole.end);
      return whole;
    }
  }
  return std::nullopt;
}

class Determiniser {
 public:
  Determiniser(const Nfa& nfa, Fragment whole) : nfa_(nfa), whole_(whole) {}

  Result<CodePointDfa> Run() {
    FindOf({whole_.start});
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      MEGALITH_RETURN_IF_ERROR(AddEdges(i));
      if (sets_.size() > CodePointDfa::kMaxStates) {
        return Fail(ErrorCode::kUnsupported, "the pattern needs more than {} automaton states",
                    CodePointDfa::kMaxStates);
      }
    }
    return std::move(dfa_);
  }

 private:
  using StateSet = std::vector<std::size_t>;  // ascending

  // Number of the state for these and all that can be reached without reading.
  std::size_t FindOf(StateSet states) {
    std::set<std::size_t> closed(states.begin(), states.end());
    while (!states.empty()) {
      const std::size_t state = states.back();
      states.pop_back();
      for (const Nfa::Edge& edge : nfa_.states[state]) {
        if (edge.set.empty() && closed.insert(edge.target).second) states.push_back(edge.target);
      }
    }
    work_ += closed.size();
    // Only states that read something tell sets apart, and the last one.
    StateSet kept;
    for (const std::size_t state : closed) {
      const auto& edges = nfa_.states[state];
      if (state == whole_.end || std::any_of(edges.begin(), edges.end(), [](const Nfa::Edge& edge) {
            return !edge.set.empty();
          })) {
        kept.push_back(state);
      }
    }
    const auto [it, added] = numbers_.emplace(kept, sets_.size());
    if (added) {
      CodePointDfa::State state;
      state.accepting = std::binary_search(kept.begin(), kept.end(), whole_.end);
      dfa_.states.push_back(std::move(state));
      sets_.push_back(std::move(kept));
    }
    return it->second;
  }

  Status AddEdges(std::size_t number) {
    // Where what may follow changes: at these points a range begins or ends.
    std::map<char32_t, std::pair<StateSet, StateSet>> changes;  // begin, end
    for (const std::size_t state : StateSet(sets_[number])) {
      for (const Nfa::Edge& edge : nfa_.states[state]) {
        for (const CodePointRange& range : edge.set.ranges()) {
          changes[range.first].first.push_back(edge.target);
          changes[range.last + 1].second.push_back(edge.target);
          ++work_;
        }
      }
    }
    std::multiset<std::size_t> targets;
    std::vector<CodePointDfa::Edge> edges;
    for (auto it = changes.begin(); it != changes.end(); ++it) {
      for (const std::size_t target : it->second.second) targets.erase(targets.find(target));
      for (const std::size_t target : it->second.first) targets.insert(target);
      const auto next = std::next(it);
      if (targets.empty() || next == changes.end()) continue;
      work_ += targets.size();
      if (work_ > kMaxWork) return Fail(ErrorCode::kUnsupported, "the pattern is too complex");
      const std::size_t target = FindOf({targets.begin(), targets.end()});
      const CodePointRange range = {it->first, next->first - 1};
      if (!edges.empty() && edges.back().target == target &&
          edges.back().range.last + 1 == range.first) {
        edges.back().range.last = range.last;
      } else {
        edges.push_back({range, target});
      }
    }
    dfa_.states[number].edges = std::move(edges);
    return {};
  }

  // Set elements handled; a fraction of a second.
  static constexpr std::size_t kMaxWork = 2'000'000;

  const Nfa& nfa_;
  Fragment whole_;
  CodePointDfa dfa_;
  std::vector<StateSet> sets_;
  std::map<StateSet, std::size_t> numbers_;
  std::size_t work_ = 0;
};

}  // namespace

Result<CodePointDfa> CompilePattern(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Fail(ErrorCode::kUnsupported, "a pattern of at most {} bytes expected, {} found",
                kMaxPatternBytes, pattern.size());
  }
  MEGALITH_ASSIGN_OR_RETURN(const Node node, Parser(pattern).Parse());
  Nfa nfa;
  const auto whole = AddNode(nfa, node);
  if (!whole) {
    return Fail(ErrorCode::kUnsupported, "the pattern needs more than {} states", kMaxNfaStates);
  }
  return Determiniser(nfa, *whole).Run();
}

}  // namespace megalith::text::grammar
