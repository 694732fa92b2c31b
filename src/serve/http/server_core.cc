#include "serve/http/server_core.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "serve/http/connection.h"
#include "serve/http/error_response.h"
#include "serve/http/response_head.h"

namespace megalith::serve::http {
namespace {

namespace asio = boost::asio;
using Endpoint = asio::ip::tcp::endpoint;

/// Accepting again after it failed, usually for want of file descriptors.
constexpr std::chrono::milliseconds kAcceptRetry{100};
/// Tries to find a port that is free at every address of a host.
constexpr int kMaxPortTries = 16;
/// What a process needs beside its connections: model files, pipes, logs.
constexpr std::size_t kOtherFiles = 64;

std::string Name(const Endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

}  // namespace

struct ServerCore::Listener {
  explicit Listener(asio::io_context& io_context)
      : strand(asio::make_strand(io_context)), acceptor(strand), retry(strand) {}

  Connection::Strand strand;
  asio::basic_socket_acceptor<asio::ip::tcp, Connection::Strand> acceptor;
  asio::basic_waitable_timer<std::chrono::steady_clock,
                             asio::wait_traits<std::chrono::steady_clock>, Connection::Strand>
      retry;
  bool failing = false;
};

ServerCore::ServerCore(ServerOptions options, Handler handler)
    : options_(std::move(options)),
      handler_(std::move(handler)),
      io_context_(options_.num_threads),
      work_guard_(asio::make_work_guard(io_context_)) {}

Status ServerCore::ListenAt(const Endpoint& endpoint, bool only_ipv6) {
  auto listener = std::make_shared<Listener>(io_context_);
  boost::system::error_code error;
  auto& acceptor = listener->acceptor;
  acceptor.open(endpoint.protocol(), error);
  // Otherwise a server cannot be restarted while connections of the last one time out.
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) {
    acceptor.set_option(asio::ip::v6_only(only_ipv6), error);
  }
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use) {
    return Fail(ErrorCode::kIo, "listen at {}: another program listens there already",
                Name(endpoint));
  }
  if (error) return Fail(ErrorCode::kIo, "listen at {}: {}", Name(endpoint), error.message());
  const Endpoint bound = acceptor.local_endpoint(error);
  if (error) return Fail(ErrorCode::kIo, "listen at {}: {}", Name(endpoint), error.message());
  port_ = bound.port();
  listeners_.push_back(std::move(listener));
  return {};
}

Status ServerCore::Listen() {
  const ServerOptions& options = options_;
  if (options.num_threads < 1) {
    return Fail(ErrorCode::kUsage, "HTTP server: at least one thread expected, {} found",
                options.num_threads);
  }
  if (!handler_) return Fail(ErrorCode::kUsage, "HTTP server: no handler");
  boost::system::error_code error;
  asio::ip::tcp::resolver resolver(io_context_);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      asio::ip::tcp::resolver::passive, error);
  if (error) {
    return Fail(ErrorCode::kUsage, "listen at host '{}': {}", options.host, error.message());
  }
  std::vector<Endpoint> endpoints;
  for (const auto& entry : found) {
    if (std::find(endpoints.begin(), endpoints.end(), entry.endpoint()) == endpoints.end()) {
      endpoints.push_back(entry.endpoint());
    }
  }
  Status status;
  for (int tries = 0; tries < kMaxPortTries; ++tries) {
    listeners_.clear();
    port_ = options.port;
    status = {};
    for (Endpoint endpoint : endpoints) {
      endpoint.port(port_);
      Status at = ListenAt(endpoint, endpoints.size() > 1);
      // localhost is often named for IPv6 on machines that have none.
      if (!at && endpoint.address().is_v6() && endpoints.size() > 1) {
        LogFormat(LogLevel::kWarning, "{}", at.error().message);
        continue;
      }
      if (!at) {
        status = std::move(at);
        break;
      }
    }
    // Another try finds another port only if any will do.
    if (status || options.port != 0) break;
  }
  if (status && listeners_.empty()) {
    return Fail(ErrorCode::kIo, "listen at host '{}': none of its addresses can be used",
                options.host);
  }
  if (!status) listeners_.clear();
  return status;
}

void ServerCore::StartThreads() {
  rlimit files{};
  const std::size_t wanted =
      options_.max_connections + options_.num_reserved_connections + kOtherFiles;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < wanted) {
    LogFormat(LogLevel::kWarning,
              "HTTP server: {} connections need about {} open files, the limit is {} (ulimit -n)",
              options_.max_connections, wanted, files.rlim_cur);
  }
  for (const auto& listener : listeners_) Accept(listener);
  for (int i = 0; i < options_.num_threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

void ServerCore::RunThread() {
  for (;;) {
    try {
      io_context_.run();
      return;
    } catch (const std::exception& error) {
      // Connections catch their own; this is want of memory between them.
      LogFormat(LogLevel::kError, "HTTP server: {}", error.what());
    }
  }
}

void ServerCore::Accept(const std::shared_ptr<Listener>& listener) {
  // The core outlives its threads, which alone run this.
  listener->acceptor.async_accept(
      asio::make_strand(io_context_),
      [this, listener](const boost::system::error_code& error, Connection::Socket socket) {
        if (!listener->acceptor.is_open()) return;
        if (error == asio::error::connection_aborted) return Accept(listener);
        if (error) {
          if (!std::exchange(listener->failing, true)) {
            LogFormat(LogLevel::kError, "accept: {}; trying again", error.message());
          }
          listener->retry.expires_after(kAcceptRetry);
          listener->retry.async_wait([this, listener](const boost::system::error_code& cancelled) {
            if (!cancelled && listener->acceptor.is_open()) Accept(listener);
          });
          return;
        }
        listener->failing = false;
        const std::size_t count = num_connections();
        if (count >= options_.max_connections + options_.num_reserved_connections) {
          // Answered as far as that goes without waiting.
          Response response = ErrorResponse(503, "too_many_connections",
                                            "All connections of the server are in use.");
          response.headers.push_back({"Retry-After", "1"});
          const std::string answer =
              ResponseHead(response, {.keep_alive = false, .request_id = "none"}) + response.body;
          boost::system::error_code ignored;
          socket.non_blocking(true, ignored);
          socket.write_some(asio::buffer(answer), ignored);
          socket.shutdown(Connection::Socket::shutdown_send, ignored);
        } else {
          const auto connection = std::make_shared<Connection>(
              shared_from_this(), std::move(socket), count >= options_.max_connections);
          Add(connection);
          connection->Start();
        }
        Accept(listener);
      });
}

std::size_t ServerCore::num_connections() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

void ServerCore::Add(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  connections_.emplace(connection.get(), connection);
}

void ServerCore::Remove(const Connection* connection) {
  const std::lock_guard lock(mutex_);
  connections_.erase(connection);
  if (connections_.empty()) changed_.notify_all();
}

std::vector<std::shared_ptr<Connection>> ServerCore::Connections() const {
  std::vector<std::shared_ptr<Connection>> connections;
  const std::lock_guard lock(mutex_);
  connections.reserve(connections_.size());
  for (const auto& entry : connections_) {
    if (auto connection = entry.second.lock()) connections.push_back(std::move(connection));
  }
  return connections;
}

void ServerCore::StopAccepting() {
  draining_.store(true, std::memory_order_release);
  for (const auto& listener : listeners_) {
    asio::post(listener->strand, [listener] {
      boost::system::error_code ignored;
      listener->acceptor.close(ignored);
      listener->retry.cancel();
    });
  }
}

void ServerCore::Stop(std::chrono::steady_clock::time_point deadline) {
  StopAccepting();
  std::unique_lock lock(mutex_);
  deadline_ = std::min(deadline_, deadline);
  changed_.notify_all();
  if (std::exchange(stopping_, true)) {
    changed_.wait(lock, [this] { return stopped_; });
    return;
  }
  lock.unlock();
  for (const auto& connection : Connections()) connection->Drain();
  lock.lock();
  // Looks again from time to time: a connection may have been accepted just before.
  while (!connections_.empty()) {
    const bool late = std::chrono::steady_clock::now() >= deadline_;
    if (late) {
      lock.unlock();
      for (const auto& connection : Connections()) connection->Cut();
      lock.lock();
    }
    const auto soon = std::chrono::steady_clock::now() + kAcceptRetry;
    if (!connections_.empty()) changed_.wait_until(lock, late ? soon : std::min(soon, deadline_));
  }
  lock.unlock();
  work_guard_.reset();
  for (std::thread& thread : threads_) thread.join();
  lock.lock();
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace megalith::serve::http
