#pragma once

// Structured output, token by token: which tokens may come next so that a reply has the form that
// was asked for (docs/structured-output.md).
//
//   auto trie = TokenTrie::Create(tokenizer);                 once per model
//   auto format = FindReplyFormat(options, parallel);         per request; empty: no restriction
//   auto grammar = TokenGrammar::Compile(*format, *trie);     per request, or shared by equal ones
//   auto matcher = GrammarMatcher::Create(*grammar, FindOpenChannel(...prompt));

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "text/chat_parser.h"
#include "text/grammar/reply_format.h"
#include "text/grammar/reply_grammar.h"
#include "text/grammar/stack_sets.h"
#include "text/grammar/token_masks.h"
#include "text/grammar/token_trie.h"
#include "text/token_id.h"

namespace megalith::text::grammar {

/// The form of a reply, over one vocabulary. Immutable; calls may overlap.
class TokenGrammar {
 public:
  /// Errors name the place in the request: kUnsupported for schema keywords that are not
  /// implemented, kUsage for what is no schema or has no value, kOutOfRange for too large ones.
  static Result<std::shared_ptr<const TokenGrammar>> Compile(const ReplyFormat& format,
                                                             std::shared_ptr<const TokenTrie> trie);

  const TokenTrie& trie() const { return *trie_; }
  const ReplyGrammar& reply() const { return reply_; }

 private:
  TokenGrammar(ReplyGrammar reply, std::shared_ptr<const TokenTrie> trie)
      : reply_(std::move(reply)), trie_(std::move(trie)) {}

  ReplyGrammar reply_;
  std::shared_ptr<const TokenTrie> trie_;
};

/// Follows one reply; every reply that ends is read by ChatParser as the format asks. One thread at
/// a time.
class GrammarMatcher {
 public:
  /// Tokens that can be taken back, at least.
  static constexpr std::size_t kMaxPop = 16;

  /// `start`: the channel the prompt leaves open, kThink or kResponse. kUnsupported for others;
  /// kUsage if no reply that starts there has the form.
  static Result<GrammarMatcher> Create(std::shared_ptr<const TokenGrammar> grammar, Channel start);

  GrammarMatcher(GrammarMatcher&&) = default;
  GrammarMatcher& operator=(GrammarMatcher&&) = default;

  const TokenGrammar& grammar() const { return *grammar_; }

  /// Clears the bits of tokens that may not come next: token t is bit t % 64 of allowed[t / 64].
  /// Tokens beyond the vocabulary may not come. At least one token may, always. Every token left
  /// can be pushed; the reverse holds, too, but for TokenMasks::kMaxWork. False: any token may come
  /// (free reasoning); nothing is cleared.
  bool Restrict(std::span<std::uint64_t> allowed);

  /// The token comes next. False if it may not; nothing changes then.
  bool Push(TokenId token);

  /// Takes the last `count` tokens back. REQUIRES count <= kMaxPop, and as many pushed since the
  /// last Commit.
  void Pop(std::size_t count);

  /// The tokens so far are final.
  void Commit();

  /// The token that ends the reply has come; only such tokens may follow.
  bool ended() const;

 private:
  GrammarMatcher(std::shared_ptr<const TokenGrammar> grammar, StateId start);
  void LimitMemory();

  std::shared_ptr<const TokenGrammar> grammar_;
  StackSets sets_;
  TokenMasks masks_;
  std::vector<StackSetId> history_;  // where the text stood after each token; never empty
};

}  // namespace megalith::text::grammar
