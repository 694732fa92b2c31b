#pragma once

// Helpers of the tests in this folder.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/grammar/token_grammar.h"
#include "text/text_test_util.h"

namespace megalith::text::grammar {

std::shared_ptr<const TokenTrie> NanoTrie();
std::shared_ptr<const TokenTrie> ReleasedTrie();

/// A format whose answer is JSON of this schema (JSON text).
ReplyFormat JsonFormat(std::string_view schema);

/// A tool with a schema of its arguments (JSON text; empty: none).
ReplyTool Tool(std::string name, std::string_view parameters, bool strict = true);

std::shared_ptr<const TokenGrammar> Compile(const ReplyFormat& format,
                                            std::shared_ptr<const TokenTrie> trie = NanoTrie());

/// The error of a schema that cannot be enforced, "code: message"; empty if it can be.
std::string SchemaError(std::string_view schema);

GrammarMatcher Matcher(const std::shared_ptr<const TokenGrammar>& grammar,
                       Channel start = Channel::kResponse);

/// Ids of a text in which the names of special tokens stand for these.
std::vector<TokenId> Ids(const Tokenizer& tokenizer, std::string_view text);

/// Ids of a text cut into tokens at random: at every place any token that fits may come.
std::vector<TokenId> RandomIds(const Tokenizer& tokenizer, std::string_view text,
                               TestRandom& random);

/// Pushes ids; the number that were taken.
std::size_t PushAll(GrammarMatcher& matcher, const std::vector<TokenId>& ids);

/// What closes a response and ends the message.
inline constexpr std::string_view kEndOfAnswer =
    "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";

/// True if the answer may be exactly this text.
bool Accepts(const std::shared_ptr<const TokenGrammar>& grammar, std::string_view json);
bool SchemaAccepts(std::string_view schema, std::string_view json);

/// The mask as the matcher gives it. REQUIRES that it restricts.
TokenMask MaskOf(GrammarMatcher& matcher);
/// The mask found by pushing every token.
TokenMask MaskByPushing(GrammarMatcher& matcher, const Tokenizer& tokenizer);

/// Names of tokens in one mask and not in the other, for messages; empty if they are equal.
std::string Difference(const TokenMask& a, const TokenMask& b, const Tokenizer& tokenizer);

/// Picks allowed tokens at random until the reply has ended; after `num_free` tokens those that
/// close something are preferred. All ids; empty if it did not end.
std::vector<TokenId> RandomReply(GrammarMatcher& matcher, const Tokenizer& tokenizer,
                                 TestRandom& random, std::size_t num_free);

}  // namespace megalith::text::grammar
