#include "engine/sequence.h"

#include <algorithm>

namespace megalith::engine {

Sequence::~Sequence() { static_cast<void>(Reset()); }

Status Sequence::Reset() {
  tokens_.clear();
  return engine_.executor().ReleaseSlot(slot_);
}

Result<std::size_t> Sequence::Rewind(std::span<const std::int32_t> prompt) {
  const bool extends =
      prompt.size() > tokens_.size() && std::equal(tokens_.begin(), tokens_.end(), prompt.begin());
  if (!extends) MEGALITH_RETURN_IF_ERROR(Reset());
  return prompt.size() - tokens_.size();
}

Result<std::span<const float>> Sequence::Append(std::span<const std::int32_t> tokens,
                                                const CancelFlag* cancel,
                                                const StepCallback& on_step) {
  if (tokens.empty()) return Fail(ErrorCode::kUsage, "prompt: at least one token expected");
  if (static_cast<std::int64_t>(tokens.size()) > room()) {
    return Fail(ErrorCode::kOutOfRange, "prompt: {} tokens do not fit a context of {}",
                tokens_.size() + tokens.size(), engine_.max_positions());
  }
  const auto vocab_size = engine_.model().vocab_size;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return Fail(ErrorCode::kOutOfRange,
                  "token {} of the prompt: an id below {} expected, {} found", i, vocab_size,
                  tokens[i]);
    }
  }
  std::span<const float> last_logits;
  for (std::size_t done = 0; done < tokens.size();) {
    if (auto running = CheckCancelled(cancel, "prompt"); !running) {
      MEGALITH_RETURN_IF_ERROR(Reset());
      return tl::unexpected(running.error());
    }
    const std::size_t count =
        std::min(tokens.size() - done, static_cast<std::size_t>(engine_.rows_per_step()));
    const exec::Run run{slot_, static_cast<std::int32_t>(tokens_.size()),
                        static_cast<std::int32_t>(count)};
    const auto last_row = static_cast<std::int32_t>(count - 1);
    const bool is_last = done + count == tokens.size();
    const std::span<const std::int32_t> logit_rows(&last_row, is_last ? 1 : 0);
    auto logits = engine_.executor().Step({{&run, 1}, tokens.subspan(done, count), logit_rows});
    if (!logits) {
      MEGALITH_RETURN_IF_ERROR(Reset());
      return tl::unexpected(std::move(logits).error());
    }
    tokens_.insert(tokens_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(done),
                   tokens.begin() + static_cast<std::ptrdiff_t>(done + count));
    done += count;
    if (is_last) last_logits = logits->Row(0);
    if (on_step) on_step(done, tokens.size());
  }
  return last_logits;
}

}  // namespace megalith::engine
