#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serve/http/exchange.h"

namespace megalith::serve::http {

class ExchangeState;

/// What an exchange needs of its connection. Thread-safe.
class ExchangeTransport {
 public:
  virtual ~ExchangeTransport() = default;

  /// Makes the connection call `state->Take()` soon, on its own strand.
  virtual void Flush(std::shared_ptr<ExchangeState> state) = 0;
  /// Bytes of the answer that were taken and are not with the operating system yet.
  virtual std::size_t unsent_bytes() const = 0;
};

/// One request and the part of its answer that its connection has not taken yet: what the holder of
/// an Exchange and the connection share.
///
/// All members but the request are behind one mutex, which is held for a few instructions and never
/// while foreign code runs. The transport is let go as soon as the answer is complete or the client
/// has gone, so that an exchange that is held for longer holds no connection.
class ExchangeState : public std::enable_shared_from_this<ExchangeState> {
 public:
  ExchangeState(Request request, std::shared_ptr<ExchangeTransport> transport,
                std::size_t max_unread_bytes);

  const Request& request() const { return request_; }

  // As in Exchange, from any thread.
  void Respond(Response response);
  void BeginStream(Response head);
  bool Write(std::string piece);
  void EndStream();
  void OnDisconnect(std::function<void()> callback);

  /// Whoever answers has failed: 500, or the stream is cut. Nothing if the answer is complete.
  void Fail();

  /// What was written since the last call. For the connection.
  struct Outgoing {
    std::optional<Response> head;  ///< begins the answer
    bool is_stream = false;        ///< otherwise `head` is all of it
    std::deque<std::string> pieces;
    bool complete = false;  ///< nothing more will come
    bool cut = false;       ///< the rest of the answer will never come
    bool overflow = false;  ///< the client is too slow
  };
  Outgoing Take();

  /// The client has gone. For the connection, which then calls the result, if any.
  [[nodiscard]] std::function<void()> MarkGone();

 private:
  enum class Phase { kWaiting, kStreaming, kComplete, kGone };

  /// Asks for a Flush unless one is on its way. NEEDS THE LOCK.
  void RequestFlush();
  /// RequestFlush for the last time. NEEDS THE LOCK. The result is to be destroyed without it: it
  /// may hold the last reference to whoever answers.
  [[nodiscard]] std::function<void()> Complete();

  const Request request_;
  const std::size_t max_unread_bytes_;

  std::mutex mutex_;
  std::shared_ptr<ExchangeTransport> transport_;  ///< null when complete or gone
  Phase phase_ = Phase::kWaiting;
  bool flush_requested_ = false;
  Outgoing outgoing_;
  std::size_t outgoing_bytes_ = 0;  ///< in outgoing_.pieces
  std::function<void()> on_disconnect_;
};

/// What the handler gets: the answer's only owner, so that its end without an answer is noticed.
class OwnedExchange final : public Exchange {
 public:
  explicit OwnedExchange(std::shared_ptr<ExchangeState> state) : state_(std::move(state)) {}
  ~OwnedExchange() override { state_->Fail(); }

  const Request& request() const override { return state_->request(); }
  void Respond(Response response) override { state_->Respond(std::move(response)); }
  void BeginStream(Response head) override { state_->BeginStream(std::move(head)); }
  bool Write(std::string piece) override { return state_->Write(std::move(piece)); }
  void EndStream() override { state_->EndStream(); }
  void OnDisconnect(std::function<void()> callback) override {
    state_->OnDisconnect(std::move(callback));
  }

 private:
  const std::shared_ptr<ExchangeState> state_;
};

}  // namespace megalith::serve::http
