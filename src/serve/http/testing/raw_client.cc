#include "serve/http/testing/raw_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

namespace megalith::serve::http::testing {
namespace {

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

}  // namespace

std::string ClientResponse::HeaderValue(std::string_view name) const {
  const std::string wanted = "\r\n" + LowerCase(name) + ":";
  const std::size_t found = LowerCase(head).find(wanted);
  if (found == std::string::npos) return {};
  const std::size_t begin = head.find_first_not_of(' ', found + wanted.size());
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

RawClient::RawClient(std::uint16_t port, const std::string& address, int receive_buffer_bytes) {
  const bool is_v6 = address.find(':') != std::string::npos;
  socket_ = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0) return;
  if (receive_buffer_bytes > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  const int yes = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  int result = -1;
  if (is_v6) {
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(port);
    inet_pton(AF_INET6, address.c_str(), &to.sin6_addr);
    result = connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  } else {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    inet_pton(AF_INET, address.c_str(), &to.sin_addr);
    result = connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  if (result != 0) Close();
}

RawClient::~RawClient() { Close(); }

RawClient::RawClient(RawClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      received_(std::move(other.received_)),
      closed_by_server_(other.closed_by_server_) {}

bool RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool RawClient::Get(std::string_view path, std::string_view more_headers) {
  return Send(fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n{}\r\n", path, more_headers));
}

bool RawClient::Post(std::string_view path, std::string_view body) {
  return Send(fmt::format("POST {} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{}", path,
                          body.size(), body));
}

std::optional<std::string> RawClient::ReadSome(std::chrono::milliseconds patience) {
  if (!received_.empty()) return std::exchange(received_, {});
  if (socket_ < 0 || closed_by_server_) return std::string();
  pollfd readable{.fd = socket_, .events = POLLIN, .revents = 0};
  if (poll(&readable, 1, static_cast<int>(patience.count())) <= 0) return std::nullopt;
  std::array<char, 65536> block;
  const ssize_t got = recv(socket_, block.data(), block.size(), 0);
  if (got <= 0) {
    closed_by_server_ = true;
    return std::string();
  }
  return std::string(block.data(), static_cast<std::size_t>(got));
}

ClientResponse RawClient::ReadResponse(bool head_only) {
  ClientResponse response;
  std::string all;
  const auto more = [&] {
    const std::optional<std::string> some = ReadSome();
    if (!some || some->empty()) return false;
    all += *some;
    return true;
  };
  std::size_t end = 0;
  while ((end = all.find("\r\n\r\n")) == std::string::npos) {
    if (!more()) {
      response.head = all;
      return response;
    }
  }
  response.head = all.substr(0, end + 2);
  all.erase(0, end + 4);
  if (response.head.size() > 12) {
    std::from_chars(response.head.data() + 9, response.head.data() + 12, response.status);
  }
  const auto finish = [&](std::size_t used) {
    received_ = all.substr(used);
    response.complete = true;
    return response;
  };
  if (head_only || response.status < 200 || response.status == 204 || response.status == 304) {
    return finish(0);
  }
  if (LowerCase(response.HeaderValue("transfer-encoding")) == "chunked") {
    for (std::size_t at = 0;;) {
      std::size_t line = 0;
      while ((line = all.find("\r\n", at)) == std::string::npos) {
        if (!more()) return response;
      }
      std::size_t size = 0;
      const auto parsed = std::from_chars(all.data() + at, all.data() + line, size, 16);
      if (parsed.ptr != all.data() + line) return response;
      at = line + 2;
      while (all.size() < at + size + 2) {
        if (!more()) return response;
      }
      if (all.compare(at + size, 2, "\r\n") != 0) return response;
      if (size == 0) return finish(at + 2);
      response.chunks.push_back(all.substr(at, size));
      response.body += response.chunks.back();
      at += size + 2;
    }
  }
  const std::string length = response.HeaderValue("content-length");
  if (length.empty()) {
    while (more()) {
    }
    response.body = all;
    response.complete = closed_by_server_;
    return response;
  }
  const std::size_t size = std::stoul(length);
  while (all.size() < size) {
    if (!more()) {
      response.body = all;
      return response;
    }
  }
  response.body = all.substr(0, size);
  return finish(size);
}

bool RawClient::WaitForClose() {
  for (;;) {
    const std::optional<std::string> some = ReadSome();
    if (!some) return false;
    if (some->empty()) return true;
  }
}

void RawClient::ShutdownWrite() { shutdown(socket_, SHUT_WR); }

void RawClient::Close() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void RawClient::Reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  Close();
}

}  // namespace megalith::serve::http::testing
