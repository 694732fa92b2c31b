#pragma once

#include <string_view>

#include "serve/http/exchange.h"

namespace megalith::serve::http {

/// An OpenAI error object, `{"error": {"message", "type", "param": null, "code"}}`. `type` follows
/// from the status: "invalid_request_error" below 500, else "server_error". Bytes of `message` that
/// are not UTF-8 are replaced.
Response ErrorResponse(int status, std::string_view code, std::string_view message);

}  // namespace megalith::serve::http
