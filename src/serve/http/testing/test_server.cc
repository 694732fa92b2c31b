#include "serve/http/testing/test_server.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <utility>

namespace megalith::serve::http::testing {

bool WaitUntil(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

namespace {

/// Time-outs of their default values become endless.
ServerOptions WithoutHurry(ServerOptions options) {
  const ServerOptions defaults;
  for (const auto timeout : {&ServerOptions::reserve_timeout, &ServerOptions::first_byte_timeout,
                             &ServerOptions::header_timeout, &ServerOptions::body_stall_timeout,
                             &ServerOptions::idle_timeout, &ServerOptions::write_stall_timeout,
                             &ServerOptions::linger_timeout}) {
    if (options.*timeout == defaults.*timeout) options.*timeout = std::chrono::hours(1);
  }
  return options;
}

}  // namespace

TestServer::TestServer(ServerOptions options) {
  options.on_access = [this](const AccessRecord& record) {
    const std::lock_guard lock(mutex_);
    records_.push_back(record);
  };
  auto started =
      Server::Start(WithoutHurry(std::move(options)),
                    [this](std::shared_ptr<Exchange> exchange) { Handle(std::move(exchange)); });
  EXPECT_TRUE(started) << started.error().message;
  if (started) server_ = std::move(*started);
}

TestServer::~TestServer() {
  server_.reset();
  held_.clear();
}

void TestServer::Handle(std::shared_ptr<Exchange> exchange) {
  ++num_handled_;
  const Request& request = exchange->request();
  const std::string& path = request.path;
  if (path == "/hello" || path == "/health") {
    exchange->Respond({.content_type = "text/plain", .body = "hello"});
  } else if (path == "/echo") {
    exchange->Respond({.content_type = "text/plain", .body = request.body});
  } else if (path == "/large") {
    exchange->Respond({.content_type = "text/plain", .body = std::string(8U << 20, 'x')});
  } else if (path == "/no-content") {
    exchange->Respond({.status = 204});
  } else if (path == "/hold" || path == "/stream") {
    if (path == "/stream") exchange->BeginStream({.content_type = "text/event-stream"});
    exchange->OnDisconnect([this] { ++num_disconnects_; });
    const std::lock_guard lock(mutex_);
    held_.push_back(std::move(exchange));
  } else if (path == "/throw") {
    throw std::runtime_error("on purpose");
  } else if (path == "/throw-late") {
    exchange->BeginStream({});
    exchange->Write("part");
    throw 42;
  } else if (path == "/drop-stream") {
    exchange->BeginStream({});
    exchange->Write("part");
  } else if (path != "/drop") {
    exchange->Respond({.status = 404});
  }
}

std::shared_ptr<Exchange> TestServer::NextHeld() {
  std::shared_ptr<Exchange> next;
  WaitUntil([&] {
    const std::lock_guard lock(mutex_);
    if (held_.empty()) return false;
    next = std::move(held_.front());
    held_.erase(held_.begin());
    return true;
  });
  EXPECT_NE(next, nullptr) << "no request came";
  return next;
}

std::vector<AccessRecord> TestServer::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}

std::vector<AccessRecord> TestServer::WaitForRecords(std::size_t count) const {
  WaitUntil([&] { return records().size() >= count; });
  return records();
}

}  // namespace megalith::serve::http::testing
