#include "text/grammar/byte_grammar.h"

#include <algorithm>
#include <bitset>

namespace megalith::text::grammar {

StateId GrammarBuilder::NewState() {
  if (states_.size() >= kMaxStates) {
    overflowed_ = true;
    return static_cast<StateId>(states_.size() - 1);
  }
  states_.emplace_back();
  return static_cast<StateId>(states_.size() - 1);
}

GrammarBuilder::Rule GrammarBuilder::NewRule() {
  const Rule rule{static_cast<RuleId>(rules_.size()), NewState(), NewState()};
  states_[rule.end].is_end = true;
  rules_.push_back(rule);
  return rule;
}

void GrammarBuilder::AddEdge(StateId from, const Edge& edge) {
  if (edges_.size() >= kMaxEdges || overflowed_) {
    overflowed_ = true;
    return;
  }
  edges_.push_back({from, edge});
}

void GrammarBuilder::AddSymbols(StateId from, Symbol first, Symbol last, StateId to) {
  AddEdge(from, {Edge::Kind::kSymbols, first, last, to});
}

void GrammarBuilder::AddEmpty(StateId from, StateId to) {
  AddEdge(from, {Edge::Kind::kEmpty, 0, 0, to});
}

void GrammarBuilder::AddCall(StateId from, RuleId rule, StateId to) {
  AddEdge(from, {Edge::Kind::kCall, 0, 0, to, rule});
}

void GrammarBuilder::AddCountUp(StateId from, std::uint32_t limit, std::uint32_t cap, StateId to) {
  AddEdge(from, {Edge::Kind::kCountUp, 0, 0, to, limit, cap});
}

void GrammarBuilder::AddCountAtLeast(StateId from, std::uint32_t min, StateId to) {
  AddEdge(from, {Edge::Kind::kCountAtLeast, 0, 0, to, min});
}

void GrammarBuilder::AddCountInDecimal(StateId from, StateId to) {
  const StateId second = NewState();
  const StateId third = NewState();
  AddEdge(from, {Edge::Kind::kCountDigit, '0', '9', second, 0, to});
  AddEdge(second, {Edge::Kind::kCountDigit, '0', '9', third, 1, to});
  AddEdge(third, {Edge::Kind::kCountDigit, '0', '9', to, 2, to});
}

StateId GrammarBuilder::AddBytes(StateId from, std::string_view bytes) {
  for (const char c : bytes) from = AddSymbol(from, static_cast<std::uint8_t>(c));
  return from;
}

void GrammarBuilder::AddBytes(StateId from, std::string_view bytes, StateId to) {
  from = AddBytes(from, bytes.substr(0, bytes.size() - 1));
  AddSymbol(from, static_cast<std::uint8_t>(bytes.back()), to);
}

StateId GrammarBuilder::AddSymbol(StateId from, Symbol symbol) {
  const StateId to = NewState();
  AddSymbol(from, symbol, to);
  return to;
}

StateId GrammarBuilder::AddCall(StateId from, RuleId rule) {
  const StateId to = NewState();
  AddCall(from, rule, to);
  return to;
}

void GrammarBuilder::MarkText(StateId state, TextClass text_class, std::uint32_t text_limit) {
  states_[state].text_class = text_class;
  states_[state].text_limit = text_limit;
}

void GrammarBuilder::Rollback(const Mark& mark) {
  states_.resize(mark.num_states);
  edges_.resize(mark.num_edges);
  rules_.resize(mark.num_rules);
  overflowed_ = false;
}

// Settles states in the order of their depth, as Dijkstra's algorithm does: a call edge can be
// taken once both the called rule's start and the state behind the call are settled.
void GrammarBuilder::FindMinDepths() {
  for (StateInfo& state : states_) state.min_depth = ByteGrammar::kUnreachable;
  // Edges by the states they wait for.
  std::vector<std::uint32_t> first(states_.size() + 1);
  const auto for_each_need = [this](const OwnedEdge& edge, auto&& visit) {
    visit(edge.edge.target);
    if (edge.edge.kind == Edge::Kind::kCall) visit(rules_[edge.edge.operand].start);
    if (edge.edge.kind == Edge::Kind::kCountDigit) visit(edge.edge.other);
  };
  for (const OwnedEdge& edge : edges_) {
    for_each_need(edge, [&first](StateId state) { ++first[state + 1]; });
  }
  for (std::size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
  std::vector<std::uint32_t> waiting(first.back());
  std::vector<std::uint32_t> next = first;
  for (std::uint32_t i = 0; i < edges_.size(); ++i) {
    for_each_need(edges_[i], [&](StateId state) { waiting[next[state]++] = i; });
  }

  std::vector<std::vector<StateId>> by_depth(kMaxCallDepth + 1);
  const auto offer = [&](StateId state, std::uint32_t depth) {
    if (depth > kMaxCallDepth || depth >= states_[state].min_depth) return;
    states_[state].min_depth = depth;
    by_depth[depth].push_back(state);
  };
  for (const Rule& rule : rules_) offer(rule.end, 0);
  for (std::uint32_t depth = 0; depth <= kMaxCallDepth; ++depth) {
    // The list grows while it is read.
    for (std::size_t i = 0; i < by_depth[depth].size(); ++i) {
      const StateId state = by_depth[depth][i];
      if (states_[state].min_depth != depth) continue;
      for (std::uint32_t k = first[state]; k < first[state + 1]; ++k) {
        const auto& [from, edge] = edges_[waiting[k]];
        std::uint32_t needed = states_[edge.target].min_depth;
        if (edge.kind == Edge::Kind::kCall) {
          const std::uint32_t called = states_[rules_[edge.operand].start].min_depth;
          if (called == ByteGrammar::kUnreachable) continue;
          needed = std::max(needed, called + 1);
        } else if (edge.kind == Edge::Kind::kCountDigit) {
          needed = std::max(needed, states_[edge.other].min_depth);
        }
        if (needed != ByteGrammar::kUnreachable) offer(from, needed);
      }
    }
  }
}

Result<ByteGrammar> GrammarBuilder::Build(const Rule& root, std::span<const NeededRule> needed) && {
  if (overflowed_) {
    return Fail(ErrorCode::kOutOfRange,
                "the form of the reply: at most {} states and {} edges expected, more are needed",
                kMaxStates, kMaxEdges);
  }
  FindMinDepths();
  for (const NeededRule& rule : needed) {
    // The root calls it.
    if (states_[rules_[rule.id].start].min_depth < kMaxCallDepth) continue;
    return Fail(ErrorCode::kUsage,
                "{}: no value satisfies the schema, or only values nested in more than {} levels",
                rule.path, kMaxCallDepth - 1);
  }
  if (states_[root.start].min_depth == ByteGrammar::kUnreachable) {
    return Fail(ErrorCode::kUsage, "no reply has the form that is asked for");
  }
  const auto leads_nowhere = [this](const OwnedEdge& owned) {
    return states_[owned.from].min_depth == ByteGrammar::kUnreachable ||
           states_[owned.edge.target].min_depth == ByteGrammar::kUnreachable ||
           (owned.edge.kind == Edge::Kind::kCall &&
            states_[rules_[owned.edge.operand].start].min_depth == ByteGrammar::kUnreachable);
  };
  std::erase_if(edges_, leads_nowhere);

  ByteGrammar grammar;
  grammar.states_ = std::move(states_);
  grammar.first_edge_.resize(grammar.states_.size() + 1);
  for (const OwnedEdge& edge : edges_) ++grammar.first_edge_[edge.from + 1];
  for (std::size_t i = 1; i < grammar.first_edge_.size(); ++i) {
    grammar.first_edge_[i] += grammar.first_edge_[i - 1];
  }
  grammar.edges_.resize(edges_.size());
  std::vector<std::uint32_t> next = grammar.first_edge_;
  std::bitset<kNumBytes + 1> starts_class;
  starts_class.set(0);
  for (const OwnedEdge& owned : edges_) {
    grammar.edges_[next[owned.from]++] = owned.edge;
    const Edge& edge = owned.edge;
    if (edge.kind == Edge::Kind::kCountDigit) {
      for (std::size_t digit = '0'; digit <= std::size_t{'9'} + 1; ++digit) starts_class.set(digit);
    } else if (edge.kind == Edge::Kind::kSymbols) {
      if (edge.first < kNumBytes) starts_class.set(edge.first);
      if (edge.last < kNumBytes) starts_class.set(std::size_t{edge.last} + 1);
    }
  }
  std::size_t byte_class = 0;
  for (std::size_t byte = 0; byte < kNumBytes; ++byte) {
    if (byte > 0 && starts_class.test(byte)) ++byte_class;
    grammar.byte_classes_[byte] = static_cast<std::uint8_t>(byte_class);
  }
  grammar.num_byte_classes_ = byte_class + 1;
  grammar.rule_starts_.reserve(rules_.size());
  for (const Rule& rule : rules_) grammar.rule_starts_.push_back(rule.start);
  return grammar;
}

}  // namespace megalith::text::grammar
