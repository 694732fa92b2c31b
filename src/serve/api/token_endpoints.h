#pragma once

// Tokens and prompts without generating anything.

#include "serve/api/endpoint.h"

namespace megalith::serve {

/// POST /tokenize
EndpointResult PostTokenize(const EndpointContext& context, ExchangePtr exchange);
/// POST /detokenize
EndpointResult PostDetokenize(const EndpointContext& context, ExchangePtr exchange);
/// POST /apply-template: a chat request's prompt.
EndpointResult PostApplyTemplate(const EndpointContext& context, ExchangePtr exchange);

}  // namespace megalith::serve
