#include "serve/http/response_head.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <iterator>

#include "base/log.h"

namespace megalith::serve::http {
namespace {

bool IsTokenCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsWellFormed(std::string_view name, std::string_view value) {
  return !name.empty() && std::all_of(name.begin(), name.end(), IsTokenCharacter) &&
         std::none_of(value.begin(), value.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return (byte < 0x20 && c != '\t') || byte == 0x7f;
         });
}

bool IsFraming(std::string_view name) {
  constexpr std::string_view kNames[] = {"Content-Length", "Transfer-Encoding", "Connection"};
  return std::any_of(std::begin(kNames), std::end(kNames), [name](std::string_view framing) {
    return boost::beast::iequals({name.data(), name.size()}, {framing.data(), framing.size()});
  });
}

}  // namespace

std::string ResponseHead(const Response& response, const AnswerFraming& framing) {
  const boost::beast::string_view reason = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(response.status)));
  std::string head;
  const auto out = std::back_inserter(head);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\n", response.status,
                 std::string_view(reason.data(), reason.size()));
  fmt::format_to(out, "Date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(std::time(nullptr)));
  const auto add = [&](std::string_view name, std::string_view value) {
    if (!IsWellFormed(name, value)) {
      return LogFormat(LogLevel::kError, "request {}: header '{}' of its answer is not well-formed",
                       framing.request_id, name);
    }
    fmt::format_to(out, "{}: {}\r\n", name, value);
  };
  add("X-Request-Id", framing.request_id);
  const bool has_body = StatusHasBody(response.status);
  if (has_body && !response.content_type.empty()) add("Content-Type", response.content_type);
  if (has_body) {
    if (!framing.stream) {
      fmt::format_to(out, "Content-Length: {}\r\n", response.body.size());
    } else if (!framing.http_1_0) {
      head += "Transfer-Encoding: chunked\r\n";
    }
  }
  // HTTP/1.0 closes unless told otherwise, HTTP/1.1 keeps.
  if (!framing.keep_alive) {
    head += "Connection: close\r\n";
  } else if (framing.http_1_0) {
    head += "Connection: keep-alive\r\n";
  }
  for (const Header& header : response.headers) {
    if (IsFraming(header.name)) {
      LogFormat(LogLevel::kError, "request {}: its answer may not set '{}'", framing.request_id,
                header.name);
      continue;
    }
    add(header.name, header.value);
  }
  head += "\r\n";
  return head;
}

bool StatusHasBody(int status) { return status >= 200 && status != 204 && status != 304; }

std::string Chunk(std::string_view piece) {
  return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

}  // namespace megalith::serve::http
