#include "text/grammar/code_point_dfa.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "text/utf8.h"

namespace megalith::text::grammar {
namespace {

// Numbers the states of a product as they are met.
template <typename Key>
class Numbering {
 public:
  std::size_t operator[](const Key& key) {
    const auto [it, added] = numbers_.emplace(key, keys_.size());
    if (added) keys_.push_back(key);
    return it->second;
  }
  std::size_t size() const { return keys_.size(); }
  const Key& key(std::size_t number) const { return keys_[number]; }

 private:
  std::map<Key, std::size_t> numbers_;
  std::vector<Key> keys_;
};

// Characters of the longest way through the states; empty if there is a circle.
std::optional<std::size_t> LongestWay(const CodePointDfa& dfa) {
  std::vector<std::size_t> num_into(dfa.states.size());
  for (const CodePointDfa::State& state : dfa.states) {
    for (const CodePointDfa::Edge& edge : state.edges) ++num_into[edge.target];
  }
  // States all of whose predecessors are done.
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < num_into.size(); ++i) {
    if (num_into[i] == 0) ready.push_back(i);
  }
  std::vector<std::size_t> lengths(dfa.states.size());
  std::size_t longest = 0;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const std::size_t from = ready[i];
    longest = std::max(longest, lengths[from]);
    for (const CodePointDfa::Edge& edge : dfa.states[from].edges) {
      lengths[edge.target] = std::max(lengths[edge.target], lengths[from] + 1);
      if (--num_into[edge.target] == 0) ready.push_back(edge.target);
    }
  }
  if (ready.size() < dfa.states.size()) return std::nullopt;
  return longest;
}

tl::unexpected<Error> TooManyStates() {
  return Fail(ErrorCode::kUnsupported, "at most {} automaton states expected, more are needed",
              CodePointDfa::kMaxStates);
}

}  // namespace

bool CodePointDfa::Accepts(std::string_view text) const {
  std::size_t state = 0;
  for (std::size_t offset = 0; offset < text.size();) {
    const Utf8Step step = DecodeUtf8(text, offset);
    offset += step.length_bytes;
    const std::vector<Edge>& edges = states[state].edges;
    const auto edge = std::find_if(edges.begin(), edges.end(), [&step](const Edge& candidate) {
      return candidate.range.first <= step.code_point && step.code_point <= candidate.range.last;
    });
    if (edge == edges.end()) return false;
    state = edge->target;
  }
  return states[state].accepting;
}

Result<CodePointDfa> Intersect(const CodePointDfa& a, const CodePointDfa& b) {
  CodePointDfa product;
  Numbering<std::pair<std::size_t, std::size_t>> numbers;
  numbers[{0, 0}];
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto [state_a, state_b] = numbers.key(i);
    const auto& edges_a = a.states[state_a].edges;
    const auto& edges_b = b.states[state_b].edges;
    CodePointDfa::State state;
    state.accepting = a.states[state_a].accepting && b.states[state_b].accepting;
    std::size_t x = 0;
    std::size_t y = 0;
    while (x < edges_a.size() && y < edges_b.size()) {
      const char32_t first = std::max(edges_a[x].range.first, edges_b[y].range.first);
      const char32_t last = std::min(edges_a[x].range.last, edges_b[y].range.last);
      if (first <= last) {
        state.edges.push_back({{first, last}, numbers[{edges_a[x].target, edges_b[y].target}]});
      }
      (edges_a[x].range.last < edges_b[y].range.last ? x : y) += 1;
    }
    product.states.push_back(std::move(state));
    if (numbers.size() > CodePointDfa::kMaxStates) return TooManyStates();
  }
  return product;
}

Result<CodePointDfa> LimitLength(const CodePointDfa& dfa, std::uint32_t min,
                                 std::optional<std::uint32_t> max) {
  // Counting costs a state for each length.
  const auto longest = LongestWay(dfa);
  const bool is_limited = max && (!longest || *longest > *max);
  CodePointDfa limited;
  Numbering<std::pair<std::size_t, std::uint32_t>> numbers;  // state, characters so far
  numbers[{0, 0}];
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto [number, length] = numbers.key(i);
    CodePointDfa::State state;
    state.accepting = dfa.states[number].accepting && length >= min;
    // Without a maximum all lengths from the minimum on are alike.
    const std::uint32_t next = is_limited || length < min ? length + 1 : length;
    if (!is_limited || length < *max) {
      for (const CodePointDfa::Edge& edge : dfa.states[number].edges) {
        state.edges.push_back({edge.range, numbers[{edge.target, next}]});
      }
    }
    limited.states.push_back(std::move(state));
    if (numbers.size() > CodePointDfa::kMaxStates) return TooManyStates();
  }
  return limited;
}

CodePointDfa AllBut(const std::vector<std::string_view>& texts) {
  // A tree of the texts; state 1 is where every other text ends up.
  std::vector<std::map<char32_t, std::size_t>> children(2);
  std::vector<bool> accepting = {true, true};
  for (const std::string_view text : texts) {
    std::size_t state = 0;
    for (std::size_t offset = 0; offset < text.size();) {
      const Utf8Step step = DecodeUtf8(text, offset);
      offset += step.length_bytes;
      const auto [it, added] = children[state].emplace(step.code_point, children.size());
      state = it->second;
      if (added) {
        children.emplace_back();
        accepting.push_back(true);
      }
    }
    accepting[state] = false;
  }
  CodePointDfa dfa;
  for (std::size_t i = 0; i < children.size(); ++i) {
    CodePointDfa::State state;
    state.accepting = accepting[i];
    std::vector<CodePointRange> own;
    for (const auto& [code_point, target] : children[i]) {
      own.push_back({code_point, code_point});
      state.edges.push_back({own.back(), target});
    }
    const CodePointSet others = CodePointSet(std::move(own)).Complement();
    for (const CodePointRange& range : others.ranges()) {
      state.edges.push_back({range, 1});
    }
    std::sort(state.edges.begin(), state.edges.end(),
              [](const CodePointDfa::Edge& a, const CodePointDfa::Edge& b) {
                return a.range.first < b.range.first;
              });
    dfa.states.push_back(std::move(state));
  }
  return dfa;
}

}  // namespace megalith::text::grammar
