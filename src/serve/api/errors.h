#pragma once

// What a client is told when a request fails: one table from our error codes to HTTP status, OpenAI
// type and machine-readable code.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/http/exchange.h"
#include "text/json_value.h"

namespace megalith::serve {

/// Failures that a client may want to tell apart. Each has one row in the table of errors.cc.
enum class ApiErrorCode {
  kInvalidJson,
  kInvalidValue,
  kUnknownParameter,
  kUnsupported,
  kContextLength,
  kModelNotFound,
  kUnknownEndpoint,
  kMethodNotAllowed,
  kInvalidApiKey,
  kForeignOrigin,
  kLoading,
  kBusy,
  kShuttingDown,
  kNumeric,
  kOutOfMemory,
  kInternal,
};

struct ApiError {
  ApiErrorCode code = ApiErrorCode::kInternal;
  std::string message;
  std::string param;  ///< the member it is about; empty: none
  /// For kContextLength: tokens of the prompt and the most there may be, with room for one more.
  struct ContextLength {
    std::int64_t prompt_tokens;
    std::int64_t max_positions;
  };
  std::optional<ContextLength> context;
  std::optional<double> load_fraction;  ///< for kLoading: 0 to 1
};

/// From what the libraries report. A message that begins with the path of a member gives `param`.
ApiError ToApiError(const Error& error);
ApiError ContextLengthError(std::int64_t prompt_tokens, std::int64_t max_positions);

int HttpStatus(ApiErrorCode code);
/// "context_length_exceeded"
std::string_view ErrorCodeText(ApiErrorCode code);

enum class ErrorStyle { kOpenAi, kAnthropic };

/// {"error": {"message", "type", "param", "code", ...}}, or Anthropic's {"type": "error", "error":
/// {"type", "message", "code"}}.
text::JsonValue ErrorBody(const ApiError& error, ErrorStyle style);
http::Response ErrorResponse(const ApiError& error, ErrorStyle style = ErrorStyle::kOpenAi);

}  // namespace megalith::serve
