#include "text/grammar/token_masks.h"

#include <algorithm>

namespace megalith::text::grammar {
namespace {

constexpr TextClass kWidestFirst[] = {TextClass::kBytes, TextClass::kCharacters,
                                      TextClass::kJsonString};

void AddMask(const TokenMask& tokens, TokenMask& mask) {
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] |= tokens[i];
}

}  // namespace

void TokenMasks::Clear() {
  entries_.clear();
  by_set_.clear();
  next_entry_ = 0;
}

const TokenMask& TokenMasks::MaskOf(StackSets& sets, StackSetId set) {
  if (const auto it = by_set_.find(set); it != by_set_.end()) return entries_[it->second].mask;
  std::size_t idx = entries_.size();
  if (idx < kMaxMasks) {
    entries_.push_back({set, TokenMask(trie_->num_mask_words())});
  } else {
    idx = next_entry_;
    next_entry_ = (next_entry_ + 1) % kMaxMasks;
    by_set_.erase(entries_[idx].set);
    entries_[idx].set = set;
    std::fill(entries_[idx].mask.begin(), entries_[idx].mask.end(), 0);
  }
  by_set_.emplace(set, idx);
  Fill(sets, set, entries_[idx].mask);
  return entries_[idx].mask;
}

void TokenMasks::Fill(StackSets& sets, StackSetId set, TokenMask& mask) {
  for (Symbol symbol = kNumBytes; symbol < kNumSymbols; ++symbol) {
    const auto tokens = trie_->TokensOf(symbol);
    if (tokens.empty() || sets.Step(set, symbol) == StackSets::kDead) continue;
    for (const TokenId id : tokens) SetToken(mask, id);
  }
  for (const TextClass text_class : kWidestFirst) {
    if (!sets.HasEndlessText(set, text_class)) continue;
    AddMask(trie_->PlainTokens(text_class), mask);
    Walk(trie_->OtherTokens(text_class), sets, set, mask);
    return;
  }
  TextClass text_class = TextClass::kNone;
  const bool found = AddBoundedText(sets, set, text_class, mask);
  Walk(found ? trie_->OtherTokens(text_class) : trie_->tree(), sets, set, mask);
}

// Text of bounded length: sets the plain tokens that fit. False if tokens of plain characters may
// come for other reasons, too; nothing is set then.
bool TokenMasks::AddBoundedText(const StackSets& sets, StackSetId set, TextClass& text_class,
                                TokenMask& mask) const {
  const auto nodes = sets.nodes(set);
  const auto text = std::find_if(nodes.begin(), nodes.end(), [this](const StackSets::Node& node) {
    return grammar_->state(node.state).text_class != TextClass::kNone;
  });
  if (text == nodes.end()) return false;
  text_class = grammar_->state(text->state).text_class;
  for (const StackSets::Node& node : nodes) {
    if (&node != &*text && ReadsPlainBytes(node.state, text_class)) return false;
  }
  const std::uint32_t room = grammar_->state(text->state).text_limit - text->count + 1;
  const auto by_size = trie_->TokensBySize(text_class);
  if (!by_size.empty() && room >= by_size.back().num_characters) {
    AddMask(trie_->PlainTokens(text_class), mask);
    return true;
  }
  for (const TokenTrie::SizedToken& token : by_size) {
    if (token.num_characters > room) break;
    SetToken(mask, token.token);
  }
  return true;
}

bool TokenMasks::ReadsPlainBytes(StateId state, TextClass text_class) const {
  const auto edges = grammar_->edges(state);
  return std::any_of(edges.begin(), edges.end(), [text_class](const Edge& edge) {
    if (edge.kind == Edge::Kind::kCountDigit) return true;
    if (edge.kind != Edge::Kind::kSymbols) return false;
    for (Symbol symbol = edge.first; symbol <= edge.last && symbol < kNumBytes; ++symbol) {
      if (IsPlainByte(text_class, static_cast<std::uint8_t>(symbol))) return true;
    }
    return false;
  });
}

void TokenMasks::Walk(const TokenTrie::Tree& tree, StackSets& sets, StackSetId set,
                      TokenMask& mask) {
  path_.resize(tree.max_depth + 1);
  path_[0] = set;
  const auto& nodes = tree.nodes;
  ++walk_;
  std::size_t work = 0;
  std::size_t num_sets = 0;
  for (std::size_t i = 0; i < nodes.size();) {
    const TokenTrie::Tree::Node& node = nodes[i];
    if (work > kMaxWork && node.depth > 1) {
      i = node.end;
      continue;
    }
    const StackSetId from = path_[node.depth - 1u];
    if (from >= visits_.size()) visits_.resize(2 * std::size_t{from} + 64);
    Visit& visit = visits_[from];
    if (visit.walk != walk_) {
      visit = {walk_, ++num_sets <= StackSets::kRememberedSets ? kNumBytes : kNoLimit};
    }
    if (visit.steps_to_count > 0) {
      --visit.steps_to_count;
      work += sets.nodes(from).size();
    }
    const StackSetId next = sets.StepByte(from, node.byte);
    if (next == StackSets::kDead) {
      i = node.end;
      continue;
    }
    if (node.token != TokenTrie::kNoToken) SetToken(mask, node.token);
    ++i;
    if (i == node.end) continue;
    if (sets.HasEndlessTextOf(next, node.plain_below)) {
      for (; i < node.end; ++i) {
        if (nodes[i].token != TokenTrie::kNoToken) SetToken(mask, nodes[i].token);
      }
      continue;
    }
    path_[node.depth] = next;
  }
}

}  // namespace megalith::text::grammar
