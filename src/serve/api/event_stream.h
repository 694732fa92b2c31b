#pragma once

// Server-sent events over an exchange.

#include <cstdint>
#include <memory>
#include <string_view>

#include "serve/http/exchange.h"
#include "text/json_value.h"

namespace megalith::serve {

/// One thread at a time. After the client has gone everything is dropped; the exchange's
/// OnDisconnect tells.
class EventStream {
 public:
  explicit EventStream(std::shared_ptr<http::Exchange> exchange) : exchange_(std::move(exchange)) {}

  void Begin();
  bool begun() const { return begun_; }

  /// `data: {...}`, whole in one piece.
  void Data(const text::JsonValue& json);
  /// `event: name` and `data: {...}`.
  void Event(std::string_view name, const text::JsonValue& json);
  /// The word that ends OpenAI's streams.
  void Done();
  /// A line that clients skip.
  void Comment(std::string_view text);
  void End();

  /// Nanoseconds since something was last written.
  std::int64_t quiet_ns() const;

 private:
  void Write(std::string piece);

  std::shared_ptr<http::Exchange> exchange_;
  bool begun_ = false;
  bool ended_ = false;
  std::int64_t last_write_ns_ = 0;
};

}  // namespace megalith::serve
