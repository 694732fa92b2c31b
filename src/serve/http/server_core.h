#pragma once

// Internal to this folder: brings in Boost.Asio.

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "serve/http/exchange.h"
#include "serve/http/request_ids.h"
#include "serve/http/server.h"

namespace megalith::serve::http {

class Connection;

/// What the server and its connections share; each connection holds a reference, because the
/// io_context must live longer than the last socket.
class ServerCore : public std::enable_shared_from_this<ServerCore> {
 public:
  ServerCore(ServerOptions options, Handler handler);

  Status Listen();
  void StartThreads();

  void StopAccepting();
  void Stop(std::chrono::steady_clock::time_point deadline);

  // Const after construction.
  const ServerOptions& options() const { return options_; }
  const Handler& handler() const { return handler_; }

  boost::asio::io_context& io_context() { return io_context_; }
  RequestIds& request_ids() { return request_ids_; }
  std::uint16_t port() const { return port_; }

  /// New requests are refused, connections are not kept.
  bool draining() const { return draining_.load(std::memory_order_acquire); }

  void ExchangeBegins() { num_exchanges_.fetch_add(1); }
  void ExchangeEnds() { num_exchanges_.fetch_sub(1); }
  std::size_t num_exchanges() const { return num_exchanges_.load(); }

  /// Counts bytes of request bodies; false if they are more than allowed, counted all the same.
  bool ChargeBody(std::uint64_t num_bytes) {
    return body_bytes_.fetch_add(num_bytes, std::memory_order_relaxed) + num_bytes <=
           options_.max_total_body_bytes;
  }
  void ReleaseBody(std::uint64_t num_bytes) {
    body_bytes_.fetch_sub(num_bytes, std::memory_order_relaxed);
  }

  std::size_t num_connections() const;
  void Add(const std::shared_ptr<Connection>& connection);
  void Remove(const Connection* connection);

 private:
  /// One address that is listened at.
  struct Listener;

  Status ListenAt(const boost::asio::ip::tcp::endpoint& endpoint, bool only_ipv6);
  void Accept(const std::shared_ptr<Listener>& listener);
  void RunThread();
  std::vector<std::shared_ptr<Connection>> Connections() const;

  const ServerOptions options_;
  const Handler handler_;
  RequestIds request_ids_;
  std::uint16_t port_ = 0;

  std::atomic<bool> draining_{false};
  std::atomic<std::size_t> num_exchanges_{0};
  std::atomic<std::uint64_t> body_bytes_{0};

  boost::asio::io_context io_context_;
  /// Keeps the threads while there is no connection.
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_guard_;
  std::vector<std::shared_ptr<Listener>> listeners_;  ///< const once the threads run

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> connections_;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::time_point::max();
  bool stopping_ = false;
  bool stopped_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace megalith::serve::http
