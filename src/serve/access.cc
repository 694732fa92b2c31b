#include "serve/access.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

namespace megalith::serve {
namespace {

std::optional<std::string_view> BearerToken(std::string_view value) {
  constexpr std::string_view kScheme = "bearer ";
  if (value.size() < kScheme.size()) return std::nullopt;
  const bool has_scheme =
      std::equal(kScheme.begin(), kScheme.end(), value.begin(), [](char expected, char found) {
        return expected == static_cast<char>(std::tolower(static_cast<unsigned char>(found)));
      });
  if (!has_scheme) return std::nullopt;
  value.remove_prefix(kScheme.size());
  while (value.starts_with(' ')) value.remove_prefix(1);
  return value;
}

}  // namespace

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  std::uint8_t difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Of another length the comparison goes on with a itself, and the result stands already.
    const char other = a.size() == b.size() ? b[i] : a[i];
    difference = static_cast<std::uint8_t>(difference | static_cast<std::uint8_t>(a[i] ^ other));
  }
  return difference == 0;
}

bool HasValidKey(const http::Request& request, const std::vector<std::string>& keys) {
  if (keys.empty()) return true;
  std::optional<std::string_view> given;
  if (const std::string* header = request.FindHeader("authorization")) given = BearerToken(*header);
  if (!given) {
    if (const std::string* header = request.FindHeader("x-api-key")) given = *header;
  }
  if (!given) return false;
  bool valid = false;
  for (const std::string& key : keys) valid |= EqualInConstantTime(*given, key);
  return valid;
}

std::vector<http::Header> CorsHeaders(const http::Request& request,
                                      const std::vector<std::string>& origins) {
  const std::string* origin = request.FindHeader("origin");
  if (origin == nullptr || origins.empty()) return {};
  const auto has = [&origins](std::string_view name) {
    return std::find(origins.begin(), origins.end(), name) != origins.end();
  };
  const bool any = has("*");
  if (!any && !has(*origin)) return {};
  std::vector<http::Header> headers = {{"Access-Control-Allow-Origin", any ? "*" : *origin},
                                       {"Access-Control-Expose-Headers", "X-Request-Id"}};
  if (!any) headers.push_back({"Vary", "Origin"});
  return headers;
}

bool IsForeignPage(const http::Request& request, const std::vector<std::string>& origins) {
  const std::string* origin = request.FindHeader("origin");
  if (origin == nullptr) return false;
  for (const std::string& allowed : origins) {
    if (allowed == "*" || allowed == *origin) return false;
  }
  const std::string* host = request.FindHeader("host");
  const std::size_t scheme_end = origin->find("://");
  // "null" has no host and is foreign.
  return host == nullptr || scheme_end == std::string::npos ||
         std::string_view(*origin).substr(scheme_end + 3) != *host;
}

bool IsPreflight(const http::Request& request) {
  return request.method == "OPTIONS" && request.FindHeader("origin") != nullptr &&
         request.FindHeader("access-control-request-method") != nullptr;
}

}  // namespace megalith::serve
