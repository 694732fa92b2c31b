#include "serve/api/event_stream.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace megalith::serve {

void EventStream::Begin() {
  http::Response head;
  head.content_type = "text/event-stream";
  // Proxies must neither store nor collect what is meant to arrive piece by piece.
  head.headers.push_back({"Cache-Control", "no-cache"});
  head.headers.push_back({"X-Accel-Buffering", "no"});
  begun_ = true;
  last_write_ns_ = NowNs();
  exchange_->BeginStream(std::move(head));
}

void EventStream::Data(const text::JsonValue& json) {
  Write(fmt::format("data: {}\n\n", WriteCompactJson(json)));
}

void EventStream::Event(std::string_view name, const text::JsonValue& json) {
  Write(fmt::format("event: {}\ndata: {}\n\n", name, WriteCompactJson(json)));
}

void EventStream::Done() { Write("data: [DONE]\n\n"); }

void EventStream::Comment(std::string_view text) { Write(fmt::format(": {}\n\n", text)); }

void EventStream::End() {
  if (ended_) return;
  ended_ = true;
  exchange_->EndStream();
}

std::int64_t EventStream::quiet_ns() const { return NowNs() - last_write_ns_; }

void EventStream::Write(std::string piece) {
  if (ended_) return;
  last_write_ns_ = NowNs();
  // A client that has gone is told to OnDisconnect; further pieces go nowhere.
  if (!exchange_->Write(std::move(piece))) ended_ = true;
}

}  // namespace megalith::serve
