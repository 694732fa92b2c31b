#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/align.h"
#include "base/clock.h"
#include "base/log.h"
#include "exec/device_memory.h"

namespace megalith::engine {
namespace {

/// A prompt with fewer new tokens than this is not worth a snapshot on the way: it would cost a
/// step more.
constexpr std::size_t kShortPrompt = 64;
/// Snapshots of one sequence are at least so many tokens apart.
constexpr std::size_t kLeastSpacing = 16;
/// Weight of the latest step in answer_step_seconds_.
constexpr double kStepWeight = 0.1;
constexpr std::chrono::milliseconds kRankPoll{100};

Status CheckOptions(const SchedulerOptions& options) {
  if (options.prompt_rows_beside_answers < 1) {
    return Fail(ErrorCode::kUsage, "prompt rows beside answers: at least 1 expected, {} given",
                options.prompt_rows_beside_answers);
  }
  // Written so that NaN fails.
  if (!(options.prompt_share > 0.0 && options.prompt_share <= 1.0)) {
    return Fail(ErrorCode::kUsage,
                "prompt share: a number above 0 and at most 1 expected, {} given",
                options.prompt_share);
  }
  if (options.snapshot_spacing < 1 || options.prefix_cache_bytes < 0) {
    return Fail(ErrorCode::kUsage,
                "prefix cache: {} bytes and a snapshot every {} tokens given, at least 0 and 1 "
                "expected",
                options.prefix_cache_bytes, options.snapshot_spacing);
  }
  return {};
}

/// Lengths at which the prompt is to be cut for a snapshot: where requests are likely to part, and
/// evenly spaced ones between. `cached`: tokens that need not run.
std::vector<std::size_t> SnapshotLengths(const GenerationRequest& request, std::size_t cached,
                                         std::size_t spacing) {
  const std::size_t size = request.prompt.size();
  std::vector<std::size_t> lengths;
  if (!request.use_prefix_cache || request.prompt_logprobs || size - cached < kShortPrompt) {
    return lengths;
  }
  std::vector<std::size_t> wanted = {size - 1};
  if (!request.boundaries.empty()) {
    wanted = {request.boundaries.front(), request.boundaries.back()};
  }
  for (std::size_t length = RoundUp(cached + 1, spacing); length < size; length += spacing) {
    wanted.push_back(length);
  }
  std::sort(wanted.begin(), wanted.end());
  for (const std::size_t length : wanted) {
    const std::size_t last = lengths.empty() ? cached : lengths.back();
    if (length >= last + kLeastSpacing && length < size) lengths.push_back(length);
  }
  return lengths;
}

}  // namespace

/// A generation that has a slot.
struct Scheduler::Running {
  GenerationId id = 0;
  std::shared_ptr<GenerationListener> listener;
  std::unique_ptr<Generation> generation;
  std::int32_t slot = 0;
  std::int64_t reserved_pages = 0;
  std::vector<std::size_t> snapshot_lengths;  // still ahead, ascending
  /// Kept only once the model has given a distribution after them.
  std::vector<std::shared_ptr<const exec::Snapshot>> snapshots;
  GenerationSummary summary;
  std::int64_t submitted_ns = 0;
  std::int64_t begun_ns = 0;
  std::int64_t first_token_ns = 0;  // 0: none yet
  bool is_done = false;

  std::string Label() const {
    const std::string& label = generation->request().label;
    return label.empty() ? fmt::format("generation {}", id) : label;
  }
  std::size_t NextSnapshot() const {
    return snapshot_lengths.empty() ? 0 : snapshot_lengths.front();
  }
};

Result<std::unique_ptr<Scheduler>> Scheduler::Start(Engine& engine,
                                                    const SchedulerOptions& options) {
  MEGALITH_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Scheduler> scheduler(new Scheduler(engine, options));
  GenerationRequest any;
  any.prompt = {0};
  any.max_tokens = 1;
  MEGALITH_RETURN_IF_ERROR(Generation::Check(any, scheduler->MakeDrafting(), engine));
  MEGALITH_RETURN_IF_ERROR(scheduler->OpenStore());
  scheduler->thread_ = std::thread([self = scheduler.get()] { self->Loop(); });
  return scheduler;
}

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options)
    : engine_(engine),
      options_(options),
      cache_(options.prefix_cache_bytes, engine.executor().memory().page_bytes()) {
  for (std::int32_t slot = engine.num_sequences() - 1; slot >= 0; --slot) {
    free_slots_.push_back(slot);
  }
  status_.max_running = free_slots_.size();
  status_.max_queued = options.max_queued;
  status_.cache_limit_bytes = options.prefix_cache_bytes;
}

Status Scheduler::OpenStore() {
  if (options_.prefix_store.empty()) return {};
  if (engine_.num_ranks() > 1) {
    return Fail(ErrorCode::kUnsupported, "{}: sequences of {} ranks cannot be kept in a folder yet",
                options_.prefix_store, engine_.num_ranks());
  }
  PrefixStoreOptions store;
  store.directory = options_.prefix_store;
  MEGALITH_ASSIGN_OR_RETURN(store.identity, engine_.StateIdentity());
  store.limit_bytes = options_.prefix_store_bytes;
  store.max_positions = engine_.max_positions();
  MEGALITH_ASSIGN_OR_RETURN(store_, PrefixStore::Open(store));
  return {};
}

Scheduler::~Scheduler() { Stop(); }

void Scheduler::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

DraftOptions Scheduler::MakeDrafting() const {
  DraftOptions drafting;
  drafting.max_drafts = options_.max_drafts;
  drafting.always = options_.always;
  drafting.drafter = options_.drafter;
  if (options_.ngram) drafting.proposer = MakeNgramProposer();
  return drafting;
}

/// Cache pages of the sequence at its longest.
std::int64_t Scheduler::PagesFor(const GenerationRequest& request) const {
  const auto positions = static_cast<std::int32_t>(
      std::min(static_cast<std::int64_t>(request.prompt.size()) + request.max_tokens,
               std::int64_t{engine_.max_positions()}));
  return engine_.executor().memory().sequences().PagesFor(positions);
}

Result<GenerationId> Scheduler::Submit(GenerationRequest request,
                                       std::shared_ptr<GenerationListener> listener) {
  MEGALITH_RETURN_IF_ERROR(Generation::Check(request, MakeDrafting(), engine_));
  const auto logit_rows = engine_.executor().limits().max_logit_rows;
  if (request.prompt_logprobs && logit_rows < 2) {
    return Fail(ErrorCode::kUnsupported,
                "log probabilities of the prompt: logits of {} rows a step are too few",
                logit_rows);
  }
  const std::lock_guard lock(mutex_);
  if (status_.failure) return tl::unexpected(*status_.failure);
  if (stop_) return Fail(ErrorCode::kCancelled, "the scheduler is ending");
  // A request that can begin at once does not wait.
  if (queue_.size() + status_.generations.size() >= status_.max_running + options_.max_queued) {
    ++status_.num_refused;
    return Fail(ErrorCode::kBusy, "{} requests are waiting already, at most {} can", queue_.size(),
                options_.max_queued);
  }
  ++status_.num_submitted;
  const GenerationId id = next_id_++;
  queue_.push_back({id, std::move(request), std::move(listener), NowNs()});
  wake_.notify_all();
  return id;
}

void Scheduler::Cancel(GenerationId id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
  }
  wake_.notify_all();
}

GeneratorStatus Scheduler::GetStatus() const {
  const std::lock_guard lock(mutex_);
  GeneratorStatus status = status_;
  std::size_t position = 0;
  for (const Waiting& waiting : queue_) {
    GenerationView view;
    view.id = waiting.id;
    view.queue_position = ++position;
    view.prompt.total = waiting.request.prompt.size();
    view.age_seconds = SecondsSince(waiting.submitted_ns);
    status.generations.push_back(view);
  }
  return status;
}

std::optional<Error> Scheduler::failure() const {
  const std::lock_guard lock(mutex_);
  return status_.failure;
}

void Scheduler::Loop() {
  while (WaitForWork()) {
    TakeCancelled();
    Admit();
    Publish();
    if (!running_.empty()) RunStep();
    if (store_ != nullptr) store_->ReleaseWritten();
    RemoveFinished();
  }
  CancelAll();
}

bool Scheduler::WaitForWork() {
  std::unique_lock lock(mutex_);
  const auto has_work = [this] {
    return stop_ || !queue_.empty() || !cancelled_.empty() || !running_.empty();
  };
  if (engine_.num_ranks() == 1) {
    wake_.wait(lock, has_work);
  } else {
    // Other ranks may fail while nobody asks for anything.
    while (!wake_.wait_for(lock, kRankPoll, has_work)) NoticeFailure(engine_.JobStatus());
  }
  return !stop_;
}

void Scheduler::NoticeFailure(const Status& status) {
  if (!status && !status_.failure) status_.failure = status.error();
}

void Scheduler::TakeCancelled() {
  std::vector<Waiting> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_.empty()) return;
    for (auto waiting = queue_.begin(); waiting != queue_.end();) {
      if (cancelled_.contains(waiting->id)) {
        dropped.push_back(std::move(*waiting));
        waiting = queue_.erase(waiting);
      } else {
        ++waiting;
      }
    }
    status_.num_cancelled += dropped.size();
    for (const auto& running : running_) {
      if (cancelled_.contains(running->id)) {
        running->generation->Finish(FinishReason::kCancelled);
      }
    }
    cancelled_.clear();
  }
  for (const Waiting& waiting : dropped) {
    GenerationSummary summary;
    summary.finish_reason = FinishReason::kCancelled;
    summary.prompt.total = waiting.request.prompt.size();
    summary.queue_seconds = SecondsSince(waiting.submitted_ns);
    waiting.listener->OnFinish(summary);
  }
  for (const auto& running : running_) {
    if (running->generation->finished()) Finish(*running, {});
  }
  RemoveFinished();
}

/// Gives slots to those that wait, in their order.
void Scheduler::Admit() {
  while (auto waiting = TakeNext()) Begin(std::move(*waiting));
}

/// The first in the queue, if there is a slot and memory for it at its longest.
std::optional<Scheduler::Waiting> Scheduler::TakeNext() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || free_slots_.empty()) return std::nullopt;
  const std::int64_t pages = engine_.executor().memory().program(0)->state.num_pages;
  if (!running_.empty() && reserved_pages_ + PagesFor(queue_.front().request) > pages) {
    return std::nullopt;
  }
  Waiting waiting = std::move(queue_.front());
  queue_.pop_front();
  // It is seen, and counted, at every moment between the queue and its end.
  GenerationView view;
  view.id = waiting.id;
  view.prompt.total = waiting.request.prompt.size();
  view.age_seconds = SecondsSince(waiting.submitted_ns);
  status_.generations.push_back(view);
  return waiting;
}

void Scheduler::Begin(Waiting waiting) {
  auto running = std::make_unique<Running>();
  running->id = waiting.id;
  running->listener = std::move(waiting.listener);
  running->slot = free_slots_.back();
  free_slots_.pop_back();
  running->reserved_pages = PagesFor(waiting.request);
  reserved_pages_ += running->reserved_pages;
  running->submitted_ns = waiting.submitted_ns;
  running->begun_ns = NowNs();
  running->summary.queue_seconds = SecondsSince(waiting.submitted_ns);
  running->summary.prompt.total = waiting.request.prompt.size();
  running->generation = std::make_unique<Generation>(
      engine_, std::move(waiting.request), MakeDrafting(),
      [running = running.get()](const GeneratedToken& token) {
        if (running->first_token_ns == 0) running->first_token_ns = NowNs();
        return running->listener->OnToken(token);
      },
      [running = running.get()](const GeneratedToken& token) {
        running->listener->OnPromptToken(token);
        return true;
      });
  RestorePrefix(*running);
  running->snapshot_lengths =
      SnapshotLengths(running->generation->request(), running->summary.prompt.cached,
                      static_cast<std::size_t>(options_.snapshot_spacing));
  if (options_.prefix_cache_bytes == 0) running->snapshot_lengths.clear();
  running->listener->OnPromptProgress(running->summary.prompt);
  running_.push_back(std::move(running));
}

void Scheduler::RestorePrefix(Running& running) {
  const GenerationRequest& request = running.generation->request();
  if (!request.use_prefix_cache || request.prompt_logprobs || cache_.limit_bytes() == 0) return;
  std::size_t length = 0;
  if (const auto snapshot = FindSnapshot(request.prompt)) {
    Status status = engine_.executor().Restore(*snapshot, running.slot);
    while (!status && status.error().code == ErrorCode::kOutOfMemory && cache_.Evict()) {
      status = engine_.executor().Restore(*snapshot, running.slot);
    }
    if (status) length = static_cast<std::size_t>(snapshot->length());
  }
  running.generation->Resume(length);
  running.summary.prompt.cached = length;
  running.summary.prompt.done = length;
  {
    const std::lock_guard lock(mutex_);
    status_.prompt_tokens += length;
    status_.cached_tokens += length;
  }
  LogFormat(LogLevel::kInfo, "{}: {} of {} prompt tokens from the prefix cache: {}",
            running.Label(), length, request.prompt.size(),
            cache_.ExplainMiss(request.prompt, length));
}

/// From memory, or from the store if that has a longer one.
std::shared_ptr<const exec::Snapshot> Scheduler::FindSnapshot(
    std::span<const std::int32_t> prompt) {
  auto snapshot = cache_.Find(prompt);
  if (store_ == nullptr) return snapshot;
  const std::size_t length = store_->FindLongest(prompt);
  if (length <= (snapshot ? static_cast<std::size_t>(snapshot->length()) : 0)) return snapshot;
  auto stored = store_->Read(prompt.first(length), engine_.executor());
  while (!stored && stored.error().code == ErrorCode::kOutOfMemory && cache_.Evict()) {
    stored = store_->Read(prompt.first(length), engine_.executor());
  }
  if (!stored) return snapshot;
  cache_.Insert(prompt.first(length), *stored);
  return *stored;
}

void Scheduler::RunStep() {
  PlanStep();
  const std::int64_t start = NowNs();
  auto step = Step();
  const double seconds = SecondsSince(start);
  if (!step) {
    // Its sequences are lost; if the executor cannot go on, so are all that follow.
    for (const Part& part : parts_) Finish(*part.running, tl::unexpected(step.error()));
    const std::lock_guard lock(mutex_);
    if (step.error().code == ErrorCode::kInternal) NoticeFailure(tl::unexpected(step.error()));
    NoticeFailure(engine_.JobStatus());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ++status_.num_steps;
    status_.step_rows += tokens_.size();
    status_.step_seconds += seconds;
  }
  TakeStep(*step, seconds);
  KeepShare(seconds);
}

void Scheduler::PlanStep() {
  parts_.clear();
  runs_.clear();
  tokens_.clear();
  logit_rows_.clear();
  num_logit_rows_ = 0;
  // Somebody else's rows come first every time, should they not all fit.
  if (!running_.empty()) turn_ = (turn_ + 1) % running_.size();
  PlanAnswers();
  PlanPrompts();
}

void Scheduler::PlanAnswers() {
  std::int32_t left = 0;
  for (const auto& running : running_) left += running->generation->in_prompt() ? 0 : 1;
  engine_.draft_experience().BeginStep(left);
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Running& running = *running_[(turn_ + i) % running_.size()];
    if (running.generation->in_prompt()) continue;
    const exec::ExecutorLimits& limits = engine_.executor().limits();
    const auto rows = static_cast<std::int32_t>(
        std::min(limits.max_rows - static_cast<std::int64_t>(tokens_.size()),
                 limits.max_logit_rows - num_logit_rows_));
    // One row for each that is still to come.
    if (rows >= left) AddPart(running, std::min(rows - left + 1, options_.max_drafts + 1));
    --left;
  }
}

/// Shares the rows that are left equally, so that a short prompt does not wait for a long one.
void Scheduler::PlanPrompts() {
  std::int32_t left = 0;
  for (const auto& running : running_) left += running->generation->in_prompt() ? 1 : 0;
  if (left == 0) return;
  const bool beside_answers = !parts_.empty();
  std::int32_t rows = PromptRows(beside_answers);
  for (std::size_t i = 0; i < running_.size() && rows > 0; ++i) {
    Running& running = *running_[(turn_ + i) % running_.size()];
    if (!running.generation->in_prompt()) continue;
    std::int32_t share = CeilDiv(rows, left);
    --left;
    const std::int64_t logit_rows = engine_.executor().limits().max_logit_rows - num_logit_rows_;
    if (running.generation->request().prompt_logprobs) {
      share = static_cast<std::int32_t>(std::min<std::int64_t>(share, logit_rows - 1));
    }
    if (share < 1 || logit_rows < 1) continue;
    const auto before = tokens_.size();
    AddPart(running, share);
    rows -= static_cast<std::int32_t>(tokens_.size() - before);
  }
}

std::int32_t Scheduler::PromptRows(bool beside_answers) const {
  const auto free = static_cast<std::int32_t>(
      std::min<std::int64_t>(engine_.rows_per_step(), engine_.executor().limits().max_rows) -
      static_cast<std::int64_t>(tokens_.size()));
  if (!beside_answers) return free;
  if (prompt_credit_seconds_ < 0.0) return 0;
  return std::min(free, options_.prompt_rows_beside_answers);
}

void Scheduler::AddPart(Running& running, std::int32_t max_rows) {
  const bool is_prompt = running.generation->in_prompt();
  Part part{&running, is_prompt,
            running.generation->Next(running.slot, max_rows, running.NextSnapshot()), 0};
  const auto first_row = static_cast<std::int32_t>(tokens_.size());
  part.first_logits = static_cast<std::int64_t>(logit_rows_.size());
  if (part.plan.wants_all_logits) {
    for (std::int32_t row = 0; row < part.plan.run.count; ++row) {
      logit_rows_.push_back(first_row + row);
    }
    num_logit_rows_ += part.plan.run.count;
  }
  if (part.plan.run.wants_token) num_logit_rows_ += part.plan.run.num_drafts + 1;
  tokens_.insert(tokens_.end(), part.plan.tokens.begin(), part.plan.tokens.end());
  runs_.push_back(part.plan.run);
  parts_.push_back(part);
}

/// Snapshots make room for sequences: those of the cache, then those that were to get there.
Result<exec::StepOutput> Scheduler::Step() {
  const exec::StepInput input{runs_, tokens_, logit_rows_};
  auto step = engine_.executor().Step(input);
  while (!step && step.error().code == ErrorCode::kOutOfMemory && cache_.Evict()) {
    step = engine_.executor().Step(input);
  }
  if (step || step.error().code != ErrorCode::kOutOfMemory) return step;
  for (const auto& running : running_) running->snapshots.clear();
  return engine_.executor().Step(input);
}

void Scheduler::TakeStep(const exec::StepOutput& step, double seconds) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Running& running = *parts_[i].running;
    const Status status = TakePart(parts_[i], step, i);
    if (!status || running.generation->finished()) Finish(running, status);
  }
  engine_.draft_experience().EndStep(NumPrompts() > 0 ? 0.0 : seconds);
}

std::size_t Scheduler::NumPrompts() const {
  return static_cast<std::size_t>(
      std::count_if(parts_.begin(), parts_.end(), [](const Part& part) { return part.is_prompt; }));
}

Status Scheduler::TakePart(const Part& part, const exec::StepOutput& step, std::size_t index) {
  Running& running = *part.running;
  Generation& generation = *running.generation;
  const exec::RunOutput& output = step.runs()[index];
  if (part.is_prompt) {
    running.summary.prompt.done += static_cast<std::size_t>(part.plan.run.count);
    running.listener->OnPromptProgress(running.summary.prompt);
  }
  const std::size_t generated_before = generation.generated().size();
  const std::int64_t drafted_before = generation.drafting().drafted;
  const std::int64_t accepted_before = generation.drafting().accepted;
  MEGALITH_RETURN_IF_ERROR(generation.Take(step, output, part.first_logits));
  {
    const std::lock_guard lock(mutex_);
    status_.prompt_tokens += static_cast<std::uint64_t>(part.is_prompt ? part.plan.run.count : 0);
    status_.generated_tokens += generation.generated().size() - generated_before;
    // As the generation counts them: those behind its end are not accepted.
    const DraftStatistics& drafting = generation.drafting();
    status_.drafted_tokens += static_cast<std::uint64_t>(drafting.drafted - drafted_before);
    status_.accepted_tokens += static_cast<std::uint64_t>(drafting.accepted - accepted_before);
  }
  const auto length = static_cast<std::int32_t>(generation.length());
  if (engine_.executor().memory().sequences().Length(running.slot) != length) {
    MEGALITH_RETURN_IF_ERROR(engine_.executor().Truncate(running.slot, length));
  }
  if (part.is_prompt && generation.length() == running.NextSnapshot()) {
    SaveSnapshot(running);
    running.snapshot_lengths.erase(running.snapshot_lengths.begin());
  }
  return {};
}

/// Steps without prompts earn the time that prompts may take from answers.
void Scheduler::KeepShare(double seconds) {
  if (NumPrompts() == parts_.size()) return;
  if (NumPrompts() > 0) {
    prompt_credit_seconds_ -= std::max(0.0, seconds - answer_step_seconds_);
  } else {
    const double weight = answer_step_seconds_ == 0.0 ? 1.0 : kStepWeight;
    answer_step_seconds_ += weight * (seconds - answer_step_seconds_);
    prompt_credit_seconds_ += seconds * options_.prompt_share / (1.0 - options_.prompt_share);
  }
  // Nothing is saved up; with a share of 1 nothing is owed either.
  prompt_credit_seconds_ = std::min(prompt_credit_seconds_, 0.0);
  if (options_.prompt_share == 1.0) prompt_credit_seconds_ = 0.0;
}

/// Without memory for it there is none.
void Scheduler::SaveSnapshot(Running& running) {
  const Generation& generation = *running.generation;
  if (options_.prefix_cache_bytes == 0 || !generation.request().use_prefix_cache) return;
  if (cache_.Contains(generation.tokens().first(generation.length()))) return;
  auto snapshot = engine_.executor().Save(running.slot);
  if (snapshot) running.snapshots.push_back(std::move(*snapshot));
}

/// `status`: why it failed, if it did. What it held is free afterwards.
void Scheduler::Finish(Running& running, const Status& status) {
  if (running.is_done) return;
  running.is_done = true;
  const Generation& generation = *running.generation;
  if (status && generation.length() > 0) SaveSnapshot(running);
  if (status) {
    KeepSnapshots(running);
  } else if (status.error().code == ErrorCode::kNumeric && running.summary.prompt.cached > 0) {
    // Should the fault have come from there, it must not come again.
    cache_.Remove(generation.tokens().first(running.summary.prompt.cached));
  }
  running.snapshots.clear();
  static_cast<void>(engine_.executor().ReleaseSlot(running.slot));
  Tell(running, status);
}

/// In memory; on disk the end, and what many requests are likely to begin with.
void Scheduler::KeepSnapshots(Running& running) {
  const Generation& generation = *running.generation;
  const std::vector<std::size_t>& boundaries = generation.request().boundaries;
  for (auto& snapshot : running.snapshots) {
    const auto length = static_cast<std::size_t>(snapshot->length());
    const auto tokens = generation.tokens().first(length);
    const bool is_end = length == generation.length();
    const bool is_shared =
        length == (boundaries.empty() ? generation.prompt_size() - 1 : boundaries.front());
    if (store_ != nullptr && (is_end || is_shared)) store_->Write(tokens, snapshot);
    cache_.Insert(tokens, std::move(snapshot));
  }
}

/// Ends it for the listener and the counters.
void Scheduler::Tell(Running& running, const Status& status) {
  GenerationSummary& summary = running.summary;
  const Generation& generation = *running.generation;
  summary.generated_tokens = static_cast<std::int64_t>(generation.generated().size());
  summary.drafting = generation.drafting();
  const std::int64_t now = NowNs();
  const std::int64_t prompt_end = running.first_token_ns == 0 ? now : running.first_token_ns;
  summary.prompt_seconds = static_cast<double>(prompt_end - running.begun_ns) * 1e-9;
  summary.decode_seconds = static_cast<double>(now - prompt_end) * 1e-9;
  if (status) summary.finish_reason = generation.finish_reason();
  {
    const std::lock_guard lock(mutex_);
    status_.queue_seconds += summary.queue_seconds;
    if (!status) {
      ++status_.num_failed;
    } else if (summary.finish_reason == FinishReason::kCancelled) {
      ++status_.num_cancelled;
    } else {
      ++status_.num_finished;
    }
    // Whoever hears of the end may ask for the place at once.
    std::erase_if(status_.generations,
                  [&running](const GenerationView& view) { return view.id == running.id; });
  }
  if (status) {
    running.listener->OnFinish(summary);
  } else {
    LogFormat(LogLevel::kError, "{}: {}", running.Label(), status.error().message);
    running.listener->OnFinish(tl::unexpected(status.error()));
  }
}

void Scheduler::RemoveFinished() {
  std::erase_if(running_, [this](const std::unique_ptr<Running>& running) {
    if (!running->is_done) return false;
    free_slots_.push_back(running->slot);
    reserved_pages_ -= running->reserved_pages;
    return true;
  });
  Publish();
}

/// Ends everything that runs and waits.
void Scheduler::CancelAll() {
  {
    const std::lock_guard lock(mutex_);
    for (const Waiting& each : queue_) cancelled_.insert(each.id);
    for (const auto& running : running_) cancelled_.insert(running->id);
  }
  TakeCancelled();
}

/// What GetStatus tells of running generations and the cache.
void Scheduler::Publish() {
  const std::lock_guard lock(mutex_);
  status_.generations.clear();
  for (const auto& running : running_) {
    GenerationView view;
    view.id = running->id;
    view.prompt = running->summary.prompt;
    view.generated_tokens = static_cast<std::int64_t>(running->generation->generated().size());
    view.age_seconds = SecondsSince(running->submitted_ns);
    status_.generations.push_back(view);
  }
  status_.cache_bytes = cache_.bytes();
  status_.cache_entries = cache_.size();
  status_.cache_evictions = cache_.num_evictions();
}

}  // namespace megalith::engine
