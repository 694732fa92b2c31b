#include "text/grammar/reply_grammar.h"

#include <utility>
#include <vector>

#include "text/chat_tag.h"
#include "text/grammar/schema_compiler.h"

namespace megalith::text::grammar {
namespace {

using Calls = ReplyFormat::Calls;

class Compiler {
 public:
  explicit Compiler(const ReplyFormat& format)
      : format_(format), rules_(JsonRules::Add(builder_)) {}

  Result<ReplyGrammar> Compile() && {
    const GrammarBuilder::Rule reply = builder_.NewRule();
    const StateId closed = builder_.NewState();  // the message, by its tag
    builder_.AddSymbol(closed, kEndOfReply, reply.end);
    builder_.AddSymbol(reply.end, kEndOfReply, reply.end);
    const StateId end_of_message = builder_.NewState();
    AddCloseTag(end_of_message, "message", closed);

    // Before the calls, and before the end of the message.
    const StateId tools = builder_.NewState();
    if (format_.calls != Calls::kForbidden) {
      MEGALITH_RETURN_IF_ERROR(AddTools(tools, end_of_message));
    }
    const StateId response = builder_.NewState();
    MEGALITH_RETURN_IF_ERROR(AddResponse(response, tools, end_of_message));
    const StateId think = builder_.NewState();
    AddThink(think, response, tools, reply.end);

    // One rule holds everything; a reply starts somewhere within.
    builder_.AddEmpty(reply.start, think);
    builder_.AddEmpty(reply.start, response);
    ReplyGrammar result;
    MEGALITH_ASSIGN_OR_RETURN(result.grammar, std::move(builder_).Build(reply, schemas_));
    result.in_think = think;
    result.in_response = response;
    result.ended = reply.end;
    return result;
  }

 private:
  void AddCloseTag(StateId from, std::string_view name, StateId to) {
    builder_.AddSymbol(builder_.AddBytes(builder_.AddSymbol(from, kCloseMarker), name), kSepMarker,
                       to);
  }

  void AddThink(StateId think, StateId response, StateId tools, StateId end) {
    builder_.AddSymbols(think, 0, kNumBytes - 1, think);
    builder_.MarkText(think, TextClass::kBytes);
    if (format_.free_reasoning) {
      builder_.MarkFree(think);
      builder_.AddSymbol(think, kSepMarker, think);
      builder_.AddSymbol(think, kOtherSpecial, think);
      builder_.AddSymbol(think, kEndOfReply, end);
    }
    // The closing tag may lack its separator or be left out: models are seen to shorten it so.
    const StateId tag = builder_.AddBytes(builder_.AddSymbol(think, kCloseMarker), "think");
    const StateId element = builder_.AddSymbol(tag, kSepMarker);
    const StateId open = builder_.AddSymbol(element, kOpenMarker);
    builder_.AddSymbol(tag, kOpenMarker, open);
    builder_.AddSymbol(think, kOpenMarker, open);
    builder_.AddSymbol(builder_.AddBytes(open, "response"), kSepMarker, response);
    AddToolsTag(open, tools);
  }

  // From behind the marker.
  void AddToolsTag(StateId open, StateId tools) {
    if (format_.calls == Calls::kForbidden) return;
    builder_.AddSymbol(builder_.AddBytes(open, "tools"), kSepMarker, tools);
  }

  Status AddResponse(StateId response, StateId tools, StateId end_of_message) {
    const bool may_end = format_.calls == Calls::kForbidden || format_.calls == Calls::kAllowed;
    const bool may_call = format_.calls != Calls::kForbidden;
    const StateId answered = builder_.NewState();  // behind an element that may be all there is
    const StateId empty = builder_.NewState();     // behind one that needs a call
    if (may_end) builder_.AddEmpty(answered, end_of_message);
    if (may_call) {
      const StateId open = builder_.NewState();
      builder_.AddSymbol(answered, kOpenMarker, open);
      builder_.AddSymbol(empty, kOpenMarker, open);
      AddToolsTag(open, tools);
      AddCloseTag(response, "response", empty);
    }
    if (format_.calls == Calls::kOnly) return {};
    if (!format_.content_schema) {
      const StateId text = builder_.NewState();
      builder_.AddEmpty(response, text);
      builder_.AddSymbols(text, 0, kNumBytes - 1, text);
      builder_.MarkText(text, TextClass::kBytes);
      AddCloseTag(text, "response", answered);
      return {};
    }
    SchemaCompiler schema(builder_, rules_, *format_.content_schema, format_.content_path);
    MEGALITH_ASSIGN_OR_RETURN(const RuleId rule, schema.CompileValue());
    schemas_.push_back({rule, format_.content_path});
    AddCloseTag(builder_.AddCall(response, rule), "response", answered);
    return {};
  }

  Status AddTools(StateId tools, StateId end_of_message) {
    if (format_.tools.empty()) {
      return Fail(ErrorCode::kUsage, "tools: at least one that may be called expected, none found");
    }
    const bool one = format_.calls == Calls::kOnly || !format_.parallel_tool_calls;
    const std::uint32_t max = one ? 1 : kMaxToolCalls;
    const StateId call = builder_.NewState();
    const StateId behind_call = builder_.NewState();
    builder_.AddCountUp(tools, max, max, call);
    builder_.AddCountUp(behind_call, max, max, call);
    const StateId closed = builder_.NewState();
    AddCloseTag(behind_call, "tools", closed);
    builder_.AddEmpty(closed, end_of_message);

    const StateId tag = builder_.AddSymbol(call, kOpenMarker);
    for (const ReplyTool& tool : format_.tools) {
      MEGALITH_ASSIGN_OR_RETURN(const RuleId arguments, CompileArguments(tool));
      schemas_.push_back({arguments, tool.path});
      const StateId index =
          builder_.AddBytes(tag, "call" + FormatAttribute("tool", tool.name) + " index=\"");
      const StateId quote = builder_.NewState();
      builder_.AddCountInDecimal(index, quote);
      const StateId element = builder_.AddSymbol(builder_.AddBytes(quote, "\""), kSepMarker);
      AddCloseTag(builder_.AddCall(element, arguments), "call", behind_call);
    }
    return {};
  }

  Result<RuleId> CompileArguments(const ReplyTool& tool) {
    if (tool.parameters.is_null()) {
      const GrammarBuilder::Rule none = builder_.NewRule();
      builder_.AddEmpty(none.start, none.end);
      return none.id;
    }
    const GrammarBuilder::Mark mark = builder_.GetMark();
    auto rule = SchemaCompiler(builder_, rules_, tool.parameters, tool.path).CompileArguments();
    if (rule || tool.strict || rule.error().code == ErrorCode::kUsage) return rule;
    // Not asked for to the letter: whatever arguments the format can write.
    builder_.Rollback(mark);
    static const JsonValue anything = JsonValue::Boolean(true);
    return SchemaCompiler(builder_, rules_, anything, tool.path).CompileArguments();
  }

  const ReplyFormat& format_;
  GrammarBuilder builder_;
  JsonRules rules_;
  std::vector<NeededRule> schemas_;
};

}  // namespace

Result<ReplyGrammar> CompileReply(const ReplyFormat& format) { return Compiler(format).Compile(); }

}  // namespace megalith::text::grammar
