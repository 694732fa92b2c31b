#pragma once

// One request's generations from submission to the last byte of the answer: cancels them when the
// client goes, keeps a quiet stream alive, and hands everything the model brings to the endpoint,
// one call at a time.
//
// Locks: mutex_ is held while the endpoint's hooks run, never while the generator is called or
// waited for. OnDisconnect may be called inside a write, so it takes ids_mutex_ alone; that one is
// never held across a call.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/generator.h"
#include "serve/api/errors.h"
#include "serve/api/event_stream.h"
#include "serve/http/exchange.h"
#include "serve/metrics.h"

namespace megalith::serve {

/// What a job needs of the service. All of it outlives the job.
struct JobContext {
  engine::Generator& generator;
  Metrics& metrics;
  std::int64_t arrival_ns = 0;  ///< of the request
};

class GenerationJob : public std::enable_shared_from_this<GenerationJob> {
 public:
  virtual ~GenerationJob() = default;
  GenerationJob(const GenerationJob&) = delete;
  GenerationJob& operator=(const GenerationJob&) = delete;

  /// Submits all requests; the answer comes by itself. If one is refused, the others are cancelled
  /// and the client gets the reason as a plain answer. The generator holds the job until its
  /// generations have ended.
  void Start(std::vector<engine::GenerationRequest> requests);

  /// Any thread: says something on a stream that has been quiet for `interval_ns`.
  void Ping(std::int64_t interval_ns);

 protected:
  GenerationJob(std::shared_ptr<http::Exchange> exchange, JobContext context, bool streams,
                ErrorStyle error_style);

  // The endpoint. `idx` is the place in Start's list.
  virtual void OnStreamBegin() {}
  virtual void OnPromptProgress(std::size_t /*idx*/, const engine::PromptProgress& /*progress*/) {}
  virtual void OnPromptToken(std::size_t /*idx*/, const engine::GeneratedToken& /*token*/) {}
  /// False: this generation has said all it had to; later tokens of it are not reported.
  virtual bool OnToken(std::size_t idx, const engine::GeneratedToken& token) = 0;
  virtual void OnFinish(std::size_t idx, const engine::GenerationSummary& summary) = 0;
  /// All have finished: gives the answer, or ends the stream.
  virtual void OnComplete() = 0;
  /// The stream has begun and cannot go on; it is ended behind this.
  virtual void OnStreamError(const ApiError& error) = 0;
  virtual void OnPing() { stream_.Comment("ping"); }

  void Respond(http::Response response) { exchange_->Respond(std::move(response)); }
  EventStream& stream() { return stream_; }
  bool streams() const { return streams_; }
  std::int64_t arrival_ns() const { return context_.arrival_ns; }

 private:
  class Listener;
  struct Generation {
    bool quiet = false;  // said all it had to
    bool finished = false;
    std::int64_t last_token_ns = 0;
  };
  struct Submission {
    std::optional<engine::GenerationId> id;
    bool ended = false;
  };

  void OnDisconnect();
  void CancelAll();
  bool Cancelled();
  void Remember(std::size_t idx, engine::GenerationId id);
  void MarkEnded(std::size_t idx);
  // Runs `event` in turn, or keeps it until all requests are submitted.
  void Dispatch(std::function<void()> event);
  // Locked. What an event throws ends the job, not the generator's thread.
  void RunEvent(const std::function<void()>& event);
  bool TakeToken(std::size_t idx, const engine::GeneratedToken& token);
  void TakeFinish(std::size_t idx, const Result<engine::GenerationSummary>& summary);
  void MeasureToken(Generation& generation);
  // Locked. Nothing further is reported.
  void Abort(const ApiError& error);

  const std::shared_ptr<http::Exchange> exchange_;
  const JobContext context_;
  const bool streams_;
  const ErrorStyle error_style_;
  std::atomic<bool> client_gone_ = false;

  std::mutex mutex_;  // guards what follows, up to ids_mutex_
  EventStream stream_;
  std::vector<Generation> generations_;
  bool started_ = false;
  bool ended_ = false;
  std::vector<std::function<void()>> early_events_;

  std::mutex ids_mutex_;  // guards what follows
  std::vector<Submission> submissions_;
  bool cancelled_ = false;
};

}  // namespace megalith::serve
