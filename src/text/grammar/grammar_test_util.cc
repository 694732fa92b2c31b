#include "text/grammar/grammar_test_util.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace megalith::text::grammar {
namespace {

bool Has(const TokenMask& mask, TokenId id) {
  return (mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1u) != 0;
}

std::vector<TokenId> List(const TokenMask& mask) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    for (std::uint64_t word = mask[i]; word != 0; word &= word - 1) {
      ids.push_back(static_cast<TokenId>(i * 64) + std::countr_zero(word));
    }
  }
  return ids;
}

// An allowed token that brings the end nearer, or any short one.
TokenId PickClosing(const TokenMask& mask, const Tokenizer& tokenizer, TestRandom& random) {
  for (const std::string_view name : {"<|end_of_msg|>", "<|close|>", "<|sep|>", "<|open|>"}) {
    const TokenId id = *tokenizer.special_tokens().Find(name);
    if (Has(mask, id)) return id;
  }
  // Not always the same: a string that must match a pattern has no end to find by brackets.
  const bool brackets = random.Below(2) == 0;
  for (const std::string_view text : {"\"", brackets ? "}" : "a", brackets ? "]" : "b"}) {
    const TokenId id = *tokenizer.vocabulary().Find(text);
    if (Has(mask, id) && random.Below(4) != 0) return id;
  }
  std::vector<TokenId> single;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const TokenId id = *tokenizer.vocabulary().Find({&c, 1});
    if (Has(mask, id)) single.push_back(id);
  }
  return random.Pick(single.empty() ? List(mask) : single);
}

}  // namespace

std::shared_ptr<const TokenTrie> NanoTrie() {
  static const auto trie = ValueOf(TokenTrie::Create(NanoTokenizer()));
  return trie;
}

std::shared_ptr<const TokenTrie> ReleasedTrie() {
  static const auto trie = ValueOf(TokenTrie::Create(ReleasedTokenizer()));
  return trie;
}

ReplyFormat JsonFormat(std::string_view schema) {
  ReplyFormat format;
  format.content_schema = ValueOf(ParseJson(schema));
  format.content_path = "schema";
  return format;
}

ReplyTool Tool(std::string name, std::string_view parameters, bool strict) {
  ReplyTool tool;
  tool.path = "tools." + name;
  tool.name = std::move(name);
  if (!parameters.empty()) tool.parameters = ValueOf(ParseJson(parameters));
  tool.strict = strict;
  return tool;
}

std::shared_ptr<const TokenGrammar> Compile(const ReplyFormat& format,
                                            std::shared_ptr<const TokenTrie> trie) {
  return ValueOf(TokenGrammar::Compile(format, std::move(trie)));
}

std::string SchemaError(std::string_view schema) {
  const auto grammar = TokenGrammar::Compile(JsonFormat(schema), NanoTrie());
  if (grammar) return "";
  return std::string(ErrorCodeName(grammar.error().code)) + ": " + grammar.error().message;
}

GrammarMatcher Matcher(const std::shared_ptr<const TokenGrammar>& grammar, Channel start) {
  return ValueOf(GrammarMatcher::Create(grammar, start));
}

std::vector<TokenId> Ids(const Tokenizer& tokenizer, std::string_view text) {
  return ValueOf(tokenizer.EncodeWithSpecials(text));
}

std::vector<TokenId> RandomIds(const Tokenizer& tokenizer, std::string_view text,
                               TestRandom& random) {
  std::vector<TokenId> ids;
  for (std::size_t offset = 0; offset < text.size();) {
    const SpecialTokens::Match special = tokenizer.special_tokens().FindFirst(text, offset);
    if (special.offset == offset) {
      ids.push_back(special.id);
      offset += tokenizer.TokenBytes(special.id).size();
      continue;
    }
    std::vector<TokenId> fitting;
    const std::size_t longest =
        std::min(special.offset - offset, tokenizer.vocabulary().max_token_bytes());
    for (std::size_t length = 1; length <= longest; ++length) {
      const auto id = tokenizer.vocabulary().Find(text.substr(offset, length));
      if (id) fitting.push_back(*id);
    }
    ids.push_back(random.Pick(fitting));
    offset += tokenizer.TokenBytes(ids.back()).size();
  }
  return ids;
}

std::size_t PushAll(GrammarMatcher& matcher, const std::vector<TokenId>& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!matcher.Push(ids[i])) return i;
  }
  return ids.size();
}

bool Accepts(const std::shared_ptr<const TokenGrammar>& grammar, std::string_view json) {
  const Tokenizer& tokenizer = grammar->trie().tokenizer();
  GrammarMatcher matcher = Matcher(grammar);
  std::vector<TokenId> ids = ValueOf(tokenizer.EncodeBytes(json));
  for (const TokenId id : Ids(tokenizer, kEndOfAnswer)) ids.push_back(id);
  return PushAll(matcher, ids) == ids.size() && matcher.ended();
}

bool SchemaAccepts(std::string_view schema, std::string_view json) {
  return Accepts(Compile(JsonFormat(schema)), json);
}

TokenMask MaskOf(GrammarMatcher& matcher) {
  TokenMask mask(matcher.grammar().trie().num_mask_words(), ~std::uint64_t{0});
  if (!matcher.Restrict(mask)) throw std::runtime_error("the matcher does not restrict");
  return mask;
}

TokenMask MaskByPushing(GrammarMatcher& matcher, const Tokenizer& tokenizer) {
  TokenMask mask(matcher.grammar().trie().num_mask_words());
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!matcher.Push(id)) continue;
    SetToken(mask, id);
    matcher.Pop(1);
  }
  return mask;
}

std::string Difference(const TokenMask& a, const TokenMask& b, const Tokenizer& tokenizer) {
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size() && text.size() < 500; ++id) {
    if (Has(a, id) == Has(b, id)) continue;
    text += (Has(a, id) ? "first only: " : "second only: ") +
            std::string(tokenizer.TokenBytes(id)) + "\n";
  }
  return text;
}

std::vector<TokenId> RandomReply(GrammarMatcher& matcher, const Tokenizer& tokenizer,
                                 TestRandom& random, std::size_t num_free) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < num_free + 4000; ++i) {
    const TokenMask mask = MaskOf(matcher);
    TokenId id = 0;
    if (i >= num_free || random.Below(8) == 0) {
      id = PickClosing(mask, tokenizer, random);
    } else {
      id = random.Pick(List(mask));
    }
    if (!matcher.Push(id)) throw std::runtime_error("a token of the mask is refused");
    ids.push_back(id);
    if (matcher.ended()) return ids;
    if (random.Below(4) == 0) matcher.Commit();
  }
  return {};
}

}  // namespace megalith::text::grammar
