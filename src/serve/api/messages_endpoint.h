#pragma once

// Anthropic's API, as far as coding agents use it.

#include "serve/api/endpoint.h"

namespace megalith::serve {

/// POST /v1/messages
EndpointResult PostMessages(const EndpointContext& context, ExchangePtr exchange);
/// POST /v1/messages/count_tokens
EndpointResult PostCountTokens(const EndpointContext& context, ExchangePtr exchange);

}  // namespace megalith::serve
