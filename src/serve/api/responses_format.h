#pragma once

#include <memory>

#include "serve/api/chat_format.h"
#include "serve/api/responses_call.h"

namespace megalith::serve {

struct ResponsesFormatOptions {
  bool include_encrypted_reasoning = false;
  bool parallel_tool_calls = true;
  JsonValue tools;
  JsonValue tool_choice;
};
std::unique_ptr<ChatFormat> MakeResponsesFormat(AnswerHead head, ResponsesFormatOptions options);

}  // namespace megalith::serve
