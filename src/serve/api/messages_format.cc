// Answers of POST /v1/messages, Anthropic's API.
#include "serve/api/messages_format.h"

#include <optional>

namespace megalith::serve {
namespace {

// Thinking blocks carry a signature that clients send back; nothing is checked here.
constexpr char kSignature[] = "unsigned";

std::string_view StopReason(const ChoiceResult& choice) {
  switch (choice.reply.finish_reason) {
    case text::FinishReason::kToolCalls:
      return "tool_use";
    case text::FinishReason::kLength:
      return "max_tokens";
    case text::FinishReason::kStop:
      return choice.matched_stop ? "stop_sequence" : "end_turn";
  }
  return "end_turn";
}

JsonValue MatchedStop(const ChoiceResult& choice) {
  return choice.matched_stop ? Json(*choice.matched_stop) : JsonValue();
}

// The API counts cached tokens apart.
JsonValue MessagesUsage(const Usage& usage) {
  return JsonObject({{"input_tokens", Json(usage.prompt_tokens - usage.cached_tokens)},
                     {"cache_creation_input_tokens", Json(0)},
                     {"cache_read_input_tokens", Json(usage.cached_tokens)},
                     {"output_tokens", Json(usage.completion_tokens)}});
}

// An object in any case, as the API promises. What the model wrote that is none stands in "json".
JsonValue InputJson(const std::string& arguments) {
  auto json = text::ParseJson(arguments);
  if (json && json->is_object()) return std::move(*json);
  return JsonObject({{"json", Json(arguments)}});
}

JsonValue ThinkingBlock(const std::string& thinking, const char* signature) {
  return JsonObject(
      {{"type", Json("thinking")}, {"thinking", Json(thinking)}, {"signature", Json(signature)}});
}

JsonValue TextBlock(const std::string& text) {
  return JsonObject({{"type", Json("text")}, {"text", Json(text)}});
}

JsonValue ToolUseBlock(const std::string& id, const std::string& name, JsonValue input) {
  return JsonObject({{"type", Json("tool_use")},
                     {"id", Json(id)},
                     {"name", Json(name)},
                     {"input", std::move(input)}});
}

class MessagesFormat : public ChatFormat {
 public:
  explicit MessagesFormat(AnswerHead head) : head_(std::move(head)) {}

  ErrorStyle error_style() const override { return ErrorStyle::kAnthropic; }

  JsonValue Whole(const ChatResult& result) override {
    const ChoiceResult& choice = result.choices.front();
    std::vector<JsonValue> blocks;
    if (!choice.reply.reasoning.empty()) {
      blocks.push_back(ThinkingBlock(choice.reply.reasoning, kSignature));
    }
    if (!choice.reply.content.empty()) blocks.push_back(TextBlock(choice.reply.content));
    for (const text::ToolCall& call : choice.reply.tool_calls) {
      blocks.push_back(ToolUseBlock(call.id, call.name, InputJson(call.arguments)));
    }
    std::vector<JsonMember> members =
        Message(JsonArray(std::move(blocks)), Json(StopReason(choice)), MatchedStop(choice),
                MessagesUsage(result.usage));
    members.push_back({"timings", TimingsJson(result.timings)});
    return JsonObject(std::move(members));
  }

  void Begin(EventStream& stream) override {
    Usage usage;
    usage.prompt_tokens = head_.num_prompt_tokens;
    Send(stream, "message_start",
         {{"message",
           JsonObject(Message(JsonArray(), JsonValue(), JsonValue(), MessagesUsage(usage)))}});
  }

  void Delta(EventStream& stream, std::size_t /*choice*/, const text::ChatEvent& event,
             NewLogprobs /*logprobs*/) override {
    using Kind = text::ChatEvent::Kind;
    switch (event.kind) {
      case Kind::kReasoning:
        OpenBlock(stream, Block::kThinking, ThinkingBlock("", ""));
        SendDelta(stream, "thinking_delta", "thinking", event.text);
        return;
      case Kind::kContent:
        OpenBlock(stream, Block::kText, TextBlock(""));
        SendDelta(stream, "text_delta", "text", event.text);
        return;
      case Kind::kToolCallBegin:
        CloseBlock(stream);
        OpenBlock(stream, Block::kToolUse,
                  ToolUseBlock(event.tool_call_id, event.text, JsonObject()));
        return;
      case Kind::kToolCallArguments:
        SendDelta(stream, "input_json_delta", "partial_json", event.text);
        return;
      case Kind::kToolCallEnd:
      case Kind::kToolCallDropped:
        CloseBlock(stream);
        return;
    }
  }

  void ChoiceEnd(EventStream& stream, std::size_t /*choice*/, const ChoiceResult& result,
                 NewLogprobs /*logprobs*/) override {
    CloseBlock(stream);
    stop_reason_ = Json(StopReason(result));
    stop_sequence_ = MatchedStop(result);
  }

  void End(EventStream& stream, const ChatResult& result) override {
    Send(stream, "message_delta",
         {{"delta", JsonObject({{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}})},
          {"usage", MessagesUsage(result.usage)},
          {"timings", TimingsJson(result.timings)}});
    Send(stream, "message_stop", {});
  }

  void Error(EventStream& stream, const ApiError& error) override {
    stream.Event("error", ErrorBody(error, ErrorStyle::kAnthropic));
  }

  void Ping(EventStream& stream) override { Send(stream, "ping", {}); }

 private:
  enum class Block { kThinking, kText, kToolUse };

  std::vector<JsonMember> Message(JsonValue content, JsonValue stop_reason, JsonValue stop_sequence,
                                  JsonValue usage) const {
    std::vector<JsonMember> members = {{"id", Json("msg_" + head_.id)},
                                       {"type", Json("message")},
                                       {"role", Json("assistant")},
                                       {"model", Json(head_.model)},
                                       {"content", std::move(content)},
                                       {"stop_reason", std::move(stop_reason)},
                                       {"stop_sequence", std::move(stop_sequence)},
                                       {"usage", std::move(usage)}};
    if (!head_.warnings.empty()) members.push_back({"warnings", Json(head_.warnings)});
    return members;
  }

  static void Send(EventStream& stream, const char* type, std::vector<JsonMember> members) {
    members.insert(members.begin(), {"type", Json(type)});
    stream.Event(type, JsonObject(std::move(members)));
  }

  void SendDelta(EventStream& stream, const char* type, const char* key, const std::string& text) {
    Send(stream, "content_block_delta",
         {{"index", Json(num_blocks_ - 1)},
          {"delta", JsonObject({{"type", Json(type)}, {key, Json(text)}})}});
  }

  // Closes a block of another kind first.
  void OpenBlock(EventStream& stream, Block block, JsonValue start) {
    if (open_ == block) return;
    CloseBlock(stream);
    open_ = block;
    Send(stream, "content_block_start",
         {{"index", Json(num_blocks_++)}, {"content_block", std::move(start)}});
  }

  void CloseBlock(EventStream& stream) {
    if (!open_) return;
    if (open_ == Block::kThinking) SendDelta(stream, "signature_delta", "signature", kSignature);
    open_.reset();
    Send(stream, "content_block_stop", {{"index", Json(num_blocks_ - 1)}});
  }

  const AnswerHead head_;
  std::optional<Block> open_;
  std::size_t num_blocks_ = 0;
  JsonValue stop_reason_;
  JsonValue stop_sequence_;
};

}  // namespace

std::unique_ptr<ChatFormat> MakeMessagesFormat(AnswerHead head) {
  return std::make_unique<MessagesFormat>(std::move(head));
}

}  // namespace megalith::serve
