#pragma once

// An exchange without a network: keeps what was answered, and can lose its client.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/http/exchange.h"

namespace megalith::serve::testing {

/// What became of one exchange. Outlives it.
class Recording {
 public:
  /// Until the answer is complete, or the exchange was dropped.
  void Wait();
  /// Until a stream holds this many pieces, or it is complete.
  void WaitForPieces(std::size_t count);
  /// The client goes now.
  void Disconnect();
  /// The client goes when this many pieces were written.
  void DisconnectAfter(std::size_t num_pieces);

  http::Response response() const;  ///< whole answer, or the head of a stream
  bool is_stream() const;
  bool complete() const;
  bool dropped() const;  ///< the exchange ended without a complete answer
  std::vector<std::string> pieces() const;
  /// All pieces, or the whole answer's body.
  std::string body() const;

 private:
  friend class RecordingExchange;
  void CallDisconnected(std::unique_lock<std::mutex> lock);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<http::Response> response_;
  bool is_stream_ = false;
  bool complete_ = false;
  bool dropped_ = false;
  bool gone_ = false;
  std::optional<std::size_t> gone_after_;
  std::vector<std::string> pieces_;
  std::function<void()> on_disconnect_;
};

class RecordingExchange : public http::Exchange {
 public:
  RecordingExchange(http::Request request, std::shared_ptr<Recording> recording)
      : request_(std::move(request)), recording_(std::move(recording)) {}
  ~RecordingExchange() override;

  const http::Request& request() const override { return request_; }
  void Respond(http::Response response) override;
  void BeginStream(http::Response head) override;
  bool Write(std::string piece) override;
  void EndStream() override;
  void OnDisconnect(std::function<void()> callback) override;

 private:
  const http::Request request_;
  const std::shared_ptr<Recording> recording_;
};

http::Request MakeRequest(std::string method, std::string path, std::string body = "");

/// One event of a stream.
struct StreamEvent {
  std::string name;  ///< empty if it has none
  std::string data;
};
/// Reads a stream as a client does; comments are left out. Reports a test failure for anything that
/// is no well-formed event.
std::vector<StreamEvent> ParseEvents(const std::string& stream);

}  // namespace megalith::serve::testing
