#pragma once

#include "serve/api/chat_call.h"

namespace megalith::serve {

struct ResponsesCall {
  ChatCall chat;
  bool include_encrypted_reasoning = false;
  text::JsonValue tools;        ///< as the client sent them, for the answer
  text::JsonValue tool_choice;  ///< the same
};

/// The body of POST /v1/responses. Nothing is stored, so the whole conversation stands in `input`.
Result<ResponsesCall> ReadResponsesCall(const text::JsonValue& body,
                                        const text::Tokenizer& tokenizer);

/// Reasoning as the opaque text that clients keep and send back instead of showing it. It is not
/// encrypted.
std::string PackReasoning(const std::string& reasoning);
/// kUsage, beginning with `path`, for text that PackReasoning did not make.
Result<std::string> UnpackReasoning(const std::string& packed, std::string_view path);

}  // namespace megalith::serve
