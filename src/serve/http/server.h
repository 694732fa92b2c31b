#pragma once

// An HTTP/1.1 server: sockets, framing, limits and time-outs. It knows no paths and no engine.
//
// Each connection has a strand: what happens to it happens one after the other, on any of
// `num_threads` threads. A connection answers one request at a time; what a client sends ahead
// waits (pipelining), so answers come in order. The socket is read while an answer is pending,
// because the end of the connection is what cancels a generation:
//   - A reset is noticed at once.
//   - So is the client's end of stream. It may also mean that the client only stopped sending, but
//     clients of this API never do that, and their close() looks the same until something is
//     written. `half_close_grace` lets a quick answer through all the same.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/http/exchange.h"
#include "serve/http/request_parser.h"

namespace megalith::serve::http {

/// One line of an access log.
struct AccessRecord {
  std::string request_id;
  std::string method;  ///< empty, as the path, if the request line could not be read
  std::string path;
  std::string client;
  int status = 0;                ///< 0: the client went before an answer was begun
  std::uint64_t sent_bytes = 0;  ///< of the answer, headers and framing included
  double seconds = 0;            ///< from the request's first byte
  bool finished = false;         ///< the whole answer was sent; otherwise the connection broke
};

struct ServerOptions {
  /// Address or name to listen at. A name that stands for several addresses (localhost) listens at
  /// all of them; "::" also takes IPv4.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: any free one, see Server::port()
  int num_threads = 2;

  RequestLimits limits;
  /// Of the bodies of all requests that are being received or answered; beyond it, 503.
  std::uint64_t max_total_body_bytes = 1U << 30;
  /// A client that has left more of a stream unread when a piece is written is cut off. In this
  /// process; what the operating system buffers comes on top.
  std::size_t max_unread_bytes = 4U << 20;

  /// Requests on further connections are answered 503, except those to `priority_paths`, for which
  /// `num_reserved_connections` more are served.
  std::size_t max_connections = 512;
  std::size_t num_reserved_connections = 32;
  /// From the start of such a connection to the end of its headers: it must not be held by one who
  /// says nothing.
  std::chrono::milliseconds reserve_timeout{2'000};
  std::vector<std::string> priority_paths = {"/health"};

  /// From the start of a connection to the first byte of its first request: it is closed.
  std::chrono::milliseconds first_byte_timeout{10'000};
  /// From the first byte of a request to the end of its headers, then between two pieces of its
  /// body: 408.
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_stall_timeout{30'000};
  /// Between two requests: the connection is closed.
  std::chrono::milliseconds idle_timeout{75'000};
  /// While an answer is to be sent and the client takes none of it: the connection is cut.
  std::chrono::milliseconds write_stall_timeout{60'000};
  /// From the client's end of stream until it counts as gone.
  std::chrono::milliseconds half_close_grace{50};
  /// How long a client that is still sending may go on after the last answer on its connection.
  /// Without it the operating system would reset the connection and destroy the answer.
  std::chrono::milliseconds linger_timeout{2'000};

  /// Called once per request, from server threads; calls may overlap. May be empty.
  std::function<void(const AccessRecord&)> on_access;
};

class ServerCore;

/// Thread-safe. Not to be stopped or destroyed from a handler or a callback.
class Server {
 public:
  /// Listens, and serves until stopped. `handler` is called on a server thread for each complete
  /// request and must not block; what it throws is answered with 500. kUsage: an unknown host or an
  /// option out of range; kIo: the address cannot be listened at, for instance because it is in
  /// use.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options, Handler handler);

  /// As Stop(now).
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;

  /// Connections and requests are refused from now on; those being answered are not touched.
  void StopAccepting();

  /// StopAccepting, then closes idle connections at once and the others when their answer is
  /// complete, at the latest at `deadline`: whoever answers is told by OnDisconnect. Returns when
  /// nothing of this server runs any more. A second call, from another thread, may only bring the
  /// deadline forward.
  void Stop(std::chrono::steady_clock::time_point deadline);

  std::size_t num_connections() const;
  /// Requests handed to the handler whose answers are not complete yet.
  std::size_t num_exchanges() const;

 private:
  explicit Server(std::shared_ptr<ServerCore> core);

  std::shared_ptr<ServerCore> core_;
};

}  // namespace megalith::serve::http
