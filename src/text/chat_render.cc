#include "text/chat_render.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>

#include "text/chat_parser.h"
#include "text/chat_prompts.h"
#include "text/chat_tag.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace megalith::text {
namespace {

bool IsBlank(std::string_view text) {
  for (std::size_t offset = 0; offset < text.size();) {
    const Utf8Step step = DecodeUtf8(text, offset);
    if (!IsPythonSpace(step.code_point)) return false;
    offset += step.length_bytes;
  }
  return true;
}

struct Attribute {
  std::string_view key;
  std::string_view value;
};

// Collects ids: control ids as they are, texts each encoded on its own.
class PromptWriter {
 public:
  PromptWriter(const Tokenizer& tokenizer, const ControlTokens& control)
      : tokenizer_(tokenizer), control_(control) {}

  Status Text(std::string_view text) { return tokenizer_.EncodeTo(text, ids_); }

  Status Open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    ids_.push_back(control_.open);
    MEGALITH_RETURN_IF_ERROR(Text(tag));
    for (const auto& [key, value] : attributes) {
      MEGALITH_RETURN_IF_ERROR(Text(FormatAttribute(key, value)));
    }
    ids_.push_back(control_.sep);
    return {};
  }

  Status Close(std::string_view tag) {
    ids_.push_back(control_.close);
    MEGALITH_RETURN_IF_ERROR(Text(tag));
    ids_.push_back(control_.sep);
    return {};
  }

  Status CloseMessage() {
    MEGALITH_RETURN_IF_ERROR(Close("message"));
    ids_.push_back(control_.end_of_msg);
    return {};
  }

  // A system message that the format itself generates.
  Status GeneratedMessage(std::string_view type, std::string_view body) {
    MEGALITH_RETURN_IF_ERROR(Open("message", {{"role", "system"}, {"type", type}}));
    MEGALITH_RETURN_IF_ERROR(Text(body));
    return CloseMessage();
  }

  // Ids as the model chose them.
  void Ids(const std::vector<TokenId>& ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }
  void EndOfMessage() { ids_.push_back(control_.end_of_msg); }

  /// The channel that the ids so far leave open.
  Channel OpenChannel() const { return FindOpenChannel(tokenizer_, control_, ids_); }
  /// The tag that they end with closing, if they do.
  std::string ClosedTag() const {
    if (ids_.empty() || ids_.back() != control_.sep) return {};
    const auto last = std::find_if(ids_.rbegin(), ids_.rend(), [this](TokenId id) {
      return id == control_.open || id == control_.close;
    });
    if (last == ids_.rend() || *last == control_.open) return {};
    std::string tag;
    for (auto it = last.base(); it != ids_.end() && *it != control_.sep; ++it) {
      tag.append(tokenizer_.TokenBytes(*it));
    }
    return tag;
  }

  std::size_t size() const { return ids_.size(); }
  void Truncate(std::size_t size) { ids_.resize(size); }
  std::vector<TokenId> Take() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  const ControlTokens control_;
  std::vector<TokenId> ids_;
};

struct ToolResult {
  const Message* message;
  std::string name;
};

class ChatRenderer {
 public:
  ChatRenderer(const Tokenizer& tokenizer, const ControlTokens& control, const ChatOptions& options,
               const ReplayTurn& replay)
      : writer_(tokenizer, control), options_(options), replay_(replay) {}

  Result<RenderedChat> Render(const Conversation& conversation) {
    if (!options_.tools.items().empty()) {
      MEGALITH_RETURN_IF_ERROR(
          writer_.GeneratedMessage("tool-declare", StaticToolsPrompt(options_.tools)));
    }
    if (options_.thinking && options_.effort != Effort::kOmitted) {
      MEGALITH_RETURN_IF_ERROR(
          writer_.GeneratedMessage("thinking-effort", EffortPrompt(options_.effort)));
    }
    bool in_preamble = true;  // until the first message that is no system message
    for (std::size_t i = 0; i < conversation.size();) {
      if (in_preamble && conversation[i].role != Role::kSystem) {
        in_preamble = false;
        MarkBoundary();
      }
      std::size_t end = i + 1;
      if (conversation[i].role == Role::kTool) {
        while (end < conversation.size() && conversation[end].role == Role::kTool) ++end;
      }
      const Status status = RenderMessages(std::span(conversation).subspan(i, end - i));
      if (!status) {
        return Fail(status.error().code, "{}: {}", PathOf(i + num_right_), status.error().message);
      }
      if (!in_preamble) MarkBoundary();
      i = end;
    }
    if (in_preamble) MarkBoundary();
    MEGALITH_RETURN_IF_ERROR(RenderRequest());
    rendered_.ids = writer_.Take();
    return std::move(rendered_);
  }

 private:
  std::string PathOf(std::size_t message) const {
    const std::vector<std::string>& paths = options_.paths.messages;
    return message < paths.size() ? paths[message] : fmt::format("messages[{}]", message);
  }

  void MarkBoundary() {
    if (writer_.size() > 0) rendered_.boundaries.push_back(writer_.size());
  }

  // One message, or a run of consecutive tool messages.
  Status RenderMessages(std::span<const Message> run) {
    const Message& message = run.front();
    switch (message.role) {
      case Role::kSystem:
        if (!message.tools.items().empty()) {
          return writer_.GeneratedMessage("tool-declare", DynamicToolsPrompt(message.tools));
        }
        return RenderPlainMessage(message);
      case Role::kUser:
        return RenderPlainMessage(message);
      case Role::kAssistant:
        return RenderAssistant(message);
      case Role::kTool:
        return RenderToolResults(run);
    }
    return Fail(ErrorCode::kUsage, "role {} is unknown", static_cast<int>(message.role));
  }

  Status RenderContent(const Message& message) {
    if (options_.join_text_parts) {
      std::string joined;
      for (const std::string& part : message.content) joined += part;
      return writer_.Text(joined);
    }
    for (const std::string& part : message.content) MEGALITH_RETURN_IF_ERROR(writer_.Text(part));
    return {};
  }

  Status RenderPlainMessage(const Message& message) {
    const std::string_view role = RoleName(message.role);
    if (message.name.empty()) {
      MEGALITH_RETURN_IF_ERROR(writer_.Open("message", {{"role", role}}));
    } else {
      MEGALITH_RETURN_IF_ERROR(writer_.Open("message", {{"role", role}, {"name", message.name}}));
    }
    MEGALITH_RETURN_IF_ERROR(RenderContent(message));
    return writer_.CloseMessage();
  }

  Status RenderAssistant(const Message& message) {
    last_calls_ = &message.tool_calls;
    num_results_ = 0;
    if (const std::vector<TokenId>* ids = FindReplay(message)) {
      MEGALITH_ASSIGN_OR_RETURN(const bool done, RenderReplay(*ids));
      if (done) return {};
    }
    MEGALITH_RETURN_IF_ERROR(writer_.Open("message", {{"role", "assistant"}}));
    if (options_.thinking) {
      MEGALITH_RETURN_IF_ERROR(writer_.Open("think"));
      if (options_.keep_reasoning && !IsBlank(message.reasoning)) {
        MEGALITH_RETURN_IF_ERROR(writer_.Text(message.reasoning));
      } else {
        ++rendered_.num_turns_without_reasoning;
      }
      MEGALITH_RETURN_IF_ERROR(writer_.Close("think"));
    }
    MEGALITH_RETURN_IF_ERROR(writer_.Open("response"));
    MEGALITH_RETURN_IF_ERROR(RenderContent(message));
    MEGALITH_RETURN_IF_ERROR(writer_.Close("response"));
    if (!message.tool_calls.empty()) {
      MEGALITH_RETURN_IF_ERROR(writer_.Open("tools"));
      for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
        const Status status = RenderCall(message.tool_calls[i], std::to_string(i + 1));
        if (!status) {
          return Fail(status.error().code, "tool_calls[{}]: {}", i, status.error().message);
        }
      }
      MEGALITH_RETURN_IF_ERROR(writer_.Close("tools"));
    }
    return writer_.CloseMessage();
  }

  const std::vector<TokenId>* FindReplay(const Message& message) const {
    return replay_ && options_.keep_reasoning ? replay_(message) : nullptr;
  }

  /// False, and nothing is written, if the ids break off where a text does not end.
  Result<bool> RenderReplay(const std::vector<TokenId>& ids) {
    const std::size_t begin = writer_.size();
    MEGALITH_RETURN_IF_ERROR(RenderGenerationPrefix());
    writer_.Ids(ids);
    const Channel open = writer_.OpenChannel();
    if (open == Channel::kThink || open == Channel::kResponse) {
      // A turn that was cut is closed as if its text had been written anew.
      if (open == Channel::kThink) {
        MEGALITH_RETURN_IF_ERROR(writer_.Close("think"));
        MEGALITH_RETURN_IF_ERROR(writer_.Open("response"));
      }
      MEGALITH_RETURN_IF_ERROR(writer_.Close("response"));
      MEGALITH_RETURN_IF_ERROR(writer_.CloseMessage());
    } else if (writer_.ClosedTag() == "message") {
      writer_.EndOfMessage();
    } else {
      writer_.Truncate(begin);
      return false;
    }
    ++rendered_.num_replayed_turns;
    return true;
  }

  Status RenderCall(const ToolCall& call, std::string_view index) {
    if (call.name.empty()) return Fail(ErrorCode::kUsage, "function name expected, none found");
    MEGALITH_RETURN_IF_ERROR(writer_.Open("call", {{"tool", call.name}, {"index", index}}));
    if (!IsBlank(call.arguments)) {
      const auto arguments = ParseJson(call.arguments, JsonDialect::kPython);
      if (arguments) {
        MEGALITH_RETURN_IF_ERROR(RenderArguments(*arguments));
      } else if (arguments.error().code == ErrorCode::kOutOfRange) {
        return Fail(ErrorCode::kOutOfRange, "arguments: {}", arguments.error().message);
      } else {
        // What the model once wrote wrongly goes back to it as it is.
        MEGALITH_RETURN_IF_ERROR(writer_.Open("json", {{"type", "object"}}));
        MEGALITH_RETURN_IF_ERROR(writer_.Text(call.arguments));
        MEGALITH_RETURN_IF_ERROR(writer_.Close("json"));
      }
    }
    return writer_.Close("call");
  }

  Status RenderArguments(const JsonValue& arguments) {
    if (!arguments.is_object()) {
      return Fail(ErrorCode::kUsage, "arguments: JSON object expected, {} found",
                  JsonKindName(arguments.kind()));
    }
    for (const auto& [key, value] : arguments.members()) {
      MEGALITH_RETURN_IF_ERROR(
          writer_.Open("argument", {{"key", key}, {"type", JsonKindName(value.kind())}}));
      MEGALITH_RETURN_IF_ERROR(
          writer_.Text(value.is_string() ? value.text() : WritePythonJson(value)));
      MEGALITH_RETURN_IF_ERROR(writer_.Close("argument"));
    }
    return {};
  }

  Status RenderToolResults(std::span<const Message> run) {
    MEGALITH_ASSIGN_OR_RETURN(const std::vector<ToolResult> results, OrderToolResults(run));
    for (const ToolResult& result : results) {
      ++num_results_;
      MEGALITH_RETURN_IF_ERROR(writer_.Open(
          "message",
          {{"role", "tool"}, {"tool", result.name}, {"index", std::to_string(num_results_)}}));
      MEGALITH_RETURN_IF_ERROR(RenderContent(*result.message));
      MEGALITH_RETURN_IF_ERROR(writer_.CloseMessage());
    }
    return {};
  }

  // In the order of the last assistant message's calls if every result names one of them, else as
  // given. Calls that share an id take the results with that id in order.
  Result<std::vector<ToolResult>> OrderToolResults(std::span<const Message> run) {
    static const std::vector<ToolCall> no_calls;
    const std::vector<ToolCall>& calls = last_calls_ == nullptr ? no_calls : *last_calls_;
    std::map<std::string_view, std::vector<std::size_t>> positions;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i].id.empty()) positions[calls[i].id].push_back(i);
    }

    struct Placed {
      std::size_t position;
      const Message* message;
    };
    std::vector<Placed> placed;
    std::map<std::string_view, std::size_t> num_used;
    for (const Message& message : run) {
      const auto found = positions.find(message.tool_call_id);
      if (found == positions.end()) break;
      std::size_t& used = num_used[message.tool_call_id];
      const std::size_t i = std::min(used++, found->second.size() - 1);
      placed.push_back({found->second[i], &message});
    }
    std::vector<ToolResult> results;
    if (placed.size() == run.size()) {
      std::stable_sort(placed.begin(), placed.end(),
                       [](const Placed& a, const Placed& b) { return a.position < b.position; });
      for (const auto& [position, message] : placed) {
        results.push_back({message, calls[position].name});
      }
      return results;
    }
    for (std::size_t i = 0; i < run.size(); ++i) {
      std::string name = run[i].tool.empty() ? run[i].name : run[i].tool;
      const std::size_t index = num_results_ + i;
      if (name.empty() && index < calls.size()) name = calls[index].name;
      if (name.empty()) {
        num_right_ = i;
        return Fail(ErrorCode::kUsage,
                    "the id of a call of the last assistant message expected, \"{}\" found",
                    run[i].tool_call_id.substr(0, 64));
      }
      results.push_back({&run[i], std::move(name)});
    }
    return results;
  }

  // What stands behind the history.
  Status RenderRequest() {
    if (options_.tool_choice == ToolChoice::kRequired) {
      MEGALITH_RETURN_IF_ERROR(writer_.GeneratedMessage("tool-choice", kToolChoiceRequiredPrompt));
    } else if (options_.tool_choice == ToolChoice::kNone) {
      MEGALITH_RETURN_IF_ERROR(writer_.GeneratedMessage("tool-choice", kToolChoiceNonePrompt));
    }
    if (options_.response_format == ResponseFormat::kJsonObject) {
      MEGALITH_RETURN_IF_ERROR(writer_.GeneratedMessage("response-format", kJsonObjectPrompt));
    } else if (options_.response_format == ResponseFormat::kJsonSchema) {
      MEGALITH_RETURN_IF_ERROR(
          writer_.GeneratedMessage("response-format", JsonSchemaPrompt(options_.response_schema)));
    }
    return options_.generation_prefix ? RenderGenerationPrefix() : Status();
  }

  Status RenderGenerationPrefix() {
    MEGALITH_RETURN_IF_ERROR(writer_.Open("message", {{"role", "assistant"}}));
    return writer_.Open(options_.thinking ? "think" : "response");
  }

  PromptWriter writer_;
  const ChatOptions& options_;
  const ReplayTurn& replay_;
  RenderedChat rendered_;
  const std::vector<ToolCall>* last_calls_ = nullptr;  // of the last assistant message
  std::size_t num_results_ = 0;                        // tool messages since then
  std::size_t num_right_ = 0;  // of a run of tool messages: those in front of the one at fault
};

}  // namespace

Result<RenderedChat> RenderChat(const Tokenizer& tokenizer, const Conversation& conversation,
                                const ChatOptions& options, const ReplayTurn& replay) {
  MEGALITH_ASSIGN_OR_RETURN(const ControlTokens control, tokenizer.FindControlTokens());
  return ChatRenderer(tokenizer, control, options, replay).Render(conversation);
}

}  // namespace megalith::text
