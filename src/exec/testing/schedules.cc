#include "exec/testing/schedules.h"

#include <algorithm>

namespace megalith::exec::testing {

Result<Answer> FeedInSteps(Executor& executor, std::span<const std::int32_t> tokens) {
  Answer answer;
  std::int32_t at = 0;
  for (const std::int32_t rows : {1, 8, 3, 64}) {
    const auto left = static_cast<std::int32_t>(tokens.size()) - at;
    const std::int32_t count = std::min(rows, left);
    const auto part = tokens.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
    MEGALITH_ASSIGN_OR_RETURN(const LogitRows logits, Feed(executor, 0, part, rows, at));
    answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
    at += count;
  }
  answer.state = ReadState(executor, 0);
  return answer;
}

Result<DraftRounds> RunDraftRounds(Executor& executor) {
  DraftRounds rounds;
  const std::int32_t vocab_size = executor.limits().vocab_size;
  std::vector<std::vector<std::int32_t>> sequences = {RandomTokens(5, vocab_size, 1),
                                                      RandomTokens(11, vocab_size, 2)};
  std::vector<std::vector<std::int32_t>> drafts(2);
  std::vector<std::int32_t> lengths(2, 0);
  for (int round = 0; round < 6; ++round) {
    std::vector<Run> runs;
    std::vector<std::int32_t> rows;
    for (std::int32_t slot = 0; slot < 2; ++slot) {
      const auto index = static_cast<std::size_t>(slot);
      const auto& sequence = sequences[index];
      std::vector<std::int32_t> own(sequence.begin() + lengths[index], sequence.end());
      Run run{slot, lengths[index], static_cast<std::int32_t>(own.size())};
      if (!drafts[index].empty()) {
        run.num_drafts = 2 + round % 5;
        for (std::int32_t i = 0; i < run.num_drafts; ++i) {
          own.push_back(drafts[index][static_cast<std::size_t>(i)]);
        }
        if (round % 3 == 2) own.back() = (own.back() + 1) % vocab_size;
        run.count = static_cast<std::int32_t>(own.size());
      }
      run.wants_token = true;
      run.next_drafts = 7;
      rows.insert(rows.end(), own.begin(), own.end());
      runs.push_back(run);
    }
    MEGALITH_ASSIGN_OR_RETURN(const StepOutput step, executor.Step({runs, rows, {}}));
    std::size_t row = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const RunOutput& output = step.runs()[i];
      lengths[i] += runs[i].count - runs[i].num_drafts + output.num_accepted;
      const auto first_draft = row + static_cast<std::size_t>(runs[i].count - runs[i].num_drafts);
      for (std::int32_t kept = 0; kept < output.num_accepted; ++kept) {
        sequences[i].push_back(rows[first_draft + static_cast<std::size_t>(kept)]);
      }
      sequences[i].push_back(output.tokens[static_cast<std::size_t>(output.num_accepted)]);
      row += static_cast<std::size_t>(runs[i].count);
      drafts[i].assign(output.drafts.begin(), output.drafts.end());
      rounds.tokens.insert(rounds.tokens.end(), output.tokens.begin(), output.tokens.end());
      rounds.tokens.insert(rounds.tokens.end(), drafts[i].begin(), drafts[i].end());
      rounds.confidence.insert(rounds.confidence.end(), output.confidence.begin(),
                               output.confidence.end());
    }
    for (std::int64_t i = 0; i < step.rows(); ++i) {
      rounds.logits.emplace_back(step.Row(i).begin(), step.Row(i).end());
    }
  }
  return rounds;
}

}  // namespace megalith::exec::testing
