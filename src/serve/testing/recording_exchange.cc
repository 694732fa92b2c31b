#include "serve/testing/recording_exchange.h"

#include <gtest/gtest.h>

#include <atomic>

namespace megalith::serve::testing {

void Recording::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return complete_ || dropped_; });
}

void Recording::WaitForPieces(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, count] { return complete_ || dropped_ || pieces_.size() >= count; });
}

void Recording::Disconnect() {
  std::unique_lock lock(mutex_);
  CallDisconnected(std::move(lock));
}

void Recording::DisconnectAfter(std::size_t num_pieces) {
  const std::lock_guard lock(mutex_);
  gone_after_ = num_pieces;
}

void Recording::CallDisconnected(std::unique_lock<std::mutex> lock) {
  if (gone_ || complete_) return;
  gone_ = true;
  const auto callback = std::move(on_disconnect_);
  on_disconnect_ = nullptr;
  lock.unlock();
  if (callback) callback();
}

http::Response Recording::response() const {
  const std::lock_guard lock(mutex_);
  return response_.value_or(http::Response{0, "", {}, ""});
}

bool Recording::is_stream() const {
  const std::lock_guard lock(mutex_);
  return is_stream_;
}

bool Recording::complete() const {
  const std::lock_guard lock(mutex_);
  return complete_;
}

bool Recording::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

std::vector<std::string> Recording::pieces() const {
  const std::lock_guard lock(mutex_);
  return pieces_;
}

std::string Recording::body() const {
  const std::lock_guard lock(mutex_);
  if (!is_stream_) return response_ ? response_->body : "";
  std::string body;
  for (const std::string& piece : pieces_) body += piece;
  return body;
}

RecordingExchange::~RecordingExchange() {
  {
    const std::lock_guard lock(recording_->mutex_);
    recording_->dropped_ = !recording_->complete_;
  }
  recording_->changed_.notify_all();
}

void RecordingExchange::Respond(http::Response response) {
  {
    const std::lock_guard lock(recording_->mutex_);
    EXPECT_FALSE(recording_->response_) << "answered twice";
    recording_->response_ = std::move(response);
    recording_->complete_ = true;
  }
  recording_->changed_.notify_all();
}

void RecordingExchange::BeginStream(http::Response head) {
  const std::lock_guard lock(recording_->mutex_);
  EXPECT_FALSE(recording_->response_) << "answered twice";
  EXPECT_TRUE(head.body.empty());
  recording_->response_ = std::move(head);
  recording_->is_stream_ = true;
}

bool RecordingExchange::Write(std::string piece) {
  std::unique_lock lock(recording_->mutex_);
  EXPECT_TRUE(recording_->is_stream_) << "written before the stream began";
  EXPECT_FALSE(recording_->complete_) << "written after the end";
  if (recording_->gone_) return false;
  recording_->pieces_.push_back(std::move(piece));
  const bool goes =
      recording_->gone_after_ && recording_->pieces_.size() >= *recording_->gone_after_;
  if (goes) recording_->CallDisconnected(std::move(lock));
  recording_->changed_.notify_all();
  return !goes;
}

void RecordingExchange::EndStream() {
  {
    const std::lock_guard lock(recording_->mutex_);
    EXPECT_TRUE(recording_->is_stream_);
    EXPECT_FALSE(recording_->complete_) << "ended twice";
    recording_->complete_ = true;
  }
  recording_->changed_.notify_all();
}

void RecordingExchange::OnDisconnect(std::function<void()> callback) {
  std::unique_lock lock(recording_->mutex_);
  if (!recording_->gone_) {
    recording_->on_disconnect_ = std::move(callback);
    return;
  }
  lock.unlock();
  callback();
}

http::Request MakeRequest(std::string method, std::string path, std::string body) {
  static std::atomic<int> num_requests = 0;
  http::Request request;
  request.id = "r" + std::to_string(++num_requests);
  request.method = std::move(method);
  request.path = std::move(path);
  request.body = std::move(body);
  return request;
}

std::vector<StreamEvent> ParseEvents(const std::string& stream) {
  std::vector<StreamEvent> events;
  std::size_t begin = 0;
  while (begin < stream.size()) {
    const std::size_t end = stream.find("\n\n", begin);
    if (end == std::string::npos) {
      ADD_FAILURE() << "a stream ends inside an event: " << stream.substr(begin);
      break;
    }
    StreamEvent event;
    for (std::size_t line_begin = begin; line_begin < end;) {
      const std::size_t line_end = std::min(stream.find('\n', line_begin), end);
      const std::string line = stream.substr(line_begin, line_end - line_begin);
      line_begin = line_end + 1;
      if (line.starts_with(":")) continue;
      if (line.starts_with("event: ")) {
        event.name = line.substr(7);
      } else if (line.starts_with("data: ")) {
        event.data = line.substr(6);
      } else {
        ADD_FAILURE() << "no line of an event: " << line;
      }
    }
    if (!event.data.empty()) events.push_back(std::move(event));
    begin = end + 2;
  }
  return events;
}

}  // namespace megalith::serve::testing
