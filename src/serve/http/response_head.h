#pragma once

#include <string>
#include <string_view>

#include "serve/http/exchange.h"

namespace megalith::serve::http {

/// What the connection decides about an answer.
struct AnswerFraming {
  bool stream = false;     ///< in pieces, of unknown length
  bool http_1_0 = false;   ///< of the request: knows no chunks; the end of the connection ends it
  bool keep_alive = true;  ///< the connection is used again
  std::string_view request_id;
};

/// Status line and headers with the empty line behind them. Headers of `response` that would change
/// the framing (Content-Length, Transfer-Encoding, Connection) or that are not well-formed (a line
/// end in a value) are left out and logged.
std::string ResponseHead(const Response& response, const AnswerFraming& framing);

/// Whether an answer with this status has a body at all (RFC 9110 6.4.1).
bool StatusHasBody(int status);

/// `piece` framed as a chunk. NOT EMPTY: an empty chunk is the end of the stream.
std::string Chunk(std::string_view piece);

inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace megalith::serve::http
