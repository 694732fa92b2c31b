#pragma once

// Internal to this folder: brings in Boost.Asio.

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/exchange_state.h"
#include "serve/http/request_parser.h"
#include "serve/http/server.h"

namespace megalith::serve::http {

class ServerCore;

/// One client. Everything but the public interface runs on the strand, so nothing here is locked.
///
/// At most one read and one write are under way. The read continues through all phases: it brings
/// the next request, or tells while an answer is pending that the client has gone.
class Connection final : public ExchangeTransport, public std::enable_shared_from_this<Connection> {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

  /// `is_reserve`: beyond the limit of connections, for one request to a priority path.
  Connection(std::shared_ptr<ServerCore> core, Socket socket, bool is_reserve);
  ~Connection() override;

  // From any thread.
  void Start();
  /// Closes the connection if it is idle; otherwise it closes behind its answer.
  void Drain();
  /// Closes the connection, whatever it is doing.
  void Cut();

  void Flush(std::shared_ptr<ExchangeState> state) override;
  std::size_t unsent_bytes() const override {
    return unsent_bytes_.load(std::memory_order_relaxed);
  }

 private:
  enum class Phase {
    kIdle,       ///< no byte of the next request yet
    kReceiving,  ///< part of a request
    kAnswering,  ///< a request is with the handler
    kLingering,  ///< the last answer is on its way; what comes in is thrown away
    kClosed,
  };
  using Clock = std::chrono::steady_clock;

  /// Runs `function` on the strand; what it throws (memory) ends this connection alone.
  template <typename Function>
  void Post(Function function);
  template <typename Function>
  void Guard(Function function);

  void Read();
  void OnRead(const boost::system::error_code& error, std::size_t num_bytes);
  void WatchForReset();
  bool IsBroken();
  void Advance();
  void Parse();
  /// False if the request was refused.
  bool OnHeader();
  /// False if there is no room for what has come of the body.
  bool ChargeBody();
  void ReleaseBody();
  void HandOver();
  void Refuse(const Refusal& refusal);

  void OnFlush(const std::shared_ptr<ExchangeState>& state);
  void Send(std::string bytes);
  void Write();
  void OnWritten(const boost::system::error_code& error, std::size_t num_bytes);
  void OnDrained();
  void FinishExchange();
  void Linger();

  void SetDeadline(std::chrono::milliseconds from_now);
  void ClearDeadline() { deadline_ = Clock::time_point::max(); }
  void ArmTimer();
  void OnDeadline();

  void BeginRecord();
  void EndRecord(bool finished);
  /// The client has gone, or is to go: tells whoever answers, and closes.
  void Abort();
  void Close();

  const std::shared_ptr<ServerCore> core_;  ///< first, because the socket needs its io_context
  Socket socket_;
  const bool is_reserve_;
  std::string client_;

  Phase phase_ = Phase::kIdle;
  bool reading_ = false;
  bool watching_ = false;       ///< for a reset, instead of reading
  bool end_of_stream_ = false;  ///< from the client
  std::array<char, 8192> read_chunk_;
  std::string input_;  ///< read and not parsed
  std::size_t lingering_bytes_ = 0;

  std::optional<RequestParser> parser_;
  bool header_seen_ = false;
  std::uint64_t charged_bytes_ = 0;  ///< of the body, with the core

  std::shared_ptr<ExchangeState> state_;  ///< in kAnswering
  bool keep_alive_ = true;
  bool http_1_0_ = false;
  bool head_only_ = false;
  bool chunked_ = false;
  bool answer_complete_ = false;
  bool answer_cut_ = false;

  std::deque<std::string> output_;
  std::size_t output_offset_ = 0;  ///< of the first of output_
  bool writing_ = false;
  std::atomic<std::size_t> unsent_bytes_{0};

  std::optional<AccessRecord> record_;  ///< of the current request, from the end of its header
  Clock::time_point request_begin_;

  boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand> timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point timer_expiry_ = Clock::time_point::max();  ///< max: not waiting
  boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand> grace_timer_;
};

}  // namespace megalith::serve::http
