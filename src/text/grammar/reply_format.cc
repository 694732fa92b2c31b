#include "text/grammar/reply_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace megalith::text::grammar {
namespace {

ReplyTool ReadTool(const JsonValue& tool, std::size_t idx, const MemberPaths& paths) {
  const JsonValue& function = *tool.Find("function");
  ReplyTool read;
  read.name = function.Find("name")->text();
  read.path = idx < paths.parameters.size() ? paths.parameters[idx]
                                            : fmt::format("tools[{}].function.parameters", idx);
  if (const JsonValue* parameters = function.Find("parameters")) read.parameters = *parameters;
  if (const JsonValue* strict = function.Find("strict")) read.strict = strict->boolean();
  return read;
}

}  // namespace

std::optional<ReplyFormat> FindReplyFormat(const ChatOptions& options, bool parallel_tool_calls) {
  ReplyFormat format;
  format.parallel_tool_calls = parallel_tool_calls;
  if (options.response_format == ResponseFormat::kJsonSchema) {
    format.content_schema = options.response_schema;
    format.content_path = options.paths.response_schema;
  } else if (options.response_format == ResponseFormat::kJsonObject) {
    format.content_schema = JsonValue::Object({{"type", JsonValue::String("object")}});
    format.content_path = "response_format";
  }
  const std::vector<JsonValue>& tools = options.tools.items();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    ReplyTool tool = ReadTool(tools[i], i, options.paths);
    if (options.tool_choice == ToolChoice::kNone) continue;
    if (options.tool_choice == ToolChoice::kFunction && tool.name != options.tool_choice_function) {
      continue;
    }
    format.tools.push_back(std::move(tool));
  }
  bool restricted = format.content_schema.has_value();
  switch (options.tool_choice) {
    case ToolChoice::kAuto:
      format.calls =
          format.tools.empty() ? ReplyFormat::Calls::kForbidden : ReplyFormat::Calls::kAllowed;
      restricted |= std::any_of(format.tools.begin(), format.tools.end(),
                                [](const ReplyTool& tool) { return tool.strict; });
      restricted |= !parallel_tool_calls && !format.tools.empty();
      break;
    case ToolChoice::kNone:
      format.calls = ReplyFormat::Calls::kForbidden;
      restricted |= !tools.empty();
      break;
    case ToolChoice::kRequired:
      format.calls = ReplyFormat::Calls::kRequired;
      restricted = true;
      break;
    case ToolChoice::kFunction:
      format.calls = ReplyFormat::Calls::kOnly;
      restricted = true;
      break;
  }
  if (!restricted) return std::nullopt;
  return format;
}

}  // namespace megalith::text::grammar
