#include "text/chat_prompts.h"

namespace megalith::text {
namespace {

std::string_view EffortName(Effort effort) {
  switch (effort) {
    case Effort::kOmitted:
      return "";
    case Effort::kLow:
      return "low";
    case Effort::kHigh:
      return "high";
    case Effort::kMax:
      return "max";
  }
  return "";
}

// Tool and schema JSON stands in a fenced block: compact, keys sorted at every level.
std::string WithJsonBlock(std::string_view text, const JsonValue& json) {
  std::string prompt(text);
  prompt.append("```json\n").append(WriteCompactSortedJson(json)).append("\n```");
  return prompt;
}

}  // namespace

std::string StaticToolsPrompt(const JsonValue& tools) {
  return WithJsonBlock(
      "# Tools\n"
      "Here are the available tools, described in JSONSchema.\n"
      "\n",
      tools);
}

std::string DynamicToolsPrompt(const JsonValue& tools) {
  return WithJsonBlock(
      "## New Tools Available\n"
      "The system dynamically extends the toolset via lazy-loading.\n"
      "You have access to all existing and extended tools.\n"
      "Here are the specs for the extended tools.\n"
      "\n",
      tools);
}

std::string EffortPrompt(Effort effort) {
  std::string prompt =
      "`thinking_effort` guides on how much to think in your thinking channel (not including the "
      "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
      "Now the system is invoked with `thinking_effort=";
  prompt.append(EffortName(effort)).append("`.");
  return prompt;
}

std::string JsonSchemaPrompt(const JsonValue& schema) {
  return WithJsonBlock(
      "The system is invoked with `response_format=json_schema`.\n"
      "Your response must be raw JSON data without markdown code blocks (```json) or any "
      "additional formatting.\n"
      "The JSON data must match the following schema:\n",
      schema);
}

}  // namespace megalith::text
