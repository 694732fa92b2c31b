#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace megalith::serve::http {

struct RequestTarget {
  std::string path;   ///< percent-decoded; begins with "/", or is "*"
  std::string query;  ///< behind the first "?", as it came
};

/// Takes apart what stands between method and version of a request line: "/path?query",
/// "http://host/path?query" (RFC 9112 3.2.2) or "*". kUsage for anything else, for "%" without two
/// hexadecimal digits, and for control characters, encoded or not: a path goes into logs.
Result<RequestTarget> ParseRequestTarget(std::string_view target);

}  // namespace megalith::serve::http
