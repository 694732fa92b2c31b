#pragma once

// One HTTP request and its answer, as those who answer see it: no sockets, no vendor headers.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::serve::http {

struct Header {
  std::string name;
  std::string value;
};

struct Request {
  /// The client's X-Request-Id if it is usable, else made; unique among the open requests of a
  /// server. Also sent back as X-Request-Id and logged.
  std::string id;
  std::string method;  ///< "GET"
  std::string path;    ///< without the query, percent-decoded
  std::string query;   ///< behind the "?", as it came
  std::vector<Header> headers;
  std::string body;
  std::string client;  ///< "127.0.0.1:51234"

  /// Value of the first header of that name, in any case; nullptr if there is none.
  const std::string* FindHeader(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers;  ///< further ones
  std::string body;
};

/// Held by whoever answers. Thread-safe, and no call blocks. An exchange that is dropped without an
/// answer sends 500; one dropped in the middle of a stream cuts the connection, so that the client
/// can tell.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const Request& request() const = 0;

  /// The whole answer: once, and not after BeginStream.
  virtual void Respond(Response response) = 0;

  /// Begins an answer in pieces (chunked); the headers go out at once. `head` has no body.
  virtual void BeginStream(Response head) = 0;
  /// A piece, sent whole and in order, or not at all. False if the client has gone or has left more
  /// unread than the server's limit: the connection is then closed and OnDisconnect is called.
  virtual bool Write(std::string piece) = 0;
  virtual void EndStream() = 0;

  /// `callback` is called once if the client goes before the answer is complete (Respond or
  /// EndStream was called); at once if it has gone already. From any thread. Replaces an earlier
  /// callback. Whichever comes first, the end of the answer or the call, also destroys the
  /// callback, so it may hold the exchange.
  virtual void OnDisconnect(std::function<void()> callback) = 0;
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

}  // namespace megalith::serve::http
