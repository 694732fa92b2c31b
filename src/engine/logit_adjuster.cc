#include "engine/logit_adjuster.h"

#include <cmath>
#include <unordered_set>

#include "base/align.h"

namespace megalith::engine {

Status CheckLogitChanges(const LogitChanges& changes, std::int64_t vocab_size) {
  const auto refuse = [](const char* field, const char* expected, float found) {
    return Fail(ErrorCode::kUsage, "{}: {} expected, {} given", field, expected, found);
  };
  if (!std::isfinite(changes.presence_penalty)) {
    return refuse("presence_penalty", "a finite number", changes.presence_penalty);
  }
  if (!std::isfinite(changes.frequency_penalty)) {
    return refuse("frequency_penalty", "a finite number", changes.frequency_penalty);
  }
  if (!(changes.repetition_penalty > 0.0f && std::isfinite(changes.repetition_penalty))) {
    return refuse("repetition_penalty", "a finite number above 0", changes.repetition_penalty);
  }
  std::unordered_set<std::int32_t> seen;
  for (const auto& [token, bias] : changes.bias) {
    if (token < 0 || token >= vocab_size) {
      return Fail(ErrorCode::kOutOfRange, "logit_bias: token {} is outside the vocabulary of {}",
                  token, vocab_size);
    }
    if (!seen.insert(token).second) {
      return Fail(ErrorCode::kUsage, "logit_bias: token {} stands twice", token);
    }
    if (std::isnan(bias) || bias == HUGE_VALF) {
      return refuse("logit_bias", "a finite number or -infinity", bias);
    }
  }
  return {};
}

LogitAdjuster::LogitAdjuster(const LogitChanges& changes,
                             std::shared_ptr<TokenConstraint> constraint,
                             std::span<const std::int32_t> prompt, std::int64_t vocab_size)
    : changes_(changes),
      constraint_(std::move(constraint)),
      mask_words_(static_cast<std::size_t>(CeilDiv(vocab_size, std::int64_t{64}))),
      bias_(changes.bias.begin(), changes.bias.end()) {
  for (const auto& [token, bias] : changes.bias) ChangeOf(token).addend = bias;
  if (changes.repetition_penalty == 1.0f) return;
  in_prompt_.insert(prompt.begin(), prompt.end());
  for (const std::int32_t token : in_prompt_) ChangeOf(token).divisor = changes.repetition_penalty;
}

bool LogitAdjuster::HasPenalties() const {
  return changes_.presence_penalty != 0.0f || changes_.frequency_penalty != 0.0f ||
         changes_.repetition_penalty != 1.0f;
}

kernels::LogitChange& LogitAdjuster::ChangeOf(std::int32_t token) {
  const auto [place, is_new] = places_.try_emplace(token, current_.size());
  if (is_new) current_.push_back({token});
  return current_[place->second];
}

/// The token was generated `times` more; -1 takes it back. Computed from the count, so that taking
/// back leaves no rounding behind.
void LogitAdjuster::Count(std::int32_t token, std::int32_t times) {
  if (!HasPenalties()) return;
  const std::int32_t count = generated_[token] += times;
  kernels::LogitChange& change = ChangeOf(token);
  const auto bias = bias_.find(token);
  const bool was_seen = count > 0 || in_prompt_.contains(token);
  change.divisor = was_seen ? changes_.repetition_penalty : 1.0f;
  change.addend = bias == bias_.end() ? 0.0f : bias->second;
  if (count > 0) {
    change.addend -=
        changes_.presence_penalty + changes_.frequency_penalty * static_cast<float>(count);
  }
}

/// Whether it changes anything.
bool LogitAdjuster::AddRow(std::size_t index) {
  if (rows_.size() <= index) rows_.resize(index + 1);
  Row& row = rows_[index];
  row.changes = current_;
  row.allowed.clear();
  if (constraint_ != nullptr) {
    row.allowed.assign(mask_words_, ~std::uint64_t{0});
    if (!constraint_->Restrict(row.allowed)) row.allowed.clear();
  }
  return !row.changes.empty() || !row.allowed.empty();
}

std::span<const kernels::LogitAdjustment> LogitAdjuster::Prepare(
    std::span<const std::int32_t> drafts) {
  num_drafts_ = drafts.size();
  if (constraint_ == nullptr && current_.empty() && !HasPenalties()) return {};
  bool changes_any = AddRow(0);
  num_drafts_ = 0;
  for (const std::int32_t draft : drafts) {
    if (constraint_ != nullptr && !constraint_->Push(draft)) break;
    Count(draft, 1);
    changes_any |= AddRow(++num_drafts_);
  }
  if (constraint_ != nullptr) constraint_->Pop(num_drafts_);
  for (std::size_t i = num_drafts_; i > 0; --i) Count(drafts[i - 1], -1);
  if (!changes_any) return {};
  adjustments_.clear();
  for (std::size_t i = 0; i <= num_drafts_; ++i) {
    adjustments_.push_back({rows_[i].changes, rows_[i].allowed});
  }
  return adjustments_;
}

Status LogitAdjuster::Accept(std::int32_t token) {
  Count(token, 1);
  if (constraint_ == nullptr) return {};
  if (!constraint_->Push(token)) {
    return Fail(ErrorCode::kInternal, "token {} was chosen, but its constraint forbids it", token);
  }
  constraint_->Commit();
  return {};
}

}  // namespace megalith::engine
