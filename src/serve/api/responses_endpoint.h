#pragma once

#include "serve/api/endpoint.h"

namespace megalith::serve {

/// POST /v1/responses, as far as coding agents use it; nothing is stored.
EndpointResult PostResponses(const EndpointContext& context, ExchangePtr exchange);

}  // namespace megalith::serve
