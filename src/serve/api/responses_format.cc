// Answers of POST /v1/responses.
#include "serve/api/responses_format.h"

#include <optional>

namespace megalith::serve {
namespace {

JsonValue ResponsesUsage(const Usage& usage) {
  return JsonObject(
      {{"input_tokens", Json(usage.prompt_tokens)},
       {"input_tokens_details", JsonObject({{"cached_tokens", Json(usage.cached_tokens)}})},
       {"output_tokens", Json(usage.completion_tokens)},
       {"output_tokens_details", JsonObject({{"reasoning_tokens", Json(usage.reasoning_tokens)}})},
       {"total_tokens", Json(usage.prompt_tokens + usage.completion_tokens)}});
}

/// An item of the output while it grows, and its kinds.
struct Item {
  enum class Kind { kReasoning, kMessage, kCall };
  Kind kind;
  std::string id;
  std::string text;  ///< reasoning, answer, or arguments
  std::string call_id;
  std::string name;
};

JsonValue TextPart(const std::string& text) {
  return JsonObject({{"type", Json("output_text")},
                     {"text", Json(text)},
                     {"annotations", JsonArray()},
                     {"logprobs", JsonArray()}});
}

JsonValue ReasoningPart(const std::string& text) {
  return JsonObject({{"type", Json("reasoning_text")}, {"text", Json(text)}});
}

JsonValue Parts(const std::string& text, JsonValue (*part)(const std::string&)) {
  std::vector<JsonValue> parts;
  if (!text.empty()) parts.push_back(part(text));
  return JsonArray(std::move(parts));
}

class ResponsesFormat : public ChatFormat {
 public:
  ResponsesFormat(AnswerHead head, ResponsesFormatOptions options)
      : head_(std::move(head)), options_(std::move(options)) {}

  JsonValue Whole(const ChatResult& result) override {
    const text::ChatReply& reply = result.choices.front().reply;
    std::vector<JsonValue> output;
    const auto add = [&](Item::Kind kind, const std::string& text, const std::string& call_id,
                         const std::string& name, bool cut) {
      output.push_back(ItemJson({kind, ItemId(kind, output.size()), text, call_id, name},
                                cut ? "incomplete" : "completed"));
    };
    // Calls are whole, and text in front of one is, even if the call itself is left out.
    const bool text_is_cut = IsCut(result) && reply.tool_calls.empty() && !reply.dropped_call;
    if (!reply.reasoning.empty()) {
      add(Item::Kind::kReasoning, reply.reasoning, "", "", text_is_cut && reply.content.empty());
    }
    if (!reply.content.empty()) add(Item::Kind::kMessage, reply.content, "", "", text_is_cut);
    for (const text::ToolCall& call : reply.tool_calls) {
      add(Item::Kind::kCall, call.arguments, call.id, call.name, false);
    }
    return Finished(result, std::move(output));
  }

  void Begin(EventStream& stream) override {
    const JsonValue response = JsonObject(Response("in_progress", JsonArray()));
    Send(stream, "response.created", {{"response", response}});
    Send(stream, "response.in_progress", {{"response", response}});
  }

  void Delta(EventStream& stream, std::size_t /*choice*/, const text::ChatEvent& event,
             NewLogprobs /*logprobs*/) override {
    using Kind = text::ChatEvent::Kind;
    switch (event.kind) {
      case Kind::kReasoning:
        Open(stream, Item::Kind::kReasoning);
        Append(stream, event.text);
        return;
      case Kind::kContent:
        Open(stream, Item::Kind::kMessage);
        Append(stream, event.text);
        return;
      case Kind::kToolCallBegin:
        Close(stream);
        Open(stream, Item::Kind::kCall, event.tool_call_id, event.text);
        return;
      case Kind::kToolCallArguments:
        Append(stream, event.text);
        return;
      case Kind::kToolCallEnd:
        Close(stream);
        return;
      case Kind::kToolCallDropped:
        Drop(stream);
        return;
    }
  }

  void ChoiceEnd(EventStream& stream, std::size_t /*choice*/, const ChoiceResult& result,
                 NewLogprobs /*logprobs*/) override {
    Close(stream, IsCut(result) ? "incomplete" : "completed");
  }

  void End(EventStream& stream, const ChatResult& result) override {
    const char* type = IsCut(result) ? "response.incomplete" : "response.completed";
    Send(stream, type, {{"response", Finished(result, std::move(output_))}});
  }

  void Error(EventStream& stream, const ApiError& error) override {
    std::vector<JsonMember> response = Response("failed", JsonArray(output_));
    for (JsonMember& member : response) {
      if (member.key != "error") continue;
      member.value =
          JsonObject({{"code", Json(ErrorCodeText(error.code))}, {"message", Json(error.message)}});
    }
    Send(stream, "response.failed", {{"response", JsonObject(std::move(response))}});
  }

 private:
  static bool IsCut(const ChoiceResult& choice) {
    return choice.reply.finish_reason == text::FinishReason::kLength;
  }
  static bool IsCut(const ChatResult& result) { return IsCut(result.choices.front()); }

  JsonValue Finished(const ChatResult& result, std::vector<JsonValue> output) const {
    std::vector<JsonMember> members =
        Response(IsCut(result) ? "incomplete" : "completed", JsonArray(std::move(output)));
    for (JsonMember& member : members) {
      if (member.key == "incomplete_details" && IsCut(result)) {
        member.value = JsonObject({{"reason", Json("max_output_tokens")}});
      }
      if (member.key == "usage") member.value = ResponsesUsage(result.usage);
    }
    members.push_back({"timings", TimingsJson(result.timings)});
    return JsonObject(std::move(members));
  }

  std::vector<JsonMember> Response(const char* status, JsonValue output) const {
    std::vector<JsonMember> members = {{"id", Json("resp_" + head_.id)},
                                       {"object", Json("response")},
                                       {"created_at", Json(head_.created)},
                                       {"status", Json(status)},
                                       {"error", JsonValue()},
                                       {"incomplete_details", JsonValue()},
                                       {"model", Json(head_.model)},
                                       {"output", std::move(output)},
                                       {"parallel_tool_calls", Json(options_.parallel_tool_calls)},
                                       {"tool_choice", options_.tool_choice},
                                       {"tools", options_.tools},
                                       {"previous_response_id", JsonValue()},
                                       {"store", Json(false)},
                                       {"metadata", JsonObject()},
                                       {"usage", JsonValue()}};
    if (!head_.warnings.empty()) members.push_back({"warnings", Json(head_.warnings)});
    return members;
  }

  std::string ItemId(Item::Kind kind, std::size_t output_index) const {
    const char* prefix = kind == Item::Kind::kReasoning ? "rs"
                         : kind == Item::Kind::kMessage ? "msg"
                                                        : "fc";
    return fmt::format("{}_{}_{}", prefix, head_.id, output_index);
  }

  // Without text it has just begun, and its content has no parts.
  JsonValue ItemJson(const Item& item, const char* status) const {
    std::vector<JsonMember> members;
    members.push_back({"id", Json(item.id)});
    switch (item.kind) {
      case Item::Kind::kReasoning:
        members.push_back({"type", Json("reasoning")});
        members.push_back({"summary", JsonArray()});
        members.push_back({"content", Parts(item.text, ReasoningPart)});
        if (options_.include_encrypted_reasoning) {
          members.push_back({"encrypted_content", Json(PackReasoning(item.text))});
        }
        break;
      case Item::Kind::kMessage:
        members.push_back({"type", Json("message")});
        members.push_back({"role", Json("assistant")});
        members.push_back({"content", Parts(item.text, TextPart)});
        break;
      case Item::Kind::kCall:
        members.push_back({"type", Json("function_call")});
        members.push_back({"call_id", Json(item.call_id)});
        members.push_back({"name", Json(item.name)});
        members.push_back({"arguments", Json(item.text)});
        break;
    }
    members.push_back({"status", Json(status)});
    return JsonObject(std::move(members));
  }

  void Send(EventStream& stream, const char* type, std::vector<JsonMember> members) {
    std::vector<JsonMember> all;
    all.push_back({"type", Json(type)});
    all.push_back({"sequence_number", Json(sequence_number_++)});
    for (JsonMember& member : members) all.push_back(std::move(member));
    stream.Event(type, JsonObject(std::move(all)));
  }

  // About the open item.
  void SendOfItem(EventStream& stream, const char* type, std::vector<JsonMember> rest) {
    std::vector<JsonMember> members = {{"item_id", Json(item_->id)},
                                       {"output_index", Json(num_items_ - 1)}};
    if (item_->kind != Item::Kind::kCall) members.push_back({"content_index", Json(0)});
    for (JsonMember& member : rest) members.push_back(std::move(member));
    Send(stream, type, std::move(members));
  }

  // Closes an item of another kind first.
  void Open(EventStream& stream, Item::Kind kind, const std::string& call_id = "",
            const std::string& name = "") {
    if (item_ && item_->kind == kind) return;
    Close(stream);
    item_ = Item{kind, ItemId(kind, num_items_), "", call_id, name};
    Send(stream, "response.output_item.added",
         {{"output_index", Json(num_items_++)}, {"item", ItemJson(*item_, "in_progress")}});
    if (kind == Item::Kind::kMessage) {
      SendOfItem(stream, "response.content_part.added", {{"part", TextPart("")}});
    }
  }

  void Append(EventStream& stream, const std::string& text) {
    if (!item_) return;
    item_->text += text;
    const char* type = item_->kind == Item::Kind::kReasoning ? "response.reasoning_text.delta"
                       : item_->kind == Item::Kind::kMessage
                           ? "response.output_text.delta"
                           : "response.function_call_arguments.delta";
    SendOfItem(stream, type, {{"delta", Json(text)}});
  }

  void Close(EventStream& stream, const char* status = "completed") {
    if (!item_) return;
    const JsonValue text = Json(item_->text);
    switch (item_->kind) {
      case Item::Kind::kReasoning:
        SendOfItem(stream, "response.reasoning_text.done", {{"text", text}});
        break;
      case Item::Kind::kMessage:
        SendOfItem(stream, "response.output_text.done", {{"text", text}});
        SendOfItem(stream, "response.content_part.done", {{"part", TextPart(item_->text)}});
        break;
      case Item::Kind::kCall:
        SendOfItem(stream, "response.function_call_arguments.done",
                   {{"name", Json(item_->name)}, {"arguments", text}});
        break;
    }
    output_.push_back(ItemJson(*item_, status));
    EndItem(stream, output_.back());
  }

  // A call that will not be completed is no part of the output.
  void Drop(EventStream& stream) {
    if (item_) EndItem(stream, ItemJson(*item_, "incomplete"));
  }

  void EndItem(EventStream& stream, const JsonValue& item) {
    item_.reset();
    Send(stream, "response.output_item.done",
         {{"output_index", Json(num_items_ - 1)}, {"item", item}});
  }

  const AnswerHead head_;
  const ResponsesFormatOptions options_;
  std::optional<Item> item_;  // the open one
  std::size_t num_items_ = 0;
  std::vector<JsonValue> output_;  // closed items
  std::int64_t sequence_number_ = 0;
};

}  // namespace

std::unique_ptr<ChatFormat> MakeResponsesFormat(AnswerHead head, ResponsesFormatOptions options) {
  return std::make_unique<ResponsesFormat>(std::move(head), std::move(options));
}

}  // namespace megalith::serve
