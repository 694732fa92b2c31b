#include "bench/draft_rates.h"

#include <algorithm>
#include <utility>

#include "engine/draft_report.h"
#include "engine/sequence.h"

namespace megalith::bench {
namespace {

Result<engine::GenerateResult> Continue(engine::Sequence& sequence,
                                        std::span<const std::int32_t> prompt,
                                        const engine::GenerateOptions& options) {
  MEGALITH_ASSIGN_OR_RETURN(engine::GenerateResult result,
                            engine::Generate(sequence, prompt, options, {}));
  MEGALITH_RETURN_IF_ERROR(CheckCancelled(options.cancel, "decode"));
  return result;
}

}  // namespace

Result<std::vector<std::int32_t>> PlainContinuation(engine::Engine& engine,
                                                    std::span<const std::int32_t> prompt,
                                                    std::int64_t count,
                                                    const kernels::SamplingOptions& sampling,
                                                    const CancelFlag* cancel) {
  engine::Sequence sequence(engine, 0);
  engine::GenerateOptions generate;
  generate.max_tokens = count;
  generate.sampling = sampling;
  generate.cancel = cancel;
  MEGALITH_ASSIGN_OR_RETURN(engine::GenerateResult result, Continue(sequence, prompt, generate));
  if (std::cmp_less(result.ids.size(), count)) {
    return Fail(ErrorCode::kOutOfRange,
                "{} tokens after a prompt of {}: the context of {} holds {} of them", count,
                prompt.size(), engine.max_positions(), result.ids.size());
  }
  return std::move(result.ids);
}

Status CheckSameIds(const std::string& name, std::span<const std::int32_t> expected,
                    std::span<const std::int32_t> found) {
  const auto [want, have] =
      std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
  if (want == expected.end() && have == found.end()) return {};
  const auto place = [](auto at, auto end) {
    return at == end ? std::string("none") : std::to_string(*at);
  };
  return Fail(ErrorCode::kInternal, "{}: token {} is {}, plain decoding chose {}", name,
              want - expected.begin(), place(have, found.end()), place(want, expected.end()));
}

Result<std::vector<DraftRate>> MeasureDraftRates(engine::Engine& engine,
                                                 const std::vector<DraftRateCase>& cases,
                                                 const DraftRateOptions& options) {
  if (options.expected.size() < 2) {
    return Fail(ErrorCode::kUsage, "tokens: at least 2 expected, {} given",
                options.expected.size());
  }
  std::vector<DraftRate> results(cases.size());
  std::vector<Contestant> contestants;
  engine::Sequence sequence(engine, 0);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto turn = [&, i]() -> Result<Work> {
      engine::GenerateOptions generate;
      generate.max_tokens = static_cast<std::int64_t>(options.expected.size());
      generate.sampling = options.sampling;
      generate.drafting = cases[i].drafting;
      generate.cancel = options.cancel;
      MEGALITH_RETURN_IF_ERROR(sequence.Reset());
      MEGALITH_ASSIGN_OR_RETURN(const engine::GenerateResult result,
                                Continue(sequence, options.prompt, generate));
      MEGALITH_RETURN_IF_ERROR(CheckSameIds(cases[i].name, options.expected, result.ids));
      engine::AddTo(&results[i].drafting, result.drafting);
      Work work;
      work.seconds = result.decode_seconds;
      work.items = static_cast<double>(result.ids.size() - 1);
      work.amount = work.items * static_cast<double>(engine.plain_step_bytes());
      return work;
    };
    contestants.push_back({turn, options.yardstick});
  }
  RoundsOptions rounds;
  rounds.num_rounds = options.repeats;
  rounds.max_rounds = 3 * options.repeats;
  rounds.stage = "rates";
  rounds.progress = options.progress;
  rounds.cancel = options.cancel;
  MEGALITH_ASSIGN_OR_RETURN(std::vector<Series> series, RunRounds(contestants, rounds));
  for (std::size_t i = 0; i < results.size(); ++i) results[i].series = std::move(series[i]);
  return results;
}

}  // namespace megalith::bench
