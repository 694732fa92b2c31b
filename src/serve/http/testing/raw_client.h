#pragma once

// A client that sends exactly the bytes it is told, for tests of HTTP servers.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::serve::http::testing {

/// How long a test waits for what must happen; never a measure of speed.
inline constexpr std::chrono::milliseconds kPatience{120'000};

struct ClientResponse {
  int status = 0;
  std::string head;                 ///< status line and headers
  std::string body;                 ///< without chunk framing
  std::vector<std::string> chunks;  ///< of a chunked body
  bool complete = false;  ///< false: the connection ended, or kPatience did, before the answer

  /// Value of a header, in any case; empty if there is none.
  std::string HeaderValue(std::string_view name) const;
};

class RawClient {
 public:
  /// `receive_buffer_bytes` 0: the system's default. A failed connection shows in connected().
  explicit RawClient(std::uint16_t port, const std::string& address = "127.0.0.1",
                     int receive_buffer_bytes = 0);
  ~RawClient();
  RawClient(RawClient&& other) noexcept;
  RawClient& operator=(RawClient&&) = delete;

  bool connected() const { return socket_ >= 0; }

  /// False if the server has closed.
  bool Send(std::string_view bytes);
  /// Sends a GET of `path` with the headers that HTTP/1.1 needs.
  bool Get(std::string_view path, std::string_view more_headers = "");
  bool Post(std::string_view path, std::string_view body);

  /// The next answer. `head_only`: to a HEAD request. 1xx answers are answers too.
  ClientResponse ReadResponse(bool head_only = false);
  /// Some bytes; empty at the end of the connection; nullopt after `patience` without any.
  std::optional<std::string> ReadSome(std::chrono::milliseconds patience = kPatience);
  /// Reads and drops until the server closes; false after kPatience.
  bool WaitForClose();

  /// No more will be sent; reading goes on.
  void ShutdownWrite();
  void Close();
  /// Closes without the end-of-stream handshake, as when a process is killed with unread data.
  void Reset();

 private:
  int socket_ = -1;
  std::string received_;  ///< and not yet returned
  bool closed_by_server_ = false;
};

}  // namespace megalith::serve::http::testing
