#pragma once

// The literal texts of the chat format. They are part of the model's input: every byte counts.

#include <string>
#include <string_view>

#include "text/chat.h"

namespace megalith::text {

std::string StaticToolsPrompt(const JsonValue& tools);
std::string DynamicToolsPrompt(const JsonValue& tools);
/// REQUIRES effort != kOmitted.
std::string EffortPrompt(Effort effort);
std::string JsonSchemaPrompt(const JsonValue& schema);

inline constexpr std::string_view kToolChoiceRequiredPrompt =
    "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.";

inline constexpr std::string_view kToolChoiceNonePrompt =
    "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.";

inline constexpr std::string_view kJsonObjectPrompt =
    "The system is invoked with `response_format=json_object`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";

}  // namespace megalith::text
