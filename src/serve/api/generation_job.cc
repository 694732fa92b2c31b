#include "serve/api/generation_job.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/clock.h"
#include "base/log.h"

namespace megalith::serve {

class GenerationJob::Listener : public engine::GenerationListener {
 public:
  Listener(std::shared_ptr<GenerationJob> job, std::size_t idx) : job_(std::move(job)), idx_(idx) {}

  void OnPromptProgress(const engine::PromptProgress& progress) override {
    job_->Dispatch(
        [job = job_.get(), idx = idx_, progress] { job->OnPromptProgress(idx, progress); });
  }
  void OnPromptToken(const engine::GeneratedToken& token) override {
    job_->Dispatch([job = job_.get(), idx = idx_, token] { job->OnPromptToken(idx, token); });
  }
  bool OnToken(const engine::GeneratedToken& token) override {
    return job_->TakeToken(idx_, token);
  }
  void OnFinish(const Result<engine::GenerationSummary>& summary) override {
    job_->TakeFinish(idx_, summary);
  }

 private:
  const std::shared_ptr<GenerationJob> job_;
  const std::size_t idx_;
};

GenerationJob::GenerationJob(std::shared_ptr<http::Exchange> exchange, JobContext context,
                             bool streams, ErrorStyle error_style)
    : exchange_(std::move(exchange)),
      context_(context),
      streams_(streams),
      error_style_(error_style),
      stream_(exchange_) {}

void GenerationJob::Start(std::vector<engine::GenerationRequest> requests) {
  const engine::GeneratorStatus status = context_.generator.GetStatus();
  if (const std::size_t most = status.max_running + status.max_queued; requests.size() > most) {
    // Refused for good: it would not fit later either.
    ApiError error;
    error.code = ApiErrorCode::kInvalidValue;
    error.message = fmt::format("{} answers asked for in one request, at most {} are possible",
                                requests.size(), most);
    const std::lock_guard lock(mutex_);
    Abort(error);
    return;
  }
  generations_.resize(requests.size());
  submissions_.resize(requests.size());
  exchange_->OnDisconnect([weak = weak_from_this()] {
    if (const auto job = weak.lock()) job->OnDisconnect();
  });
  for (std::size_t i = 0; i < requests.size() && !Cancelled(); ++i) {
    requests[i].label = "request " + exchange_->request().id;
    const auto id = context_.generator.Submit(std::move(requests[i]),
                                              std::make_shared<Listener>(shared_from_this(), i));
    if (!id) {
      CancelAll();
      const std::lock_guard lock(mutex_);
      Abort(ToApiError(id.error()));
      return;
    }
    Remember(i, *id);
  }
  const std::lock_guard lock(mutex_);
  started_ = true;
  if (streams_ && !client_gone_) {
    stream_.Begin();
    OnStreamBegin();
  }
  const auto events = std::move(early_events_);
  for (const auto& event : events) {
    if (ended_) break;
    RunEvent(event);
  }
}

void GenerationJob::Ping(std::int64_t interval_ns) {
  const std::lock_guard lock(mutex_);
  if (started_ && !ended_ && stream_.begun() && stream_.quiet_ns() >= interval_ns) OnPing();
}

void GenerationJob::OnDisconnect() {
  if (client_gone_.exchange(true)) return;
  context_.metrics.CountDisconnect();
  CancelAll();
}

void GenerationJob::CancelAll() {
  std::vector<engine::GenerationId> ids;
  {
    const std::lock_guard lock(ids_mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    for (const Submission& submission : submissions_) {
      if (submission.id && !submission.ended) ids.push_back(*submission.id);
    }
  }
  for (const engine::GenerationId id : ids) context_.generator.Cancel(id);
}

bool GenerationJob::Cancelled() {
  const std::lock_guard lock(ids_mutex_);
  return cancelled_;
}

void GenerationJob::Remember(std::size_t idx, engine::GenerationId id) {
  bool cancel = false;
  {
    const std::lock_guard lock(ids_mutex_);
    submissions_[idx].id = id;
    cancel = cancelled_ && !submissions_[idx].ended;
  }
  if (cancel) context_.generator.Cancel(id);
}

void GenerationJob::MarkEnded(std::size_t idx) {
  const std::lock_guard lock(ids_mutex_);
  submissions_[idx].ended = true;
}

void GenerationJob::Dispatch(std::function<void()> event) {
  const std::lock_guard lock(mutex_);
  if (ended_ || client_gone_) return;
  if (!started_) {
    early_events_.push_back(std::move(event));
  } else {
    RunEvent(event);
  }
}

void GenerationJob::RunEvent(const std::function<void()>& event) {
  try {
    event();
  } catch (const std::bad_alloc&) {
    Abort(ToApiError({ErrorCode::kOutOfMemory, "the answer needs more memory than there is"}));
  } catch (const std::exception& exception) {
    LogFormat(LogLevel::kError, "request {}: {}", exchange_->request().id, exception.what());
    Abort(ToApiError({ErrorCode::kInternal, "internal error; see the server's log"}));
  }
}

bool GenerationJob::TakeToken(std::size_t idx, const engine::GeneratedToken& token) {
  if (client_gone_) return true;  // it is being cancelled, which is not the same as an end
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || generations_[idx].quiet) return false;
    MeasureToken(generations_[idx]);
  }
  Dispatch([this, idx, token] {
    Generation& generation = generations_[idx];
    if (!generation.quiet && !ended_) generation.quiet = !OnToken(idx, token);
  });
  const std::lock_guard lock(mutex_);
  return !ended_ && !generations_[idx].quiet;
}

void GenerationJob::TakeFinish(std::size_t idx, const Result<engine::GenerationSummary>& summary) {
  MarkEnded(idx);
  if (summary) context_.metrics.queue_seconds.Observe(summary->queue_seconds);
  // Not by this job, which hears no more once it has cancelled: the generator itself stops.
  const bool stopped = summary && summary->finish_reason == engine::FinishReason::kCancelled;
  if (!summary || stopped) {
    const ApiError error = summary
                               ? ToApiError({ErrorCode::kCancelled, "the server is shutting down"})
                               : ToApiError(summary.error());
    if (!summary) Log(LogLevel::kError, summary.error().message);
    {
      const std::lock_guard lock(mutex_);
      if (ended_ || client_gone_) return;
    }
    CancelAll();
    Dispatch([this, error] { Abort(error); });
    return;
  }
  Dispatch([this, idx, done = *summary] {
    if (ended_) return;
    OnFinish(idx, done);
    generations_[idx].finished = true;
    if (std::all_of(generations_.begin(), generations_.end(),
                    [](const Generation& generation) { return generation.finished; })) {
      ended_ = true;
      OnComplete();
      if (streams_) stream_.End();
    }
  });
}

void GenerationJob::MeasureToken(Generation& generation) {
  const std::int64_t now = NowNs();
  if (generation.last_token_ns == 0) {
    context_.metrics.first_token_seconds.Observe(static_cast<double>(now - context_.arrival_ns) *
                                                 1e-9);
  } else {
    context_.metrics.token_seconds.Observe(static_cast<double>(now - generation.last_token_ns) *
                                           1e-9);
  }
  generation.last_token_ns = now;
}

void GenerationJob::Abort(const ApiError& error) {
  if (ended_) return;
  ended_ = true;
  early_events_.clear();
  if (client_gone_) return;
  if (stream_.begun()) {
    OnStreamError(error);
    stream_.End();
  } else {
    Respond(ErrorResponse(error, error_style_));
  }
}

}  // namespace megalith::serve
