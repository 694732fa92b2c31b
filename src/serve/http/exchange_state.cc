#include "serve/http/exchange_state.h"

#include <string_view>
#include <utility>

#include "base/log.h"
#include "serve/http/error_response.h"

namespace megalith::serve::http {
namespace {

/// A wrong order of calls is a bug of whoever answers; it must not end the process for all others.
/// Unlocks, because the sink of the log is foreign code.
void LogMisuse(std::unique_lock<std::mutex>* lock, const Request& request, std::string_view call) {
  lock->unlock();
  LogFormat(LogLevel::kError, "request {}: {} at the wrong time is ignored", request.id, call);
}

}  // namespace

ExchangeState::ExchangeState(Request request, std::shared_ptr<ExchangeTransport> transport,
                             std::size_t max_unread_bytes)
    : request_(std::move(request)),
      max_unread_bytes_(max_unread_bytes),
      transport_(std::move(transport)) {}

void ExchangeState::RequestFlush() {
  if (std::exchange(flush_requested_, true)) return;
  transport_->Flush(shared_from_this());
}

std::function<void()> ExchangeState::Complete() {
  outgoing_.complete = true;
  phase_ = Phase::kComplete;
  RequestFlush();
  transport_.reset();
  return std::exchange(on_disconnect_, nullptr);
}

void ExchangeState::Respond(Response response) {
  std::function<void()> unused;
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kGone) return;
  if (phase_ != Phase::kWaiting) return LogMisuse(&lock, request_, "Respond");
  outgoing_.head = std::move(response);
  unused = Complete();
}

void ExchangeState::BeginStream(Response head) {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kGone) return;
  if (phase_ != Phase::kWaiting) return LogMisuse(&lock, request_, "BeginStream");
  phase_ = Phase::kStreaming;
  outgoing_.head = std::move(head);
  outgoing_.is_stream = true;
  RequestFlush();
}

bool ExchangeState::Write(std::string piece) {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kGone) return false;
  if (phase_ != Phase::kStreaming) {
    LogMisuse(&lock, request_, "Write");
    return false;
  }
  if (outgoing_.overflow) return false;
  // An empty chunk would end the stream.
  if (piece.empty()) return true;
  if (outgoing_bytes_ + transport_->unsent_bytes() > max_unread_bytes_) {
    outgoing_.overflow = true;
    RequestFlush();
    return false;
  }
  outgoing_bytes_ += piece.size();
  outgoing_.pieces.push_back(std::move(piece));
  RequestFlush();
  return true;
}

void ExchangeState::EndStream() {
  std::function<void()> unused;
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kGone) return;
  if (phase_ != Phase::kStreaming) return LogMisuse(&lock, request_, "EndStream");
  if (outgoing_.overflow) return;  // as good as gone, and OnDisconnect is on its way
  unused = Complete();
}

void ExchangeState::OnDisconnect(std::function<void()> callback) {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kGone) {
    lock.unlock();
    if (callback) callback();
    return;
  }
  // In kComplete there is nothing left to cancel.
  if (phase_ != Phase::kComplete) on_disconnect_.swap(callback);
  lock.unlock();
}

void ExchangeState::Fail() {
  std::function<void()> unused;
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kGone || phase_ == Phase::kComplete || outgoing_.overflow) return;
  if (phase_ == Phase::kWaiting) {
    outgoing_.head = ErrorResponse(500, "internal_error", "The server failed to answer.");
  } else {
    outgoing_.cut = true;
  }
  unused = Complete();
}

ExchangeState::Outgoing ExchangeState::Take() {
  const std::lock_guard lock(mutex_);
  flush_requested_ = false;
  outgoing_bytes_ = 0;
  return std::exchange(outgoing_, Outgoing{.overflow = outgoing_.overflow});
}

std::function<void()> ExchangeState::MarkGone() {
  Outgoing unused;
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kGone || phase_ == Phase::kComplete) return nullptr;
  phase_ = Phase::kGone;
  transport_.reset();
  std::swap(unused, outgoing_);
  return std::exchange(on_disconnect_, nullptr);
}

}  // namespace megalith::serve::http
