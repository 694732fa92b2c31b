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

  /// Stacks that are followed by a byte for one mask. Where a schema has very many alternatives in
  /// one place that leaves some tokens of two and more bytes out: a mask takes a tenth of a
  /// second or so at most, and every text can still be written. Ordinary schemas need a hundredth
  /// of it.
  static constexpr std::size_t kMaxWork = 3'000'000;

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

  // Steps from a set count as work until all its bytes must be known to it. This does not depend on
  // what earlier walks found, as masks must not.
  struct Visit {
    std::uint32_t walk = 0;
    std::uint32_t steps_to_count = 0;
  };
  std::vector<Visit> visits_;  // by set
  std::uint32_t walk_ = 0;     // walks so far
};

}  // namespace megalith::text::grammar
