#pragma once

// A server with a handler for tests: a few fixed paths, and some whose exchanges the test answers.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/http/server.h"
#include "serve/http/testing/raw_client.h"

namespace megalith::serve::http::testing {

/// Asks again and again until `condition` holds; false after kPatience.
bool WaitUntil(const std::function<bool()>& condition);

/// Paths: /hello, /health, /echo (the body), /large (8 MB), /no-content; /hold and /stream (begun)
/// keep their exchange for the test; /throw, /throw-late (in a stream), /drop and /drop-stream
/// fail.
class TestServer {
 public:
  /// Starts, or records a test failure. Time-outs that a test leaves at their defaults are longer
  /// than it lives, so that a client may be as slow as the machine makes it; all but
  /// `half_close_grace`, without which a client that has gone might never be noticed.
  explicit TestServer(ServerOptions options = {});
  ~TestServer();

  Server& server() { return *server_; }
  std::uint16_t port() const { return server_->port(); }
  RawClient Connect() const { return RawClient(port()); }

  /// The next exchange of /hold or /stream, in the order of their arrival; null after kPatience.
  std::shared_ptr<Exchange> NextHeld();
  /// Calls of OnDisconnect callbacks of held exchanges.
  int num_disconnects() const { return num_disconnects_.load(); }
  int num_handled() const { return num_handled_.load(); }

  std::vector<AccessRecord> records() const;
  /// The first `count` records; fewer after kPatience.
  std::vector<AccessRecord> WaitForRecords(std::size_t count) const;

  /// Stops and destroys the server; exchanges stay as they are.
  void Destroy() { server_.reset(); }

 private:
  void Handle(std::shared_ptr<Exchange> exchange);

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::vector<AccessRecord> records_;
  std::atomic<int> num_disconnects_{0};
  std::atomic<int> num_handled_{0};
  std::unique_ptr<Server> server_;  ///< last: its threads use the others
};

}  // namespace megalith::serve::http::testing
