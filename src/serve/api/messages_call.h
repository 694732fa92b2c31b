#pragma once

#include "serve/api/chat_call.h"

namespace megalith::serve {

/// The body of POST /v1/messages (Anthropic's API) and of its count_tokens.
Result<ChatCall> ReadMessagesCall(const text::JsonValue& body, const text::Tokenizer& tokenizer);

}  // namespace megalith::serve
