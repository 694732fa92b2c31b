#pragma once

// Who may ask: API keys and origins of web pages.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/exchange.h"

namespace megalith::serve {

/// Takes the same time for all texts of one length.
bool EqualInConstantTime(std::string_view a, std::string_view b);

/// True if there are no keys, or if the request carries one of them: `Authorization: Bearer KEY` or
/// `x-api-key: KEY`.
bool HasValidKey(const http::Request& request, const std::vector<std::string>& keys);

/// CORS headers of an answer to this request; none if its origin is not allowed or it has none.
std::vector<http::Header> CorsHeaders(const http::Request& request,
                                      const std::vector<std::string>& origins);

/// A web page of another origin asks, and is not allowed to: its Origin is neither that of the Host
/// it asks nor among `origins`. What is no browser sends no Origin.
bool IsForeignPage(const http::Request& request, const std::vector<std::string>& origins);

/// A browser's question before the request itself (OPTIONS).
bool IsPreflight(const http::Request& request);

}  // namespace megalith::serve
