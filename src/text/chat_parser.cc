#include "text/chat_parser.h"

#include <algorithm>

#include "text/chat_tag.h"
#include "text/json_value.h"

namespace megalith::text {
namespace {

// Pieces of the same text become one event.
void Emit(ChatEvent::Kind kind, std::string text, std::size_t tool_call_idx,
          std::vector<ChatEvent>& events) {
  if (!events.empty() && events.back().kind == kind &&
      events.back().tool_call_idx == tool_call_idx) {
    events.back().text.append(text);
    return;
  }
  events.push_back({kind, std::move(text), tool_call_idx, {}});
}

std::string QuotedJson(std::string_view text) {
  std::string json = "\"";
  AppendJsonEscaped(text, json);
  json.push_back('"');
  return json;
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

Channel FindOpenChannel(const Tokenizer& tokenizer, const ControlTokens& control,
                        std::span<const TokenId> prompt) {
  const auto is_marker = [&control](TokenId id) {
    return id == control.open || id == control.close || id == control.end_of_msg;
  };
  const auto last = std::find_if(prompt.rbegin(), prompt.rend(), is_marker);
  if (last == prompt.rend() || *last != control.open) return Channel::kNone;
  std::string tag;
  for (auto it = last.base(); it != prompt.end(); ++it) {
    if (*it != control.sep) {
      if (*it >= 0 && *it < tokenizer.vocab_size()) tag.append(tokenizer.TokenBytes(*it));
      continue;
    }
    const std::string name = ParseChatTag(tag).name;
    if (name == "think") return Channel::kThink;
    if (name == "response") return Channel::kResponse;
    if (name == "tools") return Channel::kTools;
    return Channel::kNone;
  }
  return Channel::kNone;
}

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
  }
  return "unknown";
}

Result<ChatParser> ChatParser::Create(const Tokenizer& tokenizer, ChatParserOptions options) {
  MEGALITH_ASSIGN_OR_RETURN(const ControlTokens control, tokenizer.FindControlTokens());
  MEGALITH_ASSIGN_OR_RETURN(StopStringFilter stop_filter,
                            StopStringFilter::Create(options.stop_strings));
  return ChatParser(tokenizer, control, std::move(options), std::move(stop_filter));
}

ChatParser::ChatParser(const Tokenizer& tokenizer, const ControlTokens& control,
                       ChatParserOptions options, StopStringFilter stop_filter)
    : tokenizer_(tokenizer),
      control_(control),
      options_(std::move(options)),
      stop_filter_(std::move(stop_filter)),
      channel_(options_.start) {}

bool ChatParser::IsStopId(TokenId id) const {
  return id == control_.end_of_msg || id == control_.eos ||
         std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) !=
             options_.stop_ids.end();
}

Status ChatParser::Push(TokenId id, std::vector<ChatEvent>& events) {
  if (id < 0 || id >= tokenizer_.vocab_size()) {
    return Fail(ErrorCode::kOutOfRange, "generated token id: 0 to {} expected, {} found",
                tokenizer_.vocab_size() - 1, id);
  }
  if (finished_) return {};
  if (IsStopId(id)) {
    if (tag_kind_ == TagKind::kClose) EndTag(events);
    FlushText(events);
    finished_ = true;
  } else if (id == control_.open) {
    PushMarker(TagKind::kOpen, events);
  } else if (id == control_.close) {
    PushMarker(TagKind::kClose, events);
  } else if (id == control_.sep) {
    FlushText(events);
    if (tag_kind_) EndTag(events);
  } else if (tokenizer_.IsSpecial(id)) {
    FlushText(events);
    if (!tag_kind_ && options_.special == SpecialText::kShow) {
      PushText(tokenizer_.TokenBytes(id), events);
    }
  } else if (tag_kind_) {
    tag_.append(tokenizer_.TokenBytes(id));
  } else {
    std::string text;
    repair_.Push(tokenizer_.TokenBytes(id), text);
    PushText(text, events);
  }
  return {};
}

FinishReason ChatParser::Finish(bool hit_limit, std::vector<ChatEvent>& events) {
  FlushText(events);
  DropCall(events);
  if (!stop_filter_.stopped()) {
    std::string held;
    stop_filter_.Flush(held);
    if (!held.empty()) Emit(ChatEvent::Kind::kContent, std::move(held), 0, events);
  }
  finished_ = true;
  // Whoever runs the calls of a cut reply must know that more may have been meant to come.
  if (hit_limit) return FinishReason::kLength;
  return num_complete_calls_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
}

void ChatParser::PushMarker(TagKind kind, std::vector<ChatEvent>& events) {
  FlushText(events);
  if (tag_kind_ == TagKind::kClose) EndTag(events);
  tag_kind_ = kind;
  tag_.clear();
}

// `text`: valid UTF-8.
void ChatParser::PushText(std::string_view text, std::vector<ChatEvent>& events) {
  if (text.empty()) return;
  switch (channel_) {
    case Channel::kThink:
      Emit(ChatEvent::Kind::kReasoning, std::string(text), 0, events);
      return;
    case Channel::kResponse: {
      std::string safe;
      stop_filter_.Push(text, safe);
      if (!safe.empty()) Emit(ChatEvent::Kind::kContent, std::move(safe), 0, events);
      finished_ = stop_filter_.stopped();
      return;
    }
    case Channel::kArgument:
      if (!argument_) return;
      if (argument_->is_string) {
        std::string escaped;
        AppendJsonEscaped(text, escaped);
        EmitArguments(std::move(escaped), events);
      } else {
        argument_->value.append(text);
      }
      return;
    case Channel::kJson:
      if (call_) call_->json.append(text);
      return;
    case Channel::kNone:
    case Channel::kTools:
    case Channel::kCall:
      return;
  }
}

// A marker stands where a character was not complete.
void ChatParser::FlushText(std::vector<ChatEvent>& events) {
  std::string text;
  repair_.Flush(text);
  PushText(text, events);
}

void ChatParser::EndTag(std::vector<ChatEvent>& events) {
  const TagKind kind = *tag_kind_;
  const std::string text = RepairUtf8(tag_);
  tag_kind_.reset();
  tag_.clear();
  if (message_closed_) return;
  if (kind == TagKind::kOpen) {
    OpenTag(text, events);
  } else {
    CloseTag(ParseChatTag(text).name, events);
  }
}

void ChatParser::OpenTag(std::string_view text, std::vector<ChatEvent>& events) {
  const ChatTag tag = ParseChatTag(text);
  if (tag.name == "think") {
    EnterSection(Channel::kThink, events);
  } else if (tag.name == "response") {
    EnterSection(Channel::kResponse, events);
  } else if (tag.name == "tools") {
    EnterSection(Channel::kTools, events);
  } else if (tag.name == "call") {
    EnterSection(Channel::kCall, events);
    const std::string* name = tag.Find("tool");
    if (name != nullptr && !name->empty()) BeginCall(*name, events);
  } else if (tag.name == "argument" && call_) {
    EndArgument(events);
    channel_ = Channel::kArgument;
    const std::string* key = tag.Find("key");
    if (key != nullptr) BeginArgument(*key, tag.Find("type"), events);
  } else if (tag.name == "json" && call_) {
    EndArgument(events);
    channel_ = Channel::kJson;
  }
}

void ChatParser::CloseTag(std::string_view name, std::vector<ChatEvent>& events) {
  if (name == "think" || name == "response" || name == "tools") {
    EnterSection(Channel::kNone, events);
  } else if (name == "message") {
    EnterSection(Channel::kNone, events);
    message_closed_ = true;
  } else if (name == "call" && call_) {
    EndCall(events);
    channel_ = Channel::kTools;
  } else if ((name == "argument" || name == "json") && call_) {
    EndArgument(events);
    channel_ = Channel::kCall;
  }
}

// Leaves whatever was open. Content held back for a stop string cannot become one any more.
void ChatParser::EnterSection(Channel channel, std::vector<ChatEvent>& events) {
  DropCall(events);
  if (channel_ == Channel::kResponse && channel != Channel::kResponse) {
    std::string held;
    stop_filter_.Flush(held);
    if (!held.empty()) Emit(ChatEvent::Kind::kContent, std::move(held), 0, events);
  }
  channel_ = channel;
}

void ChatParser::BeginCall(const std::string& name, std::vector<ChatEvent>& events) {
  call_ = Call();
  call_->idx = num_begun_calls_++;
  events.push_back(
      {ChatEvent::Kind::kToolCallBegin, name, call_->idx, options_.tool_call_ids.Next()});
}

void ChatParser::EndCall(std::vector<ChatEvent>& events) {
  EndArgument(events);
  if (call_->has_arguments) {
    EmitArguments("}", events);
  } else if (IsBlank(call_->json)) {
    EmitArguments("{}", events);
  } else {
    EmitArguments(std::move(call_->json), events);
  }
  events.push_back({ChatEvent::Kind::kToolCallEnd, {}, call_->idx, {}});
  call_.reset();
  ++num_complete_calls_;
}

void ChatParser::DropCall(std::vector<ChatEvent>& events) {
  argument_.reset();
  if (!call_) return;
  events.push_back({ChatEvent::Kind::kToolCallDropped, {}, call_->idx, {}});
  call_.reset();
}

void ChatParser::BeginArgument(const std::string& key, const std::string* type,
                               std::vector<ChatEvent>& events) {
  argument_ = Argument();
  argument_->key = key;
  argument_->is_string = type != nullptr && *type == "string";
  // Strings stream; other values must prove to be JSON first.
  if (argument_->is_string) EmitArguments(ArgumentPrefix() + "\"", events);
}

void ChatParser::EndArgument(std::vector<ChatEvent>& events) {
  if (!argument_) return;
  if (argument_->is_string) {
    EmitArguments("\"", events);
  } else if (ParseJson(argument_->value)) {
    EmitArguments(ArgumentPrefix() + argument_->value, events);
  } else {
    EmitArguments(ArgumentPrefix() + QuotedJson(argument_->value), events);
  }
  argument_.reset();
}

// What stands before the argument's value.
std::string ChatParser::ArgumentPrefix() {
  std::string prefix = call_->has_arguments ? "," : "{";
  call_->has_arguments = true;
  return prefix + QuotedJson(argument_->key) + ":";
}

void ChatParser::EmitArguments(std::string text, std::vector<ChatEvent>& events) {
  Emit(ChatEvent::Kind::kToolCallArguments, std::move(text), call_->idx, events);
}

Message ChatReply::ToMessage() const {
  Message message = Message::Assistant(content, reasoning);
  message.tool_calls = tool_calls;
  return message;
}

void ChatReplyBuilder::Add(const ChatEvent& event) {
  switch (event.kind) {
    case ChatEvent::Kind::kReasoning:
      reply_.reasoning.append(event.text);
      return;
    case ChatEvent::Kind::kContent:
      reply_.content.append(event.text);
      return;
    case ChatEvent::Kind::kToolCallBegin:
      call_ = ToolCall{event.tool_call_id, event.text, {}};
      return;
    case ChatEvent::Kind::kToolCallArguments:
      if (call_) call_->arguments.append(event.text);
      return;
    case ChatEvent::Kind::kToolCallEnd:
      if (call_) reply_.tool_calls.push_back(std::move(*call_));
      call_.reset();
      return;
    case ChatEvent::Kind::kToolCallDropped:
      reply_.dropped_call = true;
      call_.reset();
      return;
  }
}

ChatReply ChatReplyBuilder::Build(FinishReason reason) && {
  reply_.finish_reason = reason;
  return std::move(reply_);
}

Result<ChatReply> ParseReply(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                             ChatParserOptions options, bool hit_limit) {
  MEGALITH_ASSIGN_OR_RETURN(ChatParser parser, ChatParser::Create(tokenizer, std::move(options)));
  std::vector<ChatEvent> events;
  for (const TokenId id : ids) MEGALITH_RETURN_IF_ERROR(parser.Push(id, events));
  const FinishReason reason = parser.Finish(hit_limit, events);
  ChatReplyBuilder builder;
  for (const ChatEvent& event : events) builder.Add(event);
  return std::move(builder).Build(reason);
}

}  // namespace megalith::text
