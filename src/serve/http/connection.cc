#include "serve/http/connection.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/http/error_response.h"
#include "serve/http/response_head.h"
#include "serve/http/server_core.h"

namespace megalith::serve::http {
namespace {

namespace asio = boost::asio;

/// Requests sent ahead are read this far while another is being answered.
constexpr std::size_t kMaxReadAheadBytes = 64U << 10;
/// How much of an unwanted body is taken in after its refusal.
constexpr std::size_t kMaxLingeringBytes = 16U << 20;
/// While the server stops, which waits for all connections: a client that keeps its connection for
/// later does not close it when the server does.
constexpr std::chrono::milliseconds kDrainLingerTimeout{200};
/// Pieces handed to the operating system at once.
constexpr std::size_t kMaxBuffers = 16;

/// A client that vanished without a word (cable, power) is noticed after about a minute.
constexpr int kKeepAliveIdleSeconds = 30;
constexpr int kKeepAliveIntervalSeconds = 10;
constexpr int kKeepAliveProbes = 3;

template <int name>
using TcpOption = asio::detail::socket_option::integer<IPPROTO_TCP, name>;

void SetOptions(Connection::Socket* socket) {
  // All are improvements only: a socket that refuses them is served without.
  boost::system::error_code ignored;
  // Tokens are small and must not wait for each other.
  socket->set_option(asio::ip::tcp::no_delay(true), ignored);
  socket->set_option(asio::socket_base::keep_alive(true), ignored);
  socket->set_option(TcpOption<TCP_KEEPIDLE>(kKeepAliveIdleSeconds), ignored);
  socket->set_option(TcpOption<TCP_KEEPINTVL>(kKeepAliveIntervalSeconds), ignored);
  socket->set_option(TcpOption<TCP_KEEPCNT>(kKeepAliveProbes), ignored);
}

/// "127.0.0.1:51234", "[::1]:51234"; empty if the client has gone already.
std::string ClientName(const Connection::Socket& socket) {
  boost::system::error_code error;
  const asio::ip::tcp::endpoint endpoint = socket.remote_endpoint(error);
  if (error) return {};
  asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  }
  const std::string text = address.to_string(error);
  return address.is_v6() ? fmt::format("[{}]:{}", text, endpoint.port())
                         : fmt::format("{}:{}", text, endpoint.port());
}

/// Runs foreign code, whose exceptions must not reach the server's threads.
template <typename Function>
bool CallForeign(std::string_view what, std::string_view request_id, Function function) {
  try {
    function();
    return true;
  } catch (const std::exception& error) {
    LogFormat(LogLevel::kError, "request {}: {} threw: {}", request_id, what, error.what());
  } catch (...) {
    LogFormat(LogLevel::kError, "request {}: {} threw", request_id, what);
  }
  return false;
}

}  // namespace

template <typename Function>
void Connection::Guard(Function function) {
  if (phase_ == Phase::kClosed) return;
  try {
    function();
  } catch (const std::exception& error) {
    LogFormat(LogLevel::kError, "connection of {}: cut: {}", client_, error.what());
    Abort();
  }
}

template <typename Function>
void Connection::Post(Function function) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), function = std::move(function)] {
    self->Guard(function);
  });
}

Connection::Connection(std::shared_ptr<ServerCore> core, Socket socket, bool is_reserve)
    : core_(std::move(core)),
      socket_(std::move(socket)),
      is_reserve_(is_reserve),
      timer_(socket_.get_executor()),
      grace_timer_(socket_.get_executor()) {}

Connection::~Connection() {
  // Otherwise only if no handler could be queued for want of memory.
  if (phase_ != Phase::kClosed) core_->Remove(this);
}

void Connection::Start() {
  Post([this] {
    if (core_->draining()) return Close();
    SetOptions(&socket_);
    client_ = ClientName(socket_);
    parser_.emplace(core_->options().limits);
    SetDeadline(is_reserve_ ? core_->options().reserve_timeout
                            : core_->options().first_byte_timeout);
    Read();
  });
}

void Connection::Drain() {
  Post([this] {
    if (phase_ == Phase::kIdle) Close();
  });
}

void Connection::Cut() {
  Post([this] { Abort(); });
}

void Connection::Read() {
  if (reading_ || end_of_stream_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kAnswering && input_.size() >= kMaxReadAheadBytes) return WatchForReset();
  reading_ = true;
  socket_.async_read_some(
      asio::buffer(read_chunk_),
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t num_bytes) {
        self->Guard([&] { self->OnRead(error, num_bytes); });
      });
}

void Connection::OnRead(const boost::system::error_code& error, std::size_t num_bytes) {
  reading_ = false;
  if (error == asio::error::eof) {
    end_of_stream_ = true;
  } else if (error) {
    return Abort();
  }
  input_.append(read_chunk_.data(), num_bytes);
  Advance();
}

void Connection::WatchForReset() {
  if (std::exchange(watching_, true)) return;
  // The client's end of stream is behind what is not read; a reset is seen all the same.
  socket_.async_wait(Socket::wait_error,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       self->Guard([&] {
                         self->watching_ = false;
                         if (error || self->IsBroken()) self->Abort();
                       });
                     });
}

bool Connection::IsBroken() {
  asio::detail::socket_option::integer<SOL_SOCKET, SO_ERROR> pending;
  boost::system::error_code error;
  socket_.get_option(pending, error);
  return error || pending.value() != 0;
}

void Connection::Advance() {
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kReceiving:
      return Parse();
    case Phase::kAnswering:
      if (!end_of_stream_) return Read();
      grace_timer_.expires_after(core_->options().half_close_grace);
      grace_timer_.async_wait(
          [self = shared_from_this(), state = state_](const boost::system::error_code& error) {
            if (error) return;
            self->Guard([&] {
              if (self->state_ == state) self->Abort();
            });
          });
      return;
    case Phase::kLingering:
      lingering_bytes_ += input_.size();
      input_.clear();
      if (lingering_bytes_ > kMaxLingeringBytes) return Close();
      if (!end_of_stream_) return Read();
      if (output_.empty()) Close();
      return;
    case Phase::kClosed:
      return;
  }
}

void Connection::Parse() {
  std::size_t used = 0;
  while (used < input_.size()) {
    if (phase_ == Phase::kIdle) {
      phase_ = Phase::kReceiving;
      request_begin_ = Clock::now();
      if (!is_reserve_) SetDeadline(core_->options().header_timeout);
    }
    const std::size_t step = parser_->Consume(std::string_view(input_).substr(used));
    used += step;
    const RequestParser::State state = parser_->state();
    if (state == RequestParser::State::kRefused) return Refuse(parser_->refusal());
    if (state == RequestParser::State::kHeader) break;
    if (!ChargeBody()) {
      return Refuse({.status = 503,
                     .code = "server_busy",
                     .message = "The server holds too many request bodies."});
    }
    const bool complete = state == RequestParser::State::kDone;
    if (!std::exchange(header_seen_, true)) {
      input_.erase(0, used);
      used = 0;
      if (!OnHeader()) return;
      if (complete) return HandOver();
      continue;
    }
    if (complete) {
      input_.erase(0, used);
      return HandOver();
    }
    if (step == 0) break;
  }
  input_.erase(0, used);
  if (end_of_stream_) {
    // Nothing, or a part of a request: there is nobody to answer.
    return Abort();
  }
  if (header_seen_) SetDeadline(core_->options().body_stall_timeout);
  Read();
}

bool Connection::ChargeBody() {
  const std::uint64_t size = parser_->request().body.size();
  return core_->ChargeBody(size - std::exchange(charged_bytes_, size));
}

void Connection::ReleaseBody() { core_->ReleaseBody(std::exchange(charged_bytes_, 0)); }

bool Connection::OnHeader() {
  const ServerOptions& options = core_->options();
  const Request& request = parser_->request();
  BeginRecord();
  if (core_->draining()) {
    Refuse({.status = 503, .code = "shutting_down", .message = "The server is shutting down."});
    return false;
  }
  if (is_reserve_ && std::find(options.priority_paths.begin(), options.priority_paths.end(),
                               request.path) == options.priority_paths.end()) {
    Refuse({.status = 503,
            .code = "too_many_connections",
            .message = fmt::format("All {} connections are in use.", options.max_connections)});
    return false;
  }
  // A client that did not wait needs no invitation.
  if (parser_->expects_continue() && parser_->state() == RequestParser::State::kBody &&
      input_.empty()) {
    Send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

void Connection::HandOver() {
  phase_ = Phase::kAnswering;
  ClearDeadline();
  keep_alive_ = parser_->keep_alive() && !is_reserve_;
  http_1_0_ = parser_->is_http_1_0();
  Request request = parser_->TakeRequest();
  parser_.reset();
  request.id = record_->request_id;
  request.client = client_;
  head_only_ = request.method == "HEAD";
  chunked_ = answer_complete_ = answer_cut_ = false;
  state_ = std::make_shared<ExchangeState>(std::move(request), shared_from_this(),
                                           core_->options().max_unread_bytes);
  core_->ExchangeBegins();
  const std::shared_ptr<ExchangeState> state = state_;
  if (!CallForeign("handler", record_->request_id,
                   [&] { core_->handler()(std::make_shared<OwnedExchange>(state)); })) {
    state->Fail();
  }
  Advance();
}

void Connection::Refuse(const Refusal& refusal) {
  if (!record_) BeginRecord();
  keep_alive_ = false;
  Response response = ErrorResponse(refusal.status, refusal.code, refusal.message);
  if (refusal.status == 503) response.headers.push_back({"Retry-After", "1"});
  record_->status = refusal.status;
  std::string answer = ResponseHead(
      response,
      {.http_1_0 = parser_->is_http_1_0(), .keep_alive = false, .request_id = record_->request_id});
  if (parser_->request().method != "HEAD") answer += response.body;
  parser_.reset();
  ReleaseBody();
  phase_ = Phase::kLingering;
  lingering_bytes_ = input_.size();
  input_.clear();
  Send(std::move(answer));
  Read();
}

void Connection::Flush(std::shared_ptr<ExchangeState> state) {
  Post([this, state = std::move(state)] { OnFlush(state); });
}

void Connection::OnFlush(const std::shared_ptr<ExchangeState>& state) {
  if (state != state_) return;
  ExchangeState::Outgoing outgoing = state->Take();
  if (outgoing.overflow) {
    LogFormat(LogLevel::kWarning, "request {}: cut: its client left more than {} bytes unread",
              state->request().id, core_->options().max_unread_bytes);
    return Abort();
  }
  bool has_body = true;
  if (outgoing.head) {
    Response& head = *outgoing.head;
    if (head.status < 200 || head.status > 599) {
      LogFormat(LogLevel::kError, "request {}: answered with the impossible status {}",
                state->request().id, head.status);
      head.status = 500;
    }
    has_body = !head_only_ && StatusHasBody(head.status);
    if (core_->draining()) keep_alive_ = false;
    chunked_ = outgoing.is_stream && has_body && !http_1_0_;
    if (outgoing.is_stream && has_body && http_1_0_) keep_alive_ = false;
    head_only_ = !has_body;
    record_->status = head.status;
    Send(ResponseHead(head, {.stream = outgoing.is_stream,
                             .http_1_0 = http_1_0_,
                             .keep_alive = keep_alive_,
                             .request_id = record_->request_id}));
    if (!outgoing.is_stream && has_body) Send(std::move(head.body));
  }
  if (!head_only_) {
    for (std::string& piece : outgoing.pieces) Send(chunked_ ? Chunk(piece) : std::move(piece));
  }
  if (outgoing.cut) {
    answer_cut_ = true;
  } else if (outgoing.complete && chunked_) {
    Send(std::string(kLastChunk));
  }
  answer_complete_ = outgoing.complete;
  if (!writing_) OnDrained();
}

void Connection::Send(std::string bytes) {
  if (bytes.empty()) return;
  unsent_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  output_.push_back(std::move(bytes));
  Write();
}

void Connection::Write() {
  if (writing_ || output_.empty()) return;
  writing_ = true;
  SetDeadline(core_->options().write_stall_timeout);
  std::vector<asio::const_buffer> buffers;
  for (std::size_t i = 0; i < std::min(output_.size(), kMaxBuffers); ++i) {
    const std::size_t offset = i == 0 ? output_offset_ : 0;
    buffers.emplace_back(output_[i].data() + offset, output_[i].size() - offset);
  }
  // Sends with MSG_NOSIGNAL: a client that has gone is an error, not a signal.
  socket_.async_write_some(
      buffers,
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t num_bytes) {
        self->Guard([&] { self->OnWritten(error, num_bytes); });
      });
}

void Connection::OnWritten(const boost::system::error_code& error, std::size_t num_bytes) {
  writing_ = false;
  if (error) return Abort();
  unsent_bytes_.fetch_sub(num_bytes, std::memory_order_relaxed);
  if (record_) record_->sent_bytes += num_bytes;
  output_offset_ += num_bytes;
  while (!output_.empty() && output_offset_ >= output_.front().size()) {
    output_offset_ -= output_.front().size();
    output_.pop_front();
  }
  if (output_.empty()) return OnDrained();
  Write();
}

void Connection::OnDrained() {
  switch (phase_) {
    case Phase::kAnswering:
      ClearDeadline();
      if (answer_complete_) FinishExchange();
      return;
    case Phase::kLingering:
      return Linger();
    case Phase::kReceiving:  // after 100 Continue
      return SetDeadline(core_->options().body_stall_timeout);
    case Phase::kIdle:
    case Phase::kClosed:
      return;
  }
}

void Connection::FinishExchange() {
  // Decided before the exchange counts as ended: whoever waits for that and then stops the server
  // finds the connection either idle or closing.
  const bool keep = keep_alive_ && !core_->draining();
  grace_timer_.cancel();
  state_.reset();
  ReleaseBody();
  core_->ExchangeEnds();
  EndRecord(!answer_cut_);
  if (answer_cut_) {
    // HTTP/1.0 knows no chunks: only a reset tells that the answer is not complete.
    boost::system::error_code ignored;
    if (http_1_0_) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    return Close();
  }
  if (!keep) {
    phase_ = Phase::kLingering;
    lingering_bytes_ = 0;
    return Linger();
  }
  phase_ = Phase::kIdle;
  header_seen_ = false;
  parser_.emplace(core_->options().limits);
  SetDeadline(core_->options().idle_timeout);
  // Not from here: a client that sends many requests ahead would take the thread for itself.
  if (!input_.empty() || end_of_stream_) {
    Post([this] { Advance(); });
  } else {
    Read();
  }
}

void Connection::Linger() {
  EndRecord(true);
  if (end_of_stream_) return Close();
  boost::system::error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error) return Close();
  SetDeadline(core_->draining() ? std::min(kDrainLingerTimeout, core_->options().linger_timeout)
                                : core_->options().linger_timeout);
  Advance();
}

void Connection::SetDeadline(std::chrono::milliseconds from_now) {
  deadline_ = Clock::now() + from_now;
  ArmTimer();
}

void Connection::ArmTimer() {
  // Deadlines mostly move away, so the timer is left running and looks again when it fires.
  if (deadline_ >= timer_expiry_) return;
  timer_expiry_ = deadline_;
  timer_.expires_at(deadline_);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error) return;
    self->Guard([&] {
      self->timer_expiry_ = Clock::time_point::max();
      if (Clock::now() >= self->deadline_) return self->OnDeadline();
      self->ArmTimer();
    });
  });
}

void Connection::OnDeadline() {
  ClearDeadline();
  if (phase_ == Phase::kReceiving && !writing_) {
    return Refuse({.status = 408,
                   .code = "request_timeout",
                   .message = header_seen_ ? "The request body stopped coming."
                                           : "The request headers did not come in time."});
  }
  Abort();
}

void Connection::BeginRecord() {
  const Request& request = parser_->request();
  const std::string* wanted = request.FindHeader("X-Request-Id");
  record_.emplace();
  record_->request_id =
      core_->request_ids().Acquire(wanted == nullptr ? std::string_view{} : *wanted);
  record_->method = request.method;
  record_->path = request.path;
  record_->client = client_;
}

void Connection::EndRecord(bool finished) {
  if (!record_) return;
  AccessRecord record = std::move(*record_);
  record_.reset();
  core_->request_ids().Release(record.request_id);
  if (!core_->options().on_access) return;
  record.finished = finished;
  record.seconds = std::chrono::duration<double>(Clock::now() - request_begin_).count();
  CallForeign("access log", record.request_id, [&] { core_->options().on_access(record); });
}

void Connection::Abort() {
  if (phase_ == Phase::kClosed) return;
  std::function<void()> on_disconnect;
  std::string request_id;
  if (const std::shared_ptr<ExchangeState> state = std::exchange(state_, nullptr)) {
    on_disconnect = state->MarkGone();
    request_id = state->request().id;
    core_->ExchangeEnds();
  }
  Close();
  if (on_disconnect) CallForeign("OnDisconnect", request_id, on_disconnect);
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  ReleaseBody();
  EndRecord(false);
  phase_ = Phase::kClosed;
  boost::system::error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  grace_timer_.cancel();
  core_->Remove(this);
}

}  // namespace megalith::serve::http
