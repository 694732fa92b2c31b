#pragma once

// A model that says what the test wants: plays given ids per request on its own thread.

#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/generator.h"

namespace megalith::serve::testing {

/// What the model does for one request.
struct Script {
  std::vector<std::int32_t> ids;  ///< then stop ids, or this list anew if there are none
  std::size_t cached_tokens = 0;  ///< of the prompt
  /// Ends the generation behind `ids` in this way.
  std::optional<Error> failure;
  bool stops_itself = false;        ///< FinishReason::kCancelled behind `ids`, as at a shutdown
  std::optional<Error> refusal;     ///< Submit's answer
  bool ends_before_return = false;  ///< everything is said before Submit returns
};

class ScriptedGenerator : public engine::Generator {
 public:
  explicit ScriptedGenerator(std::int64_t max_positions = 4096);
  ~ScriptedGenerator() override;

  /// For the next requests, in order. Without any: the last one again.
  void Play(std::vector<Script> scripts);
  void Play(std::vector<std::int32_t> ids) { Play(std::vector<Script>{{std::move(ids)}}); }

  /// Nothing but cancelling happens until Resume. `after_tokens`: of each generation, so many more.
  void Pause(std::size_t after_tokens = 0);
  void Resume();
  /// GeneratorStatus's.
  void SetFailure(Error failure);
  /// Until every generation has ended.
  void WaitIdle();
  /// Until this many requests were submitted, and as much was said as Pause allows.
  void WaitPaused(std::size_t num_requests);

  std::vector<engine::GenerationRequest> requests() const;
  engine::GenerationRequest request(std::size_t idx) const;
  /// How often Cancel was called, by id (1 is the first request).
  std::map<engine::GenerationId, int> cancels() const;
  /// Tokens that listeners took.
  std::size_t num_tokens() const;

  std::int64_t max_positions() const override { return max_positions_; }
  Result<engine::GenerationId> Submit(
      engine::GenerationRequest request,
      std::shared_ptr<engine::GenerationListener> listener) override;
  void Cancel(engine::GenerationId id) override;
  engine::GeneratorStatus GetStatus() const override;

 private:
  struct Generation {
    engine::GenerationId id = 0;
    engine::GenerationRequest request;
    std::shared_ptr<engine::GenerationListener> listener;
    Script script;
    std::size_t num_prompt_done = 0;
    std::size_t num_generated = 0;
    std::size_t num_since_pause = 0;
    bool began = false;
    bool cancelled = false;
  };

  void Run();
  // One step of a generation; true if it has ended. Called without the lock.
  bool Step(Generation& generation);
  bool StepPrompt(Generation& generation);
  std::int32_t NextId(const Generation& generation) const;
  void Finish(Generation& generation, engine::FinishReason reason);
  engine::GeneratedToken Describe(const Generation& generation, std::int32_t id) const;
  Script TakeScript();
  bool MayStep(const Generation& generation) const;

  const std::int64_t max_positions_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Script> scripts_;
  Script last_script_;
  std::list<Generation> generations_;
  std::vector<engine::GenerationRequest> requests_;
  std::map<engine::GenerationId, int> cancels_;
  std::size_t num_tokens_ = 0;
  std::uint64_t num_finished_ = 0;
  std::optional<Error> failure_;
  bool paused_ = false;
  std::size_t pause_after_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megalith::serve::testing
