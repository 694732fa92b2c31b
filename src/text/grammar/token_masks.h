#pragma once

// Which tokens may come at a point of a text.

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "text/grammar/byte_grammar.h"
#include "text/grammar/stack_sets.h"
#include "text/grammar/token_trie.h"

namespace megalith::text::grammar {

/// Masks of stack sets, the latest of them remembered. One thread at a time.
class TokenMasks {
 public:
  /// Masks kept: 1.3 MB for a vocabulary of 163,840.
  static constexpr std::size_t kMaxMasks = 64;

  /// Both must outlive this.
  TokenMasks(const TokenTrie& trie, const ByteGrammar& grammar)
      : trie_(&trie), grammar_(&grammar) {}

  /// Valid until the next call.
  const TokenMask& MaskOf(StackSets& sets, StackSetId set);

  /// To be called before ids get another meaning.
  void Clear();

 private:
  struct Entry {
    StackSetId set;
    TokenMask mask;
  };

  void Fill(StackSets& sets, StackSetId set, TokenMask& mask);
  bool AddBoundedText(const StackSets& sets, StackSetId set, TextClass& text_class,
                      TokenMask& mask) const;
  bool ReadsPlainBytes(StateId state, TextClass text_class) const;
  void Walk(const TokenTrie::Tree& tree, StackSets& sets, StackSetId set, TokenMask& mask);

  const TokenTrie* trie_;
  const ByteGrammar* grammar_;
  std::vector<Entry> entries_;
  std::unordered_map<StackSetId, std::size_t> by_set_;  // into entries_
  std::size_t next_entry_ = 0;                          // to be replaced when all are taken
  std::vector<StackSetId> path_;                        // of a walk: the set by depth
};

}  // namespace megalith::text::grammar
