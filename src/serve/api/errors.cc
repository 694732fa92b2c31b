#include "serve/api/errors.h"

#include <algorithm>
#include <array>

#include "serve/api/json_build.h"
#include "text/utf8.h"

namespace megalith::serve {
namespace {

struct Row {
  ApiErrorCode code;
  int status;
  std::string_view type;       ///< OpenAI's
  std::string_view anthropic;  ///< Anthropic's
  std::string_view text;       ///< machine-readable code
  int retry_after_seconds;     ///< 0: no use in trying again
};

constexpr std::string_view kInvalid = "invalid_request_error";
constexpr std::array<Row, 16> kRows = {{
    {ApiErrorCode::kInvalidJson, 400, kInvalid, kInvalid, "invalid_json", 0},
    {ApiErrorCode::kInvalidValue, 400, kInvalid, kInvalid, "invalid_value", 0},
    {ApiErrorCode::kUnknownParameter, 400, kInvalid, kInvalid, "unknown_parameter", 0},
    {ApiErrorCode::kUnsupported, 400, kInvalid, kInvalid, "unsupported", 0},
    {ApiErrorCode::kContextLength, 400, kInvalid, kInvalid, "context_length_exceeded", 0},
    {ApiErrorCode::kModelNotFound, 404, kInvalid, "not_found_error", "model_not_found", 0},
    {ApiErrorCode::kUnknownEndpoint, 404, kInvalid, "not_found_error", "unknown_endpoint", 0},
    {ApiErrorCode::kMethodNotAllowed, 405, kInvalid, kInvalid, "method_not_allowed", 0},
    {ApiErrorCode::kInvalidApiKey, 401, "authentication_error", "authentication_error",
     "invalid_api_key", 0},
    {ApiErrorCode::kForeignOrigin, 403, "permission_error", "permission_error",
     "origin_not_allowed", 0},
    {ApiErrorCode::kLoading, 503, "service_unavailable", "overloaded_error", "model_loading", 5},
    {ApiErrorCode::kBusy, 429, "rate_limit_error", "rate_limit_error", "queue_full", 2},
    {ApiErrorCode::kShuttingDown, 503, "service_unavailable", "overloaded_error", "shutting_down",
     10},
    {ApiErrorCode::kNumeric, 500, "server_error", "api_error", "numeric_error", 0},
    {ApiErrorCode::kOutOfMemory, 503, "server_error", "overloaded_error", "out_of_memory", 2},
    {ApiErrorCode::kInternal, 500, "server_error", "api_error", "internal_error", 0},
}};

const Row& FindRow(ApiErrorCode code) {
  const auto row =
      std::find_if(kRows.begin(), kRows.end(), [code](const Row& r) { return r.code == code; });
  return row == kRows.end() ? kRows.back() : *row;
}

ApiErrorCode FromErrorCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
    case ErrorCode::kOutOfRange:
      return ApiErrorCode::kInvalidValue;
    case ErrorCode::kUnsupported:
      return ApiErrorCode::kUnsupported;
    case ErrorCode::kBusy:
      return ApiErrorCode::kBusy;
    case ErrorCode::kCancelled:
      return ApiErrorCode::kShuttingDown;
    case ErrorCode::kNumeric:
      return ApiErrorCode::kNumeric;
    case ErrorCode::kOutOfMemory:
      return ApiErrorCode::kOutOfMemory;
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
    case ErrorCode::kBadFile:
    case ErrorCode::kBadConfig:
    case ErrorCode::kBadTensor:
    case ErrorCode::kBadProgram:
    case ErrorCode::kInternal:
      return ApiErrorCode::kInternal;
  }
  return ApiErrorCode::kInternal;
}

// "messages[2].content" of "messages[2].content: string expected, ..."; empty if there is none.
std::string LeadingPath(std::string_view message) {
  constexpr std::size_t kMaxBytes = 1024;
  const std::size_t end = message.find(": ");
  if (end == std::string_view::npos || end > kMaxBytes) return {};
  const std::string_view path = message.substr(0, end);
  // A member of the request, then what a client may have named in any way ("$ref", "a b").
  const auto first_end = std::find_if_not(path.begin(), path.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
  const bool is_path = first_end == path.end() || *first_end == '.' || *first_end == '[';
  return is_path ? text::RepairUtf8(path) : std::string();
}

// Messages repeat what clients sent, which may be long, or cut inside a character by whoever
// shortened it.
std::string ShortText(const std::string& message) {
  constexpr std::size_t kMaxBytes = 1024;
  if (message.size() <= kMaxBytes) return text::RepairUtf8(message);
  return text::RepairUtf8(message.substr(0, kMaxBytes)) + "...";
}

}  // namespace

ApiError ToApiError(const Error& error) {
  ApiError api;
  api.code = FromErrorCode(error.code);
  api.message = ShortText(error.message);
  if (HttpStatus(api.code) == 400) api.param = LeadingPath(error.message);
  return api;
}

ApiError ContextLengthError(std::int64_t prompt_tokens, std::int64_t max_positions) {
  ApiError error;
  error.code = ApiErrorCode::kContextLength;
  error.message = fmt::format(
      "the prompt has {} tokens; this model's context is {} tokens, one of which is kept for the "
      "answer",
      prompt_tokens, max_positions);
  error.context = {prompt_tokens, max_positions};
  return error;
}

int HttpStatus(ApiErrorCode code) { return FindRow(code).status; }

std::string_view ErrorCodeText(ApiErrorCode code) { return FindRow(code).text; }

text::JsonValue ErrorBody(const ApiError& error, ErrorStyle style) {
  const Row& row = FindRow(error.code);
  std::vector<JsonMember> members = {
      {"message", Json(error.message)},
      {"type", Json(style == ErrorStyle::kOpenAi ? row.type : row.anthropic)},
      {"param", error.param.empty() ? JsonValue() : Json(error.param)},
      {"code", Json(row.text)}};
  if (error.context) {
    members.push_back({"prompt_tokens", Json(error.context->prompt_tokens)});
    members.push_back({"max_context_tokens", Json(error.context->max_positions)});
  }
  if (error.load_fraction) {
    members.push_back({"percent", Json(*error.load_fraction * 100.0)});
  }
  JsonValue object = JsonObject(std::move(members));
  if (style == ErrorStyle::kOpenAi) return JsonObject({{"error", std::move(object)}});
  return JsonObject({{"type", Json("error")}, {"error", std::move(object)}});
}

http::Response ErrorResponse(const ApiError& error, ErrorStyle style) {
  const Row& row = FindRow(error.code);
  http::Response response;
  response.status = row.status;
  response.body = WriteCompactJson(ErrorBody(error, style));
  if (row.retry_after_seconds > 0) {
    response.headers.push_back({"Retry-After", std::to_string(row.retry_after_seconds)});
  }
  if (error.code == ApiErrorCode::kInvalidApiKey) {
    response.headers.push_back({"WWW-Authenticate", "Bearer"});
  }
  return response;
}

}  // namespace megalith::serve
