#include "serve/http/server.h"

#include <exception>
#include <utility>

#include "serve/http/server_core.h"

namespace megalith::serve::http {

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, Handler handler) {
  std::shared_ptr<ServerCore> core;
  // Asio and the threads throw if the system has no more of what they need.
  try {
    core = std::make_shared<ServerCore>(std::move(options), std::move(handler));
    MEGALITH_RETURN_IF_ERROR(core->Listen());
    core->StartThreads();
  } catch (const std::exception& error) {
    if (core) core->Stop(std::chrono::steady_clock::now());
    return Fail(ErrorCode::kIo, "HTTP server: cannot start: {}", error.what());
  }
  return std::unique_ptr<Server>(new Server(std::move(core)));
}

Server::Server(std::shared_ptr<ServerCore> core) : core_(std::move(core)) {}

Server::~Server() { Stop(std::chrono::steady_clock::now()); }

std::uint16_t Server::port() const { return core_->port(); }
void Server::StopAccepting() { core_->StopAccepting(); }
void Server::Stop(std::chrono::steady_clock::time_point deadline) { core_->Stop(deadline); }
std::size_t Server::num_connections() const { return core_->num_connections(); }
std::size_t Server::num_exchanges() const { return core_->num_exchanges(); }

}  // namespace megalith::serve::http
