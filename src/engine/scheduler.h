#pragma once

// Many sequences in one engine: a thread of its own runs one step after the other, each with the
// next tokens of every answer and slices of the prompts that wait. What a sequence is given never
// depends on the others.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "engine/draft_options.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "engine/generator.h"
#include "engine/prefix_cache.h"
#include "engine/prefix_store.h"

namespace megalith::engine {

struct SchedulerOptions {
  std::size_t max_queued = 256;  ///< requests that wait for a free place; more are refused
  /// Most rows of prompts in a step that also goes on with answers: bounds the pause they see.
  std::int32_t prompt_rows_beside_answers = 64;
  /// Most of the time that prompts may take from running answers, in (0, 1].
  double prompt_share = 0.2;
  std::int32_t max_drafts = 0;           ///< as DraftOptions
  std::optional<std::int32_t> always;    ///< as DraftOptions
  bool drafter = true;                   ///< as DraftOptions
  bool ngram = false;                    ///< MakeNgramProposer proposes
  std::int64_t prefix_cache_bytes = 0;   ///< of snapshots in memory
  std::int32_t snapshot_spacing = 1024;  ///< tokens of a prompt between snapshots
  std::string prefix_store;              ///< folder of snapshots that outlive the process; or empty
  std::int64_t prefix_store_bytes = std::int64_t{16} << 30;  ///< of its files
};

class Scheduler : public Generator {
 public:
  /// Starts the thread. Nobody else may run steps on `engine`, which must outlive the scheduler.
  /// Errors: kUsage for options that make no sense, kUnsupported for a prefix store with an engine
  /// of several ranks, those of PrefixStore::Open.
  static Result<std::unique_ptr<Scheduler>> Start(Engine& engine, const SchedulerOptions& options);
  ~Scheduler() override;

  /// Whatever runs or waits ends with FinishReason::kCancelled; nothing is accepted any more. When
  /// it returns, no listener is called again.
  void Stop();

  std::int64_t max_positions() const override { return engine_.max_positions(); }
  Result<GenerationId> Submit(GenerationRequest request,
                              std::shared_ptr<GenerationListener> listener) override;
  void Cancel(GenerationId id) override;
  GeneratorStatus GetStatus() const override;
  /// GeneratorStatus's, at less cost.
  std::optional<Error> failure() const;

 private:
  struct Waiting {
    GenerationId id = 0;
    GenerationRequest request;
    std::shared_ptr<GenerationListener> listener;
    std::int64_t submitted_ns = 0;
  };
  struct Running;
  /// A run of the step that is being put together.
  struct Part {
    Running* running;
    bool is_prompt;
    Generation::Plan plan;
    std::int64_t first_logits;  ///< among StepInput::logit_rows
  };

  Scheduler(Engine& engine, const SchedulerOptions& options);
  Status OpenStore();

  DraftOptions MakeDrafting() const;
  std::int64_t PagesFor(const GenerationRequest& request) const;

  void Loop();
  /// Under mutex_.
  void NoticeFailure(const Status& status);
  /// False: it is time to end.
  bool WaitForWork();
  void TakeCancelled();
  void Admit();
  std::optional<Waiting> TakeNext();
  void Begin(Waiting waiting);
  void RestorePrefix(Running& running);
  std::shared_ptr<const exec::Snapshot> FindSnapshot(std::span<const std::int32_t> prompt);
  void KeepSnapshots(Running& running);

  void RunStep();
  void PlanStep();
  void PlanAnswers();
  void PlanPrompts();
  std::int32_t PromptRows(bool beside_answers) const;
  void AddPart(Running& running, std::int32_t max_rows);
  Result<exec::StepOutput> Step();
  void TakeStep(const exec::StepOutput& step, double seconds);
  /// Among the parts of the step.
  std::size_t NumPrompts() const;
  Status TakePart(const Part& part, const exec::StepOutput& step, std::size_t index);
  void KeepShare(double seconds);

  void SaveSnapshot(Running& running);
  void Finish(Running& running, const Status& status);
  void Tell(Running& running, const Status& status);
  void RemoveFinished();
  void CancelAll();
  void Publish();

  Engine& engine_;
  const SchedulerOptions options_;

  // Of the thread alone.
  PrefixCache cache_;
  std::unique_ptr<PrefixStore> store_;  // null without a folder
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<std::int32_t> free_slots_;
  std::int64_t reserved_pages_ = 0;  // for running generations at their longest
  std::size_t turn_ = 0;             // whose rows come first in the next step
  std::vector<Part> parts_;
  std::vector<exec::Run> runs_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> logit_rows_;
  std::int64_t num_logit_rows_ = 0;
  /// Time that prompts may still take from answers; below 0: they have taken more.
  double prompt_credit_seconds_ = 0.0;
  double answer_step_seconds_ = 0.0;  // of steps without prompts, lately

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Under mutex_.
  std::deque<Waiting> queue_;
  std::unordered_set<GenerationId> cancelled_;
  GenerationId next_id_ = 1;
  bool stop_ = false;
  GeneratorStatus status_;  // generations: running ones only

  std::thread thread_;
};

}  // namespace megalith::engine
