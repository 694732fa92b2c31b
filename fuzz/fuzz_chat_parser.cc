// Request JSON through message parsing and renderer, and any token ids through the output parser.
// The parser must give the same reply for any chunking, valid UTF-8 and valid argument JSON.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/base64.h"
#include "text/chat_parser.h"
#include "text/chat_render.h"
#include "text/openai_chat.h"
#include "text/utf8.h"

namespace {

using namespace megalith::text;

void Require(bool condition) {
  if (!condition) std::abort();
}

// Rank = byte, the chat markers behind: an input's bytes spell ids directly.
Tokenizer MakeTokenizer() {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte) {
    ranks +=
        EncodeBase64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  }
  auto tokenizer = Tokenizer::FromFiles(
      ranks,
      R"({"added_tokens_decoder":{"256":{"content":"<|open|>"},"257":{"content":"<|close|>"},)"
      R"("258":{"content":"<|sep|>"},"259":{"content":"<|end_of_msg|>"},"260":{"content":"[EOS]"}}})");
  Require(tokenizer.has_value());
  return *std::move(tokenizer);
}

const Tokenizer& FuzzTokenizer() {
  static const Tokenizer tokenizer = MakeTokenizer();
  return tokenizer;
}

// Bytes 1 to 5 stand for the special ids, 6 for an unnamed one; the rest for themselves.
std::vector<TokenId> ReadIds(std::string_view input) {
  std::vector<TokenId> ids;
  for (const char c : input) {
    const auto byte = static_cast<std::uint8_t>(c);
    ids.push_back(byte >= 1 && byte <= 6 ? 255 + byte : byte);
  }
  return ids;
}

void RunRenderer(std::string_view input) {
  const auto request = ParseJson(input);
  if (!request) return;
  Require(ParseJson(WriteCompactSortedJson(*request)).has_value());
  const auto options = ParseChatOptions(*request);
  const JsonValue* messages = request->Find("messages");
  const auto conversation = ParseMessages(messages == nullptr ? *request : *messages);
  if (!conversation) return;
  const auto chat = RenderChat(FuzzTokenizer(), *conversation, options ? *options : ChatOptions());
  if (!chat) return;
  Require(FuzzTokenizer().DecodeBytes(chat->ids).has_value());
  const auto control = FuzzTokenizer().FindControlTokens();
  Require(FindOpenChannel(FuzzTokenizer(), *control, chat->ids) != Channel::kNone);
}

void RunParser(std::string_view input, bool thinking) {
  const std::vector<TokenId> ids = ReadIds(input);
  ChatParserOptions options;
  options.start = thinking ? Channel::kThink : Channel::kResponse;
  options.stop_strings = {"stop", "\n\n\n"};
  options.tool_call_ids = ToolCallIds(1);
  auto parser = ChatParser::Create(FuzzTokenizer(), options);
  Require(parser.has_value());
  ChatReplyBuilder builder;
  std::vector<ChatEvent> events;
  const auto take = [&] {
    for (const ChatEvent& event : events) {
      Require(!FindInvalidUtf8(event.text));
      builder.Add(event);
    }
    events.clear();
  };
  for (const TokenId id : ids) {
    Require(parser->Push(id, events).has_value());
    take();
  }
  const FinishReason reason = parser->Finish(false, events);
  take();
  const ChatReply streamed = std::move(builder).Build(reason);
  const auto whole = ParseReply(FuzzTokenizer(), ids, options);
  Require(whole.has_value() && whole->reasoning == streamed.reasoning &&
          whole->content == streamed.content && whole->tool_calls == streamed.tool_calls &&
          whole->finish_reason == streamed.finish_reason);
  // A reply goes back as history.
  const auto history = RenderChat(FuzzTokenizer(), {Message::User("q"), streamed.ToMessage()});
  Require(history.has_value() || !history.error().message.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) {
    RunRenderer(input);
  } else {
    RunParser(input, data[0] % 3 == 1);
  }
  return 0;
}
