#pragma once

// The tokens of a vocabulary as a tree over their bytes, so that an automaton finds those it allows
// by following each common beginning once.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "text/grammar/symbols.h"
#include "text/tokenizer.h"

namespace megalith::text::grammar {

/// A bit for each token: token t is bit t % 64 of word t / 64.
using TokenMask = std::vector<std::uint64_t>;

inline void SetToken(TokenMask& mask, TokenId id) {
  mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64);
}

/// Immutable. Built once per vocabulary (about 0.1 s and 10 MB for that of Kimi K3) and shared.
class TokenTrie {
 public:
  /// Nodes in depth-first order, so that those below node i are i + 1 .. end[i] - 1.
  struct Tree {
    struct Node {
      std::uint32_t end;
      TokenId token;             ///< that ends here; kNoToken
      std::uint16_t depth;       ///< bytes from the root, >= 1
      std::uint8_t byte;         ///< the last one
      std::uint8_t plain_below;  ///< bit: TextClass of which all tokens below go on with whole
                                 ///< characters
    };
    std::vector<Node> nodes;
    std::size_t max_depth = 0;
  };
  static constexpr TokenId kNoToken = -1;

  /// kUnsupported if the vocabulary lacks the chat format's control tokens.
  static Result<std::shared_ptr<const TokenTrie>> Create(const Tokenizer& tokenizer);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  std::size_t num_mask_words() const { return num_mask_words_; }
  /// All ordinary tokens.
  const Tree& tree() const { return tree_; }

  /// Ordinary tokens that consist of whole characters of the class. Not for kNone.
  const TokenMask& PlainTokens(TextClass text_class) const { return Class(text_class).plain; }
  /// The others.
  const Tree& OtherTokens(TextClass text_class) const { return Class(text_class).others; }
  struct SizedToken {
    std::uint32_t num_characters;
    TokenId token;
  };
  /// Plain tokens, by number of characters. Not for kBytes.
  std::span<const SizedToken> TokensBySize(TextClass text_class) const {
    return Class(text_class).by_size;
  }

  /// What a special token is to a grammar. REQUIRES tokenizer().IsSpecial(id).
  Symbol SymbolOf(TokenId id) const;
  /// Tokens that are this symbol; none for kOtherSpecial. REQUIRES symbol >= kNumBytes.
  std::span<const TokenId> TokensOf(Symbol symbol) const { return specials_[symbol - kNumBytes]; }

 private:
  struct ClassTokens {
    TokenMask plain;
    Tree others;
    std::vector<SizedToken> by_size;
  };

  explicit TokenTrie(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  const ClassTokens& Class(TextClass text_class) const {
    return classes_[static_cast<std::size_t>(text_class)];
  }
  Tree BuildTree(std::span<const TokenId> sorted) const;

  Tokenizer tokenizer_;
  std::size_t num_mask_words_ = 0;
  Tree tree_;
  std::array<ClassTokens, 4> classes_;  // by TextClass
  std::array<std::vector<TokenId>, kNumSymbols - kNumBytes> specials_;
};

}  // namespace megalith::text::grammar
