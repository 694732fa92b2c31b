#include "serve/testing/scripted_generator.h"

#include <algorithm>
#include <limits>

namespace megalith::serve::testing {

ScriptedGenerator::ScriptedGenerator(std::int64_t max_positions)
    : max_positions_(max_positions), thread_([this] { Run(); }) {}

ScriptedGenerator::~ScriptedGenerator() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ScriptedGenerator::Play(std::vector<Script> scripts) {
  const std::lock_guard lock(mutex_);
  scripts_.assign(scripts.begin(), scripts.end());
}

void ScriptedGenerator::Pause(std::size_t after_tokens) {
  const std::lock_guard lock(mutex_);
  paused_ = true;
  pause_after_ = after_tokens;
  for (Generation& generation : generations_) generation.num_since_pause = 0;
}

void ScriptedGenerator::Resume() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = false;
  }
  changed_.notify_all();
}

void ScriptedGenerator::WaitIdle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return generations_.empty(); });
}

void ScriptedGenerator::WaitPaused(std::size_t num_requests) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, num_requests] {
    return requests_.size() >= num_requests &&
           std::none_of(generations_.begin(), generations_.end(),
                        [this](const Generation& generation) { return MayStep(generation); });
  });
}

std::vector<engine::GenerationRequest> ScriptedGenerator::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

engine::GenerationRequest ScriptedGenerator::request(std::size_t idx) const {
  return requests().at(idx);
}

std::map<engine::GenerationId, int> ScriptedGenerator::cancels() const {
  const std::lock_guard lock(mutex_);
  return cancels_;
}

std::size_t ScriptedGenerator::num_tokens() const {
  const std::lock_guard lock(mutex_);
  return num_tokens_;
}

Script ScriptedGenerator::TakeScript() {
  if (!scripts_.empty()) {
    last_script_ = std::move(scripts_.front());
    scripts_.pop_front();
  }
  return last_script_;
}

Result<engine::GenerationId> ScriptedGenerator::Submit(
    engine::GenerationRequest request, std::shared_ptr<engine::GenerationListener> listener) {
  std::unique_lock lock(mutex_);
  Script script = TakeScript();
  requests_.push_back(request);
  if (script.refusal) return tl::unexpected<Error>(*script.refusal);
  const engine::GenerationId id = requests_.size();
  const bool wait = script.ends_before_return;
  generations_.push_back({id, std::move(request), std::move(listener), std::move(script)});
  changed_.notify_all();
  if (wait) {
    changed_.wait(lock, [this, id] {
      return std::none_of(generations_.begin(), generations_.end(),
                          [id](const Generation& generation) { return generation.id == id; });
    });
  }
  return id;
}

void ScriptedGenerator::Cancel(engine::GenerationId id) {
  {
    const std::lock_guard lock(mutex_);
    ++cancels_[id];
    for (Generation& generation : generations_) {
      if (generation.id == id) generation.cancelled = true;
    }
  }
  changed_.notify_all();
}

void ScriptedGenerator::SetFailure(Error failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
}

engine::GeneratorStatus ScriptedGenerator::GetStatus() const {
  const std::lock_guard lock(mutex_);
  engine::GeneratorStatus status;
  status.failure = failure_;
  status.max_running = 8;
  status.max_queued = 64;
  status.num_submitted = requests_.size();
  status.num_finished = num_finished_;
  status.generated_tokens = num_tokens_;
  for (const Generation& generation : generations_) {
    engine::GenerationView view;
    view.id = generation.id;
    view.prompt = {generation.request.prompt.size(), generation.script.cached_tokens,
                   generation.num_prompt_done};
    view.generated_tokens = static_cast<std::int64_t>(generation.num_generated);
    status.generations.push_back(view);
  }
  return status;
}

bool ScriptedGenerator::MayStep(const Generation& generation) const {
  return generation.cancelled || !paused_ || generation.num_since_pause < pause_after_;
}

void ScriptedGenerator::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto may_step = [this](const Generation& generation) { return MayStep(generation); };
    changed_.wait(lock, [&] {
      return stop_ || std::any_of(generations_.begin(), generations_.end(), may_step);
    });
    if (stop_) return;
    for (auto generation = generations_.begin(); generation != generations_.end();) {
      if (!MayStep(*generation)) {
        ++generation;
        continue;
      }
      lock.unlock();
      const bool ended = Step(*generation);
      lock.lock();
      ++generation->num_since_pause;
      generation = ended ? generations_.erase(generation) : std::next(generation);
    }
    changed_.notify_all();
  }
}

bool ScriptedGenerator::Step(Generation& generation) {
  if (generation.cancelled) {
    Finish(generation, engine::FinishReason::kCancelled);
    return true;
  }
  if (!StepPrompt(generation)) return false;
  if (generation.num_generated == generation.script.ids.size()) {
    if (generation.script.failure) {
      generation.listener->OnFinish(tl::unexpected<Error>(*generation.script.failure));
      return true;
    }
    if (generation.script.stops_itself) {
      Finish(generation, engine::FinishReason::kCancelled);
      return true;
    }
  }
  const std::int32_t id = NextId(generation);
  const bool go_on = generation.listener->OnToken(Describe(generation, id));
  {
    const std::lock_guard lock(mutex_);
    ++generation.num_generated;
    ++num_tokens_;
  }
  const auto& stop_ids = generation.request.stop_ids;
  if (!go_on || std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end()) {
    Finish(generation, engine::FinishReason::kStop);
    return true;
  }
  const auto num_positions = generation.request.prompt.size() + generation.num_generated;
  if (static_cast<std::int64_t>(generation.num_generated) >= generation.request.max_tokens ||
      static_cast<std::int64_t>(num_positions) >= max_positions_) {
    Finish(generation, engine::FinishReason::kLength);
    return true;
  }
  return false;
}

// True once the whole prompt has run; a chunk of 8 tokens is a step.
bool ScriptedGenerator::StepPrompt(Generation& generation) {
  constexpr std::size_t kChunk = 8;
  const std::size_t total = generation.request.prompt.size();
  if (generation.began && generation.num_prompt_done == total) return true;
  std::size_t done = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!generation.began) {
      generation.began = true;
      generation.num_prompt_done = std::min(generation.script.cached_tokens, total);
    } else {
      generation.num_prompt_done = std::min(generation.num_prompt_done + kChunk, total);
    }
    done = generation.num_prompt_done;
  }
  generation.listener->OnPromptProgress({total, generation.script.cached_tokens, done});
  if (done < total) return false;
  if (generation.request.prompt_logprobs) {
    for (std::size_t i = 0; i < total; ++i) {
      engine::GeneratedToken token = Describe(generation, generation.request.prompt[i]);
      if (i == 0) {
        token.logprob.reset();
        token.top.clear();
      }
      generation.listener->OnPromptToken(token);
    }
  }
  return false;
}

std::int32_t ScriptedGenerator::NextId(const Generation& generation) const {
  const auto& ids = generation.script.ids;
  if (generation.num_generated < ids.size()) return ids[generation.num_generated];
  if (!generation.request.stop_ids.empty()) return generation.request.stop_ids.front();
  return ids.empty() ? 0 : ids[generation.num_generated % ids.size()];
}

void ScriptedGenerator::Finish(Generation& generation, engine::FinishReason reason) {
  engine::GenerationSummary summary;
  summary.finish_reason = reason;
  summary.prompt = {generation.request.prompt.size(), generation.script.cached_tokens,
                    generation.request.prompt.size()};
  summary.generated_tokens = static_cast<std::int64_t>(generation.num_generated);
  summary.queue_seconds = 0.25;
  summary.prompt_seconds = 0.5;
  summary.decode_seconds = 2.0;
  summary.drafting.rounds = 4;
  summary.drafting.drafted = 7;
  summary.drafting.accepted = 3;
  summary.drafting.position_proposed = {4, 3};
  summary.drafting.position_accepted = {2, 1};
  summary.drafting.rounds_by_drafts = {0, 1, 3};
  summary.drafting.last_reason = "drafts pay";
  {
    const std::lock_guard lock(mutex_);
    if (reason != engine::FinishReason::kCancelled) ++num_finished_;
  }
  generation.listener->OnFinish(summary);
}

engine::GeneratedToken ScriptedGenerator::Describe(const Generation& generation,
                                                   std::int32_t id) const {
  engine::GeneratedToken token;
  token.token = id;
  if (!generation.request.num_logprobs) return token;
  token.logprob = -0.5f;
  for (std::int32_t i = 0; i < *generation.request.num_logprobs; ++i) {
    // The last is impossible: clients must see a number all the same.
    const bool impossible = i > 0 && i + 1 == *generation.request.num_logprobs;
    token.top.push_back({i == 0 ? id : i, impossible ? -std::numeric_limits<float>::infinity()
                                                     : -0.5f - static_cast<float>(i)});
  }
  return token;
}

}  // namespace megalith::serve::testing
