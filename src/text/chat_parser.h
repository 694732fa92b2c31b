#pragma once

// Generated token ids of an assistant turn into reasoning, content and tool calls, while they come.
//
// The parser works on ids, never on decoded text: only the real control ids are markers, and what
// merely looks like one is content. One state machine serves streaming and whole replies. Text that
// was given out is never revised; all text inside a channel is given out, byte for byte (invalid
// UTF-8 as U+FFFD); text outside any channel is dropped, as the format gives it no meaning.
//
//   open/close marker   a tag begins; its text is collected until <|sep|>
//   <|sep|>             the tag takes effect
//   stop id             the reply ends
//   other special ids   leave no text (or their name, on request)
//
// A close tag also takes effect without <|sep|> if another marker or the end follows at once:
// models are seen to shorten the close of their thinking that way. Opening a section closes the
// one before it.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "text/tool_call_ids.h"
#include "text/utf8.h"

namespace megalith::text {

/// Where the text of the next token belongs.
enum class Channel { kNone, kThink, kResponse, kTools, kCall, kArgument, kJson };

/// The channel a prompt leaves open: what a generation behind it begins with.
Channel FindOpenChannel(const Tokenizer& tokenizer, const ControlTokens& control,
                        std::span<const TokenId> prompt);

struct ChatEvent {
  enum class Kind {
    kReasoning,          ///< text: piece of the reasoning
    kContent,            ///< text: piece of the answer
    kToolCallBegin,      ///< text: the tool's name; tool_call_id is set
    kToolCallArguments,  ///< text: piece of the arguments' JSON text; all pieces join to valid JSON
    kToolCallEnd,        ///< the call is complete
    kToolCallDropped,    ///< the call will not be completed; it must not be reported as one
  };
  Kind kind;
  std::string text;
  std::size_t tool_call_idx = 0;  ///< of begun calls, from 0
  std::string tool_call_id;
  friend bool operator==(const ChatEvent&, const ChatEvent&) = default;
};

enum class FinishReason { kStop, kLength, kToolCalls };

/// "stop", "length", "tool_calls".
std::string_view FinishReasonName(FinishReason reason);

struct ChatParserOptions {
  Channel start = Channel::kThink;  ///< FindOpenChannel of the prompt
  /// Ids that end the reply besides <|end_of_msg|> and [EOS].
  std::vector<TokenId> stop_ids;
  /// Applied to content only.
  std::vector<std::string> stop_strings;
  SpecialText special = SpecialText::kSkip;
  ToolCallIds tool_call_ids;
};

class ChatParser {
 public:
  /// kUnsupported if the vocabulary has no control tokens; kUsage for an empty stop string.
  static Result<ChatParser> Create(const Tokenizer& tokenizer, ChatParserOptions options = {});

  /// Takes the next generated id and appends what it brings; a piece is joined to the last event
  /// in `events` if that is a piece of the same text. Ids after the end are ignored. kOutOfRange
  /// for an id outside the vocabulary.
  Status Push(TokenId id, std::vector<ChatEvent>& events);

  /// No further ids come. `hit_limit`: generation was cut by a token limit, not ended by the model.
  /// Gives out what was held back; an unfinished tool call is dropped. kLength if the limit was
  /// hit, whole calls or not.
  FinishReason Finish(bool hit_limit, std::vector<ChatEvent>& events);

  /// A stop id or a stop string was seen: generation can end.
  bool finished() const { return finished_; }
  /// The message element was closed: only a stop id can follow.
  bool message_closed() const { return message_closed_; }
  /// Constraints on the answer's form apply in kResponse only; thinking is free.
  Channel channel() const { return channel_; }
  /// The next token may belong to a tag's text rather than to the channel.
  bool in_tag() const { return tag_kind_.has_value(); }
  /// The stop string that ended the reply, if one did.
  std::optional<std::size_t> matched_stop_string() const { return stop_filter_.matched(); }

 private:
  enum class TagKind { kOpen, kClose };
  struct Call {
    std::size_t idx = 0;
    bool has_arguments = false;
    std::string json;  // text of a json element
  };
  struct Argument {
    std::string key;
    bool is_string = false;
    std::string value;  // of other types than string: given out when complete
  };

  ChatParser(const Tokenizer& tokenizer, const ControlTokens& control, ChatParserOptions options,
             StopStringFilter stop_filter);

  void PushMarker(TagKind kind, std::vector<ChatEvent>& events);
  void PushText(std::string_view text, std::vector<ChatEvent>& events);
  void FlushText(std::vector<ChatEvent>& events);
  void EndTag(std::vector<ChatEvent>& events);
  void OpenTag(std::string_view text, std::vector<ChatEvent>& events);
  void CloseTag(std::string_view name, std::vector<ChatEvent>& events);
  void EnterSection(Channel channel, std::vector<ChatEvent>& events);
  void BeginCall(const std::string& name, std::vector<ChatEvent>& events);
  void EndCall(std::vector<ChatEvent>& events);
  void DropCall(std::vector<ChatEvent>& events);
  void BeginArgument(const std::string& key, const std::string* type,
                     std::vector<ChatEvent>& events);
  void EndArgument(std::vector<ChatEvent>& events);
  void EmitArguments(std::string text, std::vector<ChatEvent>& events);
  std::string ArgumentPrefix();
  bool IsStopId(TokenId id) const;

  Tokenizer tokenizer_;
  ControlTokens control_;
  ChatParserOptions options_;
  StopStringFilter stop_filter_;

  Channel channel_;
  Utf8Repair repair_;                // of the current channel
  std::optional<TagKind> tag_kind_;  // a tag is being read
  std::string tag_;
  std::optional<Call> call_;
  std::optional<Argument> argument_;
  std::size_t num_begun_calls_ = 0;
  std::size_t num_complete_calls_ = 0;
  bool message_closed_ = false;
  bool finished_ = false;
};

/// A whole reply, put together from events. Streaming clients that join the pieces get the same.
struct ChatReply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  ///< complete ones only, in order
  bool dropped_call = false;         ///< a call was begun behind the text and not completed
  FinishReason finish_reason = FinishReason::kStop;

  /// The assistant message to put into the history.
  Message ToMessage() const;
};

class ChatReplyBuilder {
 public:
  void Add(const ChatEvent& event);
  ChatReply Build(FinishReason reason) &&;

 private:
  ChatReply reply_;
  std::optional<ToolCall> call_;
};

/// All ids of a reply at once.
Result<ChatReply> ParseReply(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                             ChatParserOptions options = {}, bool hit_limit = false);

}  // namespace megalith::text
