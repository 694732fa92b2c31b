// Bytes of a connection through the HTTP request parser. However they are cut, the requests that
// are accepted must be the same, each within the limits, and nothing may be kept waiting that is
// larger than a header. Whether a fault is seen at once or at the end of the header does depend on
// the cut.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "serve/http/request_parser.h"

namespace {

using namespace megalith::serve::http;
using State = RequestParser::State;

constexpr RequestLimits kLimits{.max_header_bytes = 512, .max_body_bytes = 256};

void Require(bool condition) {
  if (!condition) std::abort();
}

void AppendRequest(const Request& request, std::string* all) {
  *all += request.method + " " + request.path + " " + request.query + "\n";
  for (const Header& header : request.headers) *all += header.name + "=" + header.value + "\n";
  *all += request.body + "\n";
}

bool IsOpen(const RequestParser& parser) {
  return parser.state() == State::kHeader || parser.state() == State::kBody;
}

/// The requests up to the first that is refused or not complete, as text.
std::string ReadAll(std::string_view input, std::size_t step) {
  std::string all;
  std::size_t used = 0;
  std::size_t shown = 0;
  while (used < input.size()) {
    RequestParser parser(kLimits);
    while (IsOpen(parser)) {
      const std::size_t now = parser.Consume(input.substr(used, shown - used));
      Require(now <= shown - used);
      used += now;
      if (!IsOpen(parser) || (now > 0 && used < shown)) continue;
      Require(shown - used <= kLimits.max_header_bytes);
      if (shown == input.size()) return all;
      shown += std::min(step, input.size() - shown);
    }
    if (parser.state() == State::kRefused) {
      Require(parser.refusal().status >= 400 && !parser.refusal().message.empty());
      return all;
    }
    const Request request = parser.TakeRequest();
    Require(!request.method.empty() && (request.path[0] == '/' || request.path == "*"));
    Require(request.body.size() <= kLimits.max_body_bytes);
    AppendRequest(request, &all);
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string whole = ReadAll(input, std::max<std::size_t>(size, 1));
  for (const std::size_t step : {std::size_t{1}, std::size_t{3}, std::size_t{64}})
    Require(ReadAll(input, step) == whole);
  return 0;
}
