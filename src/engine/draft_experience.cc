#include "engine/draft_experience.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace megalith::engine {
namespace {

/// Powers of two that a number of sequences is rounded up to; more are like the last.
constexpr std::size_t kNumBatches = 12;
/// Plain steps are measured so many times sooner as long as it is not known what drafting costs as
/// it is done now, and so many times later where the speed-up is clear, and where it is safe and
/// the costs well known.
constexpr std::int32_t kUnknownHaste = 4;
constexpr std::int32_t kClearPatience = 4;
constexpr double kClearSpeedup = 1.5;
constexpr std::int32_t kKnownPatience = 8;
constexpr double kSafeSpeedup = 1.1;
constexpr std::int32_t kPlainSteps = static_cast<std::int32_t>(StepCosts::kPlainSteps);
constexpr std::int32_t kFirstPlainInterval = 16;
constexpr std::int32_t kLongestPlainInterval = 128;

std::int32_t Average(std::int32_t sum, std::int32_t count) {
  return count == 0 ? 0 : static_cast<std::int32_t>(std::lround(1.0 * sum / count));
}

double Share(std::int32_t count, std::int32_t all) { return count == 0 ? 1.0 : 1.0 * count / all; }

}  // namespace

DraftExperience::Batch::Batch(std::int32_t max_drafts)
    : costs(max_drafts), plain_interval(kFirstPlainInterval) {}

DraftExperience::DraftExperience(std::int32_t max_drafts)
    : drafter(max_drafts),
      text(max_drafts),
      batches_(kNumBatches, Batch(max_drafts)),
      batch_(&batches_.front()) {}

void DraftExperience::BeginStep(std::int32_t num_sequences) {
  MEGALITH_CHECK(num_sequences >= 0);
  counts_ = {};
  if (num_sequences != num_sequences_) {
    // Their plain steps take another time.
    for (Batch& batch : batches_) batch.waiting = {};
    num_sequences_ = num_sequences;
  }
  const auto at_most = static_cast<std::uint32_t>(std::max(num_sequences, 1) - 1);
  const std::size_t index = std::min<std::size_t>(std::bit_width(at_most), kNumBatches - 1);
  batch_ = &batches_[index];
  if (batch_->begun) return;
  batch_->begun = true;
  // What is known of fewer sequences is the best guess.
  for (std::size_t i = index; i > 0; --i) batch_->costs.GuessLike(batches_[i - 1].costs);
}

void DraftExperience::MeasureSoon() { batch_->plain_steps_left = kPlainSteps; }

void DraftExperience::Count(std::int32_t num_drafts, std::int32_t num_accepted,
                            std::int32_t num_requested) {
  ++counts_.sequences;
  counts_.verifying += num_drafts > 0 ? 1 : 0;
  counts_.requesting += num_requested > 0 ? 1 : 0;
  counts_.drafts += num_drafts;
  counts_.accepted += num_accepted;
  counts_.requested += num_requested;
}

StepCosts::Kind DraftExperience::KindOfStep() const {
  return {.num_drafts = Average(counts_.drafts, counts_.verifying),
          .num_requested = Average(counts_.requested, counts_.requesting),
          .verifying = Share(counts_.verifying, counts_.sequences),
          .requesting = Share(counts_.requesting, counts_.sequences)};
}

void DraftExperience::EndStep(double seconds) {
  if (counts_.sequences == 0) return;
  const StepCosts::Kind kind = KindOfStep();
  batch_->costs.Record(kind, seconds, &batch_->waiting);

  const double rows = kind.verifying * (costs().Rows(kind.num_drafts) - 1.0);
  const double drafting = kind.requesting * costs().Drafting(kind.num_requested);
  const double tokens = 1.0 + 1.0 * counts_.accepted / counts_.sequences;
  batch_->speedup.Add(tokens, 1.0 + rows + drafting);

  if (batch_->waiting.steps.empty()) {  // all that can be compared has been
    batch_->steps_since_plain = 0;
    batch_->plain_steps_left = 0;
  } else if (kind.plain()) {
    batch_->plain_steps_left = std::max(batch_->plain_steps_left - 1, 0);
  } else {
    ++batch_->steps_since_plain;
    if (!IsTimeToMeasure(kind)) return;
    batch_->plain_steps_left = kPlainSteps;
    batch_->plain_interval = std::min(2 * batch_->plain_interval, kLongestPlainInterval);
    batch_->steps_since_plain = 0;
  }
}

bool DraftExperience::IsTimeToMeasure(const StepCosts::Kind& kind) const {
  const double speedup = batch_->speedup.value();
  std::int32_t interval = batch_->plain_interval;
  if (!costs().Knows(kind.num_drafts, kind.num_requested)) {
    interval /= kUnknownHaste;
  } else if (speedup > kClearSpeedup) {
    interval *= kClearPatience;
  }
  if (costs().KnowsWell(kind.num_drafts, kind.num_requested) && speedup > kSafeSpeedup) {
    interval *= kKnownPatience;
  }
  return batch_->steps_since_plain >= interval;
}

}  // namespace megalith::engine
