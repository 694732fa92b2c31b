#include "text/grammar/token_grammar.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace megalith::text::grammar {
namespace {

// Points of the past that are kept even if nothing is ever committed.
constexpr std::size_t kMaxHistory = 4 * GrammarMatcher::kMaxPop;

}  // namespace

Result<std::shared_ptr<const TokenGrammar>> TokenGrammar::Compile(
    const ReplyFormat& format, std::shared_ptr<const TokenTrie> trie) {
  MEGALITH_ASSIGN_OR_RETURN(ReplyGrammar reply, CompileReply(format));
  return std::shared_ptr<const TokenGrammar>(new TokenGrammar(std::move(reply), std::move(trie)));
}

Result<GrammarMatcher> GrammarMatcher::Create(std::shared_ptr<const TokenGrammar> grammar,
                                              Channel start) {
  if (start != Channel::kThink && start != Channel::kResponse) {
    return Fail(
        ErrorCode::kUnsupported,
        "structured output: a prompt that ends inside a think or response element expected");
  }
  const ReplyGrammar& reply = grammar->reply();
  const StateId state = start == Channel::kThink ? reply.in_think : reply.in_response;
  if (reply.grammar.state(state).min_depth == ByteGrammar::kUnreachable) {
    return Fail(ErrorCode::kUsage, "structured output: no reply has the form that is asked for");
  }
  return GrammarMatcher(std::move(grammar), state);
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const TokenGrammar> grammar, StateId start)
    : grammar_(std::move(grammar)),
      sets_(grammar_->reply().grammar),
      masks_(grammar_->trie(), grammar_->reply().grammar) {
  history_.push_back(sets_.Start(start));
}

void GrammarMatcher::LimitMemory() {
  if (!sets_.is_large()) return;
  StackSets sets(grammar_->reply().grammar);
  for (StackSetId& set : history_) set = sets.CopyFrom(sets_, set);
  sets_ = std::move(sets);
  masks_.Clear();
}

bool GrammarMatcher::Restrict(std::span<std::uint64_t> allowed) {
  LimitMemory();
  const StackSetId set = history_.back();
  if (sets_.is_free(set)) return false;
  const TokenMask& mask = masks_.MaskOf(sets_, set);
  const std::size_t num_words = std::min(allowed.size(), mask.size());
  for (std::size_t i = 0; i < num_words; ++i) allowed[i] &= mask[i];
  std::fill(allowed.begin() + static_cast<std::ptrdiff_t>(num_words), allowed.end(), 0);
  return true;
}

bool GrammarMatcher::Push(TokenId token) {
  LimitMemory();
  const Tokenizer& tokenizer = grammar_->trie().tokenizer();
  if (token < 0 || token >= tokenizer.vocab_size()) return false;
  StackSetId set = history_.back();
  if (tokenizer.IsSpecial(token)) {
    set = sets_.Step(set, grammar_->trie().SymbolOf(token));
  } else {
    for (const char c : tokenizer.TokenBytes(token)) {
      set = sets_.StepByte(set, static_cast<std::uint8_t>(c));
    }
  }
  if (set == StackSets::kDead) return false;
  if (history_.size() > kMaxHistory) {
    history_.erase(history_.begin(), history_.end() - static_cast<std::ptrdiff_t>(kMaxPop));
  }
  history_.push_back(set);
  return true;
}

void GrammarMatcher::Pop(std::size_t count) {
  MEGALITH_CHECK(count < history_.size());
  history_.resize(history_.size() - count);
}

void GrammarMatcher::Commit() { history_.erase(history_.begin(), history_.end() - 1); }

bool GrammarMatcher::ended() const {
  const auto nodes = sets_.nodes(history_.back());
  return std::any_of(nodes.begin(), nodes.end(), [this](const StackSets::Node& node) {
    return node.state == grammar_->reply().ended;
  });
}

}  // namespace megalith::text::grammar
