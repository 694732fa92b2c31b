#pragma once

// A pushdown automaton over symbols: rules, each a nondeterministic automaton whose edges read a
// symbol, count, or call another rule and go on behind it. Plain data once built.
//
// Every state of a finished grammar can reach the end of the whole text: what cannot is taken out
// when the grammar is built. Together with single-byte tokens this is why a token mask is never
// empty.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/grammar/symbols.h"

namespace megalith::text::grammar {

using StateId = std::uint32_t;
using RuleId = std::uint32_t;

inline constexpr std::uint32_t kNoLimit = std::numeric_limits<std::uint32_t>::max();

/// Rules called inside each other at one moment: bounds the nesting of the text that comes out
/// below what JSON parsers take (kMaxJsonDepth).
inline constexpr std::uint32_t kMaxCallDepth = 100;

struct Edge {
  enum class Kind : std::uint8_t {
    kSymbols,       ///< reads one symbol of [first, last]
    kEmpty,         ///< reads nothing
    kCall,          ///< `operand`: the rule; `target`: where it goes on behind it
    kCountUp,       ///< reads nothing; only if the frame's count is below `operand`: adds 1, but
                    ///< not beyond `other`
    kCountAtLeast,  ///< reads nothing; only if the frame's count is at least `operand`
    kCountDigit,    ///< reads digit `operand` (0: the first) of the frame's count, written in
                    ///< decimal; if it is the last one goes to `other`, else to `target`
  };
  Kind kind;
  Symbol first = 0;
  Symbol last = 0;
  StateId target = 0;
  std::uint32_t operand = 0;
  std::uint32_t other = 0;
};

struct StateInfo {
  /// Rules that must still be called inside each other from here to the end of the rule;
  /// ByteGrammar::kUnreachable: the end cannot be reached.
  std::uint32_t min_depth = 0;
  TextClass text_class = TextClass::kNone;
  bool is_end = false;  ///< of its rule
  bool is_free = false;
  /// With a text class: characters a text may still have is text_limit - count + 1; kNoLimit.
  std::uint32_t text_limit = kNoLimit;
};

class ByteGrammar {
 public:
  static constexpr std::uint32_t kUnreachable = kNoLimit;

  std::size_t num_states() const { return states_.size(); }
  std::size_t num_edges() const { return edges_.size(); }
  const StateInfo& state(StateId id) const { return states_[id]; }
  /// Edges to states that lead nowhere are not among them.
  std::span<const Edge> edges(StateId id) const {
    return std::span(edges_).subspan(first_edge_[id], first_edge_[id + 1] - first_edge_[id]);
  }
  StateId rule_start(RuleId rule) const { return rule_starts_[rule]; }

  /// Bytes that no edge tells apart have the same class, 0 .. num_byte_classes()-1.
  std::size_t num_byte_classes() const { return num_byte_classes_; }
  std::uint8_t byte_class(std::uint8_t byte) const { return byte_classes_[byte]; }

 private:
  friend class GrammarBuilder;
  std::vector<StateInfo> states_;
  std::vector<std::uint32_t> first_edge_;  // [num_states + 1] into edges_
  std::vector<Edge> edges_;
  std::vector<StateId> rule_starts_;
  std::array<std::uint8_t, kNumBytes> byte_classes_{};
  std::size_t num_byte_classes_ = 0;
};

/// Adds states and edges. Beyond the limits nothing more is added and overflowed() tells so: check
/// it after each larger part; Build refuses in any case.
/// A rule that stands for a schema of a request.
struct NeededRule {
  RuleId id = 0;
  std::string path;  ///< of the schema, for messages
};

class GrammarBuilder {
 public:
  static constexpr std::size_t kMaxStates = 200'000;
  static constexpr std::size_t kMaxEdges = 1'000'000;

  struct Rule {
    RuleId id = 0;
    StateId start = 0;
    StateId end = 0;
  };

  StateId NewState();
  Rule NewRule();

  void AddSymbols(StateId from, Symbol first, Symbol last, StateId to);
  void AddSymbol(StateId from, Symbol symbol, StateId to) { AddSymbols(from, symbol, symbol, to); }
  void AddEmpty(StateId from, StateId to);
  void AddCall(StateId from, RuleId rule, StateId to);
  /// `cap`: the count stays there when it gets that far.
  void AddCountUp(StateId from, std::uint32_t limit, std::uint32_t cap, StateId to);
  void AddCountAtLeast(StateId from, std::uint32_t min, StateId to);
  /// The frame's count in decimal. REQUIRES a count below 1000 there.
  void AddCountInDecimal(StateId from, StateId to);

  /// Reads these bytes; returns the state behind them.
  StateId AddBytes(StateId from, std::string_view bytes);
  /// The same, ending in `to`. REQUIRES !bytes.empty().
  void AddBytes(StateId from, std::string_view bytes, StateId to);
  StateId AddSymbol(StateId from, Symbol symbol);
  StateId AddCall(StateId from, RuleId rule);

  /// The state comes back to itself, or to one like it, after each character of the class; see
  /// StateInfo::text_limit.
  void MarkText(StateId state, TextClass text_class, std::uint32_t text_limit = kNoLimit);
  /// Tokens need not be restricted while this state is among those reached.
  void MarkFree(StateId state) { states_[state].is_free = true; }

  /// A place to go back to.
  struct Mark {
    std::size_t num_states;
    std::size_t num_edges;
    std::size_t num_rules;
  };
  Mark GetMark() const { return {states_.size(), edges_.size(), rules_.size()}; }
  /// Takes everything out that was added since. REQUIRES that no edge added since starts at an
  /// older state.
  void Rollback(const Mark& mark);

  bool overflowed() const { return overflowed_; }
  std::size_t num_states() const { return states_.size(); }

  /// kOutOfRange if there are too many states; kUsage if `root`, or a rule of `needed` called by
  /// it, has no text at all, or only texts nested more deeply than kMaxCallDepth.
  Result<ByteGrammar> Build(const Rule& root, std::span<const NeededRule> needed) &&;

 private:
  struct OwnedEdge {
    StateId from;
    Edge edge;
  };

  void AddEdge(StateId from, const Edge& edge);
  void FindMinDepths();

  std::vector<StateInfo> states_;
  std::vector<OwnedEdge> edges_;
  std::vector<Rule> rules_;
  bool overflowed_ = false;
};

}  // namespace megalith::text::grammar
