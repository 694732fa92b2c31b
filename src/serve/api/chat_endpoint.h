#pragma once

// From a chat call to a running job: the one path of all chat APIs.

#include <functional>
#include <memory>

#include "serve/api/chat_call.h"
#include "serve/api/chat_format.h"
#include "serve/api/endpoint.h"
#include "text/chat_render.h"

namespace megalith::serve {

/// The prompt of a call: turns that the service generated itself stand in it as they were
/// generated.
Result<text::RenderedChat> RenderCall(const EndpointContext& context, const ChatCall& call);

using FormatFactory = std::function<std::unique_ptr<ChatFormat>(AnswerHead head)>;
EndpointResult StartChat(const EndpointContext& context, ExchangePtr exchange, ChatCall call,
                         const FormatFactory& make_format);

/// POST /v1/chat/completions
EndpointResult PostChatCompletions(const EndpointContext& context, ExchangePtr exchange);

}  // namespace megalith::serve
