#include "serve/http/error_response.h"

#include <nlohmann/json.hpp>

namespace megalith::serve::http {

Response ErrorResponse(int status, std::string_view code, std::string_view message) {
  const nlohmann::ordered_json error = {
      {"message", message},
      {"type", status < 500 ? "invalid_request_error" : "server_error"},
      {"param", nullptr},
      {"code", code}};
  Response response;
  response.status = status;
  response.body = nlohmann::ordered_json({{"error", error}})
                      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return response;
}

}  // namespace megalith::serve::http
