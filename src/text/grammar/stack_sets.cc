#include "text/grammar/stack_sets.h"

#include <algorithm>
#include <string>
#include <tuple>

namespace megalith::text::grammar {
namespace {

// Up to here a list is searched from end to end.
constexpr std::size_t kShortList = 16;

std::size_t HashOf(std::span<const StackSets::Node> nodes) {
  std::uint64_t hash = nodes.size();
  for (const StackSets::Node& node : nodes) {
    for (const std::uint32_t part : {node.state, node.count, node.below}) {
      hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

bool ReadsSymbols(const Edge& edge) {
  return edge.kind == Edge::Kind::kSymbols || edge.kind == Edge::Kind::kCountDigit;
}

}  // namespace

StackSets::StackSets(const ByteGrammar& grammar) : grammar_(&grammar) {
  sets_.resize(2);  // kDead, kFloor
}

StackSetId StackSets::Intern(std::vector<Node> nodes) {
  if (nodes.empty()) return kDead;
  const std::size_t hash = HashOf(nodes);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (sets_[it->second].nodes == nodes) return it->second;
  }
  Set set;
  for (const Node& node : nodes) {
    if (node.below != kFloor) set.depth = std::max(set.depth, sets_[node.below].depth + 1);
    const StateInfo& state = grammar_->state(node.state);
    if (state.text_class != TextClass::kNone &&
        (state.text_limit == kNoLimit || state.text_limit - node.count >= kLongText)) {
      set.endless_text |= 1u << static_cast<unsigned>(state.text_class);
    }
    set.is_free |= state.is_free;
  }
  set.nodes = std::move(nodes);
  const auto id = static_cast<StackSetId>(sets_.size());
  sets_.push_back(std::move(set));
  by_hash_.emplace(hash, id);
  return id;
}

// The depth of this recursion is at most kMaxCallDepth.
StackSetId StackSets::Join(StackSetId a, StackSetId b) {
  if (a == b || b == kDead) return a;
  if (a == kDead) return b;
  std::vector<Node> joined;
  std::size_t i = 0;
  std::size_t k = 0;
  while (i < sets_[a].nodes.size() || k < sets_[b].nodes.size()) {
    const bool a_ends = i == sets_[a].nodes.size();
    const bool b_ends = k == sets_[b].nodes.size();
    const auto key = [](const Node& node) { return std::pair(node.state, node.count); };
    if (b_ends || (!a_ends && key(sets_[a].nodes[i]) < key(sets_[b].nodes[k]))) {
      joined.push_back(sets_[a].nodes[i++]);
    } else if (a_ends || key(sets_[b].nodes[k]) < key(sets_[a].nodes[i])) {
      joined.push_back(sets_[b].nodes[k++]);
    } else {
      Node node = sets_[a].nodes[i++];
      node.below = Join(node.below, sets_[b].nodes[k++].below);
      joined.push_back(node);
    }
  }
  return Intern(std::move(joined));
}

// All stacks of one set have the same number of frames below a given state, because brackets and
// quotes alone open and close rules; so joining sets never makes a stack look deeper than it is.
void StackSets::Add(const Node& node) {
  const std::uint32_t depth = node.below == kFloor ? 0 : sets_[node.below].depth + 1;
  if (depth + grammar_->state(node.state).min_depth > kMaxCallDepth) return;
  std::size_t idx = reached_.size();
  if (reached_.size() <= kShortList) {
    for (std::size_t i = 0; i < reached_.size(); ++i) {
      if (reached_[i].state == node.state && reached_[i].count == node.count) idx = i;
    }
    if (idx == kShortList) {
      for (std::size_t i = 0; i < reached_.size(); ++i) {
        reached_idx_.emplace(Key{reached_[i].state, reached_[i].count}, i);
      }
    }
  } else {
    const auto it = reached_idx_.find({node.state, node.count});
    if (it != reached_idx_.end()) idx = it->second;
  }
  if (idx == reached_.size()) {
    if (idx >= kShortList) reached_idx_.emplace(Key{node.state, node.count}, idx);
    reached_.push_back(node);
    todo_.push_back(idx);
    return;
  }
  const StackSetId joined = Join(reached_[idx].below, node.below);
  if (joined == reached_[idx].below) return;
  reached_[idx].below = joined;
  todo_.push_back(idx);
}

void StackSets::Follow(const Node& node) {
  if (grammar_->state(node.state).is_end && node.below != kFloor) {
    // By index: adding nodes may move the sets.
    for (std::size_t i = 0; i < sets_[node.below].nodes.size(); ++i) {
      Add(Node(sets_[node.below].nodes[i]));
    }
  }
  for (const Edge& edge : grammar_->edges(node.state)) {
    switch (edge.kind) {
      case Edge::Kind::kSymbols:
      case Edge::Kind::kCountDigit:
        break;
      case Edge::Kind::kEmpty:
        Add({edge.target, node.count, node.below});
        break;
      case Edge::Kind::kCall:
        Add({grammar_->rule_start(edge.operand), 0,
             Intern({{edge.target, node.count, node.below}})});
        break;
      case Edge::Kind::kCountUp:
        if (node.count < edge.operand) {
          Add({edge.target, std::min(node.count + 1, edge.other), node.below});
        }
        break;
      case Edge::Kind::kCountAtLeast:
        if (node.count >= edge.operand) Add({edge.target, node.count, node.below});
        break;
    }
  }
}

StackSetId StackSets::Close() {
  while (!todo_.empty()) {
    const Node node = reached_[todo_.back()];
    todo_.pop_back();
    Follow(node);
  }
  std::vector<Node> nodes;
  for (const Node& node : reached_) {
    const auto edges = grammar_->edges(node.state);
    if (std::any_of(edges.begin(), edges.end(), ReadsSymbols)) nodes.push_back(node);
  }
  reached_.clear();
  reached_idx_.clear();
  std::sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) {
    return std::tie(a.state, a.count) < std::tie(b.state, b.count);
  });
  return Intern(std::move(nodes));
}

StackSetId StackSets::Start(StateId state) {
  Add({state, 0, kFloor});
  return Close();
}

StackSetId StackSets::Step(StackSetId set, Symbol symbol) {
  for (std::size_t i = 0; i < sets_[set].nodes.size(); ++i) {
    const Node node = sets_[set].nodes[i];
    for (const Edge& edge : grammar_->edges(node.state)) {
      if (!ReadsSymbols(edge) || symbol < edge.first || symbol > edge.last) continue;
      StateId target = edge.target;
      if (edge.kind == Edge::Kind::kCountDigit) {
        const std::string digits = std::to_string(node.count);
        if (edge.operand >= digits.size() || digits[edge.operand] != symbol) continue;
        if (edge.operand + 1 == digits.size()) target = edge.other;
      }
      Add({target, node.count, node.below});
    }
  }
  return Close();
}

StackSetId StackSets::FindByteStep(StackSetId set, std::uint8_t byte) {
  if (set == kDead) return kDead;
  const StackSetId next = Step(set, byte);
  std::vector<StackSetId>& row = sets_[set].next;
  if (row.empty()) {
    if (num_rows_ == kMaxRows) return next;
    ++num_rows_;
    row.assign(grammar_->num_byte_classes(), kUnknown);
  }
  row[grammar_->byte_class(byte)] = next;
  return next;
}

StackSetId StackSets::CopyFrom(const StackSets& other, StackSetId set) {
  std::unordered_map<StackSetId, StackSetId> copies = {{kDead, kDead}, {kFloor, kFloor}};
  return Copy(other, set, copies);
}

StackSetId StackSets::Copy(const StackSets& other, StackSetId set,
                           std::unordered_map<StackSetId, StackSetId>& copies) {
  if (const auto it = copies.find(set); it != copies.end()) return it->second;
  std::vector<Node> nodes = other.sets_[set].nodes;
  for (Node& node : nodes) node.below = Copy(other, node.below, copies);
  const StackSetId copy = Intern(std::move(nodes));
  copies.emplace(set, copy);
  return copy;
}

}  // namespace megalith::text::grammar
