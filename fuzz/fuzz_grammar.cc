// A JSON schema, then bytes that choose tokens: compiling never crashes or hangs, a mask is never
// empty and agrees with what may be pushed, and taking tokens back leaves no trace. A reply that
// has ended is read by the output parser; its answer is JSON.
//
// Input: the schema's text, a zero byte, a byte of options, then a byte per choice.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/base64.h"
#include "text/chat_parser.h"
#include "text/grammar/token_grammar.h"
#include "text/json_value.h"

namespace {

using namespace megalith::text;
using namespace megalith::text::grammar;

void Require(bool condition) {
  if (!condition) std::abort();
}

// All bytes, and tokens that cross the borders of JSON's parts and of characters.
Tokenizer MakeTokenizer() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token :
       {"{\"",      "\": ",     "\", \"",   "\"}",     "},",       "]}",
        "\"]",      "abc",      "  ",       "\n  ",    "null",     "12",
        ".5",       "\\u",      "00",       "\\\"",    "\xC3\xA9", "\xA9\"",
        "\xF0\x9F", "\x98\x80", "aaaaaaaa", "a\": [1", " key=\"",  "\" type=\"string\"",
        "response", "message",  "argument"}) {
    tokens.emplace_back(token);
  }
  std::string ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ranks += EncodeBase64(tokens[i]) + " " + std::to_string(i) + "\n";
  }
  std::string config = R"({"added_tokens_decoder":{)";
  for (const char* name : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]"}) {
    config += '"' + std::to_string(tokens.size()) + R"(":{"content":")" + name + R"("},)";
    tokens.emplace_back(name);
  }
  config.back() = '}';
  auto tokenizer = Tokenizer::FromFiles(ranks, config + "}");
  Require(tokenizer.has_value());
  return *std::move(tokenizer);
}

const std::shared_ptr<const TokenTrie>& Trie() {
  static const auto trie = [] {
    auto made = TokenTrie::Create(MakeTokenizer());
    Require(made.has_value());
    return *std::move(made);
  }();
  return trie;
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

TokenMask MaskOf(GrammarMatcher& matcher) {
  TokenMask mask(Trie()->num_mask_words(), ~std::uint64_t{0});
  Require(matcher.Restrict(mask));
  return mask;
}

void CheckMask(GrammarMatcher& matcher, const TokenMask& mask) {
  for (TokenId id = 0; id < Trie()->tokenizer().vocab_size(); ++id) {
    const bool allowed = (mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1u) != 0;
    Require(matcher.Push(id) == allowed);
    if (allowed) matcher.Pop(1);
  }
}

void RunMatcher(GrammarMatcher matcher, std::string_view choices, Channel start, bool has_schema) {
  std::vector<TokenId> ids;
  std::vector<TokenMask> masks;  // before each token since the last commit
  for (const char c : choices) {
    const auto choice = static_cast<std::uint8_t>(c);
    if (choice >= 0xF0 && !masks.empty()) {
      const std::size_t count = std::min<std::size_t>(choice - 0xEF, masks.size());
      matcher.Pop(count);
      Require(MaskOf(matcher) == masks[masks.size() - count]);
      masks.resize(masks.size() - count);
      ids.resize(ids.size() - count);
      continue;
    }
    const TokenMask mask = MaskOf(matcher);
    const std::vector<TokenId> allowed = List(mask);
    Require(!allowed.empty());
    if (choice % 16 == 3) CheckMask(matcher, mask);
    if (choice % 32 == 5) {
      matcher.Commit();
      masks.clear();
    }
    if (masks.size() == GrammarMatcher::kMaxPop) masks.erase(masks.begin());
    masks.push_back(mask);
    // The highest ids are those that close.
    ids.push_back(choice >= 0xE0 ? allowed.back() : allowed[choice % allowed.size()]);
    Require(matcher.Push(ids.back()));
    if (!matcher.ended()) continue;
    ChatParserOptions options;
    options.start = start;
    options.tool_call_ids = ToolCallIds(1);
    const auto reply = ParseReply(Trie()->tokenizer(), ids, options);
    Require(reply.has_value());
    for (const ToolCall& call : reply->tool_calls) Require(ParseJson(call.arguments).has_value());
    if (has_schema && reply->tool_calls.empty()) Require(ParseJson(reply->content).has_value());
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const auto schema = ParseJson(input.substr(0, end));
  if (!schema) return 0;
  std::string_view choices = end == std::string_view::npos ? "" : input.substr(end + 1);
  const unsigned flags = choices.empty() ? 0 : static_cast<std::uint8_t>(choices.front());
  if (!choices.empty()) choices.remove_prefix(1);

  ReplyFormat format;
  format.calls = static_cast<ReplyFormat::Calls>(flags % 4);
  if ((flags & 4) == 0) format.content_schema = *schema;
  if (format.calls != ReplyFormat::Calls::kForbidden) {
    format.tools.push_back({"f", *schema, "tools[0]", (flags & 8) != 0});
    format.tools.push_back({"g", {}, "tools[1]", false});
  }
  format.parallel_tool_calls = (flags & 16) == 0;
  const Channel start = (flags & 32) == 0 ? Channel::kResponse : Channel::kThink;
  const auto grammar = TokenGrammar::Compile(format, Trie());
  if (!grammar) {
    Require(!grammar.error().message.empty());
    return 0;
  }
  auto matcher = GrammarMatcher::Create(*grammar, start);
  if (!matcher) return 0;
  RunMatcher(*std::move(matcher), choices, start, format.content_schema.has_value());
  return 0;
}
