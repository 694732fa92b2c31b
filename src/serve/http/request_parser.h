#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/exchange.h"

namespace megalith::serve::http {

struct RequestLimits {
  std::uint32_t max_header_bytes = 32U << 10;  ///< request line and header fields; of trailers too
  std::uint64_t max_body_bytes = 64U << 20;    ///< chunked bodies: their data, without framing
};

/// Why a request is not served. The connection cannot be used any more: where the next request
/// would begin is not known.
struct Refusal {
  int status = 400;
  std::string code;  ///< of the OpenAI error object
  std::string message;
};

/// Reads one HTTP/1.0 or 1.1 request from bytes as they come. Framing is strict, because a request
/// that two programs cut differently is a way past whichever looked first (RFC 9112 11.2): refused
/// with 400 are Content-Length beside Transfer-Encoding, a repeated or not purely decimal
/// Content-Length, any coding but "chunked", bare line feeds, a missing or repeated Host. Memory
/// grows with what has arrived, never with what was announced.
class RequestParser {
 public:
  enum class State { kHeader, kBody, kDone, kRefused };

  explicit RequestParser(const RequestLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  /// Parses until the state changes or `input` is exhausted, and returns how many bytes it has
  /// used. The others must be presented again, with more behind them; they are never more than
  /// max_header_bytes. Not for calls in kDone or kRefused.
  std::size_t Consume(std::string_view input);

  State state() const;

  /// In kRefused.
  const Refusal& refusal() const;

  /// What is known so far: method, path and query behind the request line, all headers from kBody
  /// on. `id` and `client` are not set here.
  const Request& request() const;
  /// In kDone.
  Request TakeRequest();

  // From kBody on.
  bool is_http_1_0() const;
  bool keep_alive() const;
  /// The client waits for "100 Continue" before it sends the body.
  bool expects_continue() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megalith::serve::http
