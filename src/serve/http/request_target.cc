#include "serve/http/request_target.h"

#include <algorithm>
#include <utility>

namespace megalith::serve::http {
namespace {

/// -1 if `c` is not a hexadecimal digit.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

bool StartsWithIgnoringCase(std::string_view text, std::string_view lower_case_prefix) {
  return text.size() >= lower_case_prefix.size() &&
         std::equal(lower_case_prefix.begin(), lower_case_prefix.end(), text.begin(),
                    [](char lower, char c) {
                      return lower == (c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
                    });
}

}  // namespace

Result<RequestTarget> ParseRequestTarget(std::string_view target) {
  if (std::any_of(target.begin(), target.end(),
                  [](char c) { return IsControl(c) || c == ' ' || c == '#'; })) {
    return Fail(ErrorCode::kUsage,
                "request target: control character, space or '#' in it; they must be encoded");
  }
  RequestTarget result;
  if (target == "*") {
    result.path = "*";
    return result;
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!StartsWithIgnoringCase(target, scheme)) continue;
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    if (end == 0) return Fail(ErrorCode::kUsage, "request target: no host behind the scheme");
    target.remove_prefix(end);
    // RFC 9110 4.2.3: an empty path is "/".
    if (!target.starts_with('/')) result.path = "/";
    break;
  }
  const std::size_t query = target.find('?');
  if (query != std::string_view::npos) {
    result.query = target.substr(query + 1);
    target = target.substr(0, query);
  }
  if (result.path.empty() && !target.starts_with('/')) {
    return Fail(ErrorCode::kUsage, "request target: a path that begins with '/' expected");
  }
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      result.path += target[i];
      continue;
    }
    const int high = i + 1 < target.size() ? HexDigit(target[i + 1]) : -1;
    const int low = i + 2 < target.size() ? HexDigit(target[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return Fail(ErrorCode::kUsage, "request target: '%' without two hexadecimal digits, byte {}",
                  i);
    }
    const char decoded = static_cast<char>(high * 16 + low);
    if (IsControl(decoded)) {
      return Fail(ErrorCode::kUsage, "request target: encoded control character, byte {}", i);
    }
    result.path += decoded;
    i += 2;
  }
  return result;
}

}  // namespace megalith::serve::http
