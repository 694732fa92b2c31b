#pragma once

#include "serve/api/endpoint.h"

namespace megalith::serve {

/// POST /v1/completions
EndpointResult PostCompletions(const EndpointContext& context, ExchangePtr exchange);

}  // namespace megalith::serve
