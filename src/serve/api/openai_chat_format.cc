// Answers of POST /v1/chat/completions.
#include "serve/api/chat_format.h"

namespace megalith::serve {
namespace {

JsonValue ToolCallsJson(const std::vector<text::ToolCall>& calls) {
  std::vector<JsonValue> items;
  for (const text::ToolCall& call : calls) {
    items.push_back(JsonObject({{"id", Json(call.id)},
                                {"type", Json("function")},
                                {"function", JsonObject({{"name", Json(call.name)},
                                                         {"arguments", Json(call.arguments)}})}}));
  }
  return JsonArray(std::move(items));
}

JsonValue MessageJson(const text::ChatReply& reply) {
  std::vector<JsonMember> members = {{"role", Json("assistant")}};
  const bool no_content = reply.content.empty() && !reply.tool_calls.empty();
  members.push_back({"content", no_content ? JsonValue() : Json(reply.content)});
  if (!reply.reasoning.empty()) members.push_back({"reasoning_content", Json(reply.reasoning)});
  members.push_back({"refusal", JsonValue()});
  if (!reply.tool_calls.empty()) members.push_back({"tool_calls", ToolCallsJson(reply.tool_calls)});
  return JsonObject(std::move(members));
}

JsonValue ToolCallDelta(std::size_t idx, std::vector<JsonMember> rest) {
  rest.insert(rest.begin(), {"index", Json(idx)});
  return JsonObject({{"tool_calls", JsonArray({JsonObject(std::move(rest))})}});
}

// Null for events that say nothing to the client.
JsonValue DeltaJson(const text::ChatEvent& event) {
  using Kind = text::ChatEvent::Kind;
  switch (event.kind) {
    case Kind::kReasoning:
      return JsonObject({{"reasoning_content", Json(event.text)}});
    case Kind::kContent:
      return JsonObject({{"content", Json(event.text)}});
    case Kind::kToolCallBegin:
      return ToolCallDelta(
          event.tool_call_idx,
          {{"id", Json(event.tool_call_id)},
           {"type", Json("function")},
           {"function", JsonObject({{"name", Json(event.text)}, {"arguments", Json("")}})}});
    case Kind::kToolCallArguments:
      return ToolCallDelta(event.tool_call_idx,
                           {{"function", JsonObject({{"arguments", Json(event.text)}})}});
    case Kind::kToolCallDropped:
      return ToolCallDelta(event.tool_call_idx, {{"incomplete", Json(true)}});
    case Kind::kToolCallEnd:
      return JsonValue();
  }
  return JsonValue();
}

class OpenAiChatFormat : public ChatFormat {
 public:
  OpenAiChatFormat(AnswerHead head, OpenAiChatOptions options)
      : head_(std::move(head)), options_(options), num_open_(head_.num_choices) {}

  JsonValue Whole(const ChatResult& result) override {
    std::vector<JsonValue> choices;
    for (std::size_t i = 0; i < result.choices.size(); ++i) {
      const ChoiceResult& choice = result.choices[i];
      choices.push_back(JsonObject(
          {{"index", Json(i)},
           {"message", MessageJson(choice.reply)},
           {"logprobs", LogprobsJson({choice.content_logprobs, choice.reasoning_logprobs})},
           {"finish_reason", Json(text::FinishReasonName(choice.reply.finish_reason))}}));
    }
    std::vector<JsonMember> members = Head("chat.completion", JsonArray(std::move(choices)));
    members.push_back({"usage", UsageJson(result.usage)});
    members.push_back({"timings", TimingsJson(result.timings)});
    AddWarnings(members);
    return JsonObject(std::move(members));
  }

  void Begin(EventStream& stream) override {
    for (std::size_t i = 0; i < head_.num_choices; ++i) {
      std::vector<JsonMember> members = Chunk(Choice(
          i, JsonObject({{"role", Json("assistant")}, {"content", Json("")}}), {}, JsonValue()));
      if (i == 0) AddWarnings(members);
      stream.Data(JsonObject(std::move(members)));
    }
  }

  void Progress(EventStream& stream, std::size_t choice, const engine::PromptProgress& progress,
                double seconds) override {
    std::vector<JsonMember> members = Chunk(JsonArray());
    members.push_back({"prompt_progress", ProgressJson(choice, progress, seconds)});
    stream.Data(JsonObject(std::move(members)));
  }

  void Delta(EventStream& stream, std::size_t choice, const text::ChatEvent& event,
             NewLogprobs logprobs) override {
    JsonValue delta = DeltaJson(event);
    if (delta.is_null()) {
      if (logprobs.empty()) return;
      delta = JsonObject();
    }
    stream.Data(JsonObject(Chunk(Choice(choice, std::move(delta), logprobs, JsonValue()))));
  }

  void ChoiceEnd(EventStream& stream, std::size_t choice, const ChoiceResult& result,
                 NewLogprobs logprobs) override {
    last_finish_ = Chunk(Choice(choice, JsonObject(), logprobs,
                                Json(text::FinishReasonName(result.reply.finish_reason))));
    // The last one also carries the timings, which are known at the end.
    if (--num_open_ > 0) stream.Data(JsonObject(std::move(last_finish_)));
  }

  void End(EventStream& stream, const ChatResult& result) override {
    last_finish_.push_back({"timings", TimingsJson(result.timings)});
    stream.Data(JsonObject(std::move(last_finish_)));
    if (options_.include_usage) {
      std::vector<JsonMember> members = Head("chat.completion.chunk", JsonArray());
      members.push_back({"usage", UsageJson(result.usage)});
      stream.Data(JsonObject(std::move(members)));
    }
    stream.Done();
  }

  void Error(EventStream& stream, const ApiError& error) override {
    stream.Data(ErrorBody(error, ErrorStyle::kOpenAi));
  }

 private:
  std::vector<JsonMember> Head(const char* object, JsonValue choices) const {
    return {{"id", Json("chatcmpl-" + head_.id)},
            {"object", Json(object)},
            {"created", Json(head_.created)},
            {"model", Json(head_.model)},
            {"choices", std::move(choices)}};
  }

  std::vector<JsonMember> Chunk(JsonValue choices) const {
    std::vector<JsonMember> members = Head("chat.completion.chunk", std::move(choices));
    if (options_.include_usage) members.push_back({"usage", JsonValue()});
    return members;
  }

  JsonValue Choice(std::size_t idx, JsonValue delta, const NewLogprobs& logprobs,
                   JsonValue finish_reason) const {
    return JsonArray(
        {JsonObject({{"index", Json(idx)},
                     {"delta", std::move(delta)},
                     {"logprobs", logprobs.empty() ? JsonValue() : LogprobsJson(logprobs)},
                     {"finish_reason", std::move(finish_reason)}})});
  }

  JsonValue LogprobsJson(const NewLogprobs& logprobs) const {
    if (!options_.logprobs) return JsonValue();
    std::vector<JsonMember> members = {{"content", JsonArray(logprobs.content)}};
    if (!logprobs.reasoning.empty()) {
      members.push_back({"reasoning_content", JsonArray(logprobs.reasoning)});
    }
    members.push_back({"refusal", JsonValue()});
    return JsonObject(std::move(members));
  }

  void AddWarnings(std::vector<JsonMember>& members) const {
    if (!head_.warnings.empty()) members.push_back({"warnings", Json(head_.warnings)});
  }

  const AnswerHead head_;
  const OpenAiChatOptions options_;
  std::size_t num_open_;  // choices that have not ended
  std::vector<JsonMember> last_finish_;
};

}  // namespace

std::unique_ptr<ChatFormat> MakeOpenAiChatFormat(AnswerHead head, OpenAiChatOptions options) {
  return std::make_unique<OpenAiChatFormat>(std::move(head), options);
}

}  // namespace megalith::serve
