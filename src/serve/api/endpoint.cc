#include "serve/api/endpoint.h"

#include <algorithm>
#include <chrono>

namespace megalith::serve {

tl::expected<text::JsonValue, ApiError> ParseBody(const http::Request& request) {
  auto body = text::ParseJson(request.body);
  if (body) return std::move(*body);
  ApiError error;
  error.code = ApiErrorCode::kInvalidJson;
  error.message = "request body: " + body.error().message;
  return tl::unexpected(std::move(error));
}

std::optional<ApiError> CheckModelName(const ServiceOptions& options, const std::string& name) {
  const auto& aliases = options.aliases;
  if (name.empty() || options.accept_any_model || name == options.model ||
      std::find(aliases.begin(), aliases.end(), name) != aliases.end()) {
    return std::nullopt;
  }
  ApiError error =
      ToApiError({ErrorCode::kUsage,
                  fmt::format("model: \"{}\" expected, \"{}\" found", options.model, name)});
  error.code = ApiErrorCode::kModelNotFound;
  error.param = "model";
  return error;
}

std::optional<ApiError> CheckPromptLength(std::size_t num_tokens, std::int64_t max_positions) {
  const auto tokens = static_cast<std::int64_t>(num_tokens);
  if (tokens < max_positions) return std::nullopt;
  return ContextLengthError(tokens, max_positions);
}

std::int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void RespondJson(http::Exchange& exchange, const text::JsonValue& body) {
  http::Response response;
  response.body = WriteCompactJson(body);
  exchange.Respond(std::move(response));
}

}  // namespace megalith::serve
