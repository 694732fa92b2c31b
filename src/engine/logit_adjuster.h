#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "engine/generator.h"
#include "kernels/sampling.h"

namespace megalith::engine {

/// kUsage, kOutOfRange naming the field: penalties must be finite, the repetition penalty above 0,
/// a bias finite or -infinity, for tokens of the vocabulary, each once.
Status CheckLogitChanges(const LogitChanges& changes, std::int64_t vocab_size);

/// What a request's penalties, biases and constraint make of the logits of each row that a token is
/// chosen from. Follows one sequence.
class LogitAdjuster {
 public:
  /// `changes` have been checked.
  LogitAdjuster(const LogitChanges& changes, std::shared_ptr<TokenConstraint> constraint,
                std::span<const std::int32_t> prompt, std::int64_t vocab_size);

  /// For the row of the newest token and of each draft after it; empty if nothing changes. Drafts
  /// that cannot come are not looked at: num_drafts() tells how many were. Valid until the next
  /// call.
  std::span<const kernels::LogitAdjustment> Prepare(std::span<const std::int32_t> drafts);
  /// Of the last Prepare: drafts that may be verified.
  std::size_t num_drafts() const { return num_drafts_; }

  /// The token was chosen. kInternal if the constraint forbids it.
  Status Accept(std::int32_t token);

 private:
  bool HasPenalties() const;
  void Count(std::int32_t token, std::int32_t times);
  kernels::LogitChange& ChangeOf(std::int32_t token);
  bool AddRow(std::size_t index);

  struct Row {
    std::vector<kernels::LogitChange> changes;
    std::vector<std::uint64_t> allowed;
  };

  LogitChanges changes_;
  std::shared_ptr<TokenConstraint> constraint_;
  std::size_t mask_words_;
  std::vector<kernels::LogitChange> current_;             // after the newest token
  std::unordered_map<std::int32_t, std::size_t> places_;  // token -> index into current_
  std::unordered_map<std::int32_t, std::int32_t> generated_;
  std::unordered_map<std::int32_t, float> bias_;
  std::unordered_set<std::int32_t> in_prompt_;  // only with a repetition penalty
  std::vector<Row> rows_;                       // reused
  std::vector<kernels::LogitAdjustment> adjustments_;
  std::size_t num_drafts_ = 0;
};

}  // namespace megalith::engine
