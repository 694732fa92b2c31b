#include "program/compile/layout_choice.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "program/compile/partition.h"
#include "program/exchange.h"

namespace megalith::program {
namespace {

/// The sum of 1 - P(largest <= m) over m = 0, 1, ...: the expectation of the largest.
template <typename AtMost>
double ExpectedLargest(std::int64_t most, AtMost at_most) {
  double expected = 0.0;
  for (std::int64_t m = 0; m < most; ++m) expected += 1.0 - at_most(m);
  return expected;
}

/// log of n over k.
double LogChoose(std::int64_t n, std::int64_t k) {
  const auto log_factorial = [](std::int64_t x) {
    int sign = 0;  // std::lgamma has one for all threads
    return ::lgamma_r(static_cast<double>(x) + 1, &sign);
  };
  return log_factorial(n) - log_factorial(k) - log_factorial(n - k);
}

/// P(no group has more than `most` of the top_k experts that one row chooses): of all choices those
/// with at most so many in each group, counted group by group.
double OneRowAtMost(const std::vector<Range>& groups, std::int64_t top_k, std::int64_t most) {
  std::int64_t experts = 0;
  // ways[k]: choices of k experts in the groups so far, as a share of all choices of k among them.
  std::vector<double> share(static_cast<std::size_t>(top_k) + 1, 0.0);
  share[0] = 1.0;
  for (const Range& group : groups) {
    const std::int64_t before = experts;
    experts += group.size();
    std::vector<double> next(share.size(), 0.0);
    for (std::int64_t k = 0; k <= std::min(top_k, experts); ++k) {
      for (std::int64_t own = 0; own <= std::min({most, k, group.size()}); ++own) {
        if (k - own > before) continue;
        next[static_cast<std::size_t>(k)] +=
            share[static_cast<std::size_t>(k - own)] *
            std::exp(LogChoose(before, k - own) + LogChoose(group.size(), own) -
                     LogChoose(experts, k));
      }
    }
    share = std::move(next);
  }
  return share.back();
}

/// P(a binomial of `n` with chance p is at most m).
double BinomialAtMost(std::int64_t n, double p, std::int64_t m) {
  if (p >= 1.0) return m >= n ? 1.0 : 0.0;
  double sum = 0.0;
  for (std::int64_t k = 0; k <= std::min(m, n); ++k) {
    sum += std::exp(LogChoose(n, k) + static_cast<double>(k) * std::log(p) +
                    static_cast<double>(n - k) * std::log1p(-p));
  }
  return std::min(sum, 1.0);
}

/// What one expert's tiles of the opcode hold.
struct ExpertBytes {
  double rank = 0.0;
  double fullest_worker = 0.0;
};

ExpertBytes BytesOfExpert(const Segment& segment, Opcode opcode) {
  ExpertBytes bytes;
  for (const Stream& stream : segment.streams) {
    double worker = 0.0;
    for (const Instruction& instruction : stream.instructions) {
      if (instruction.opcode != opcode) continue;
      worker += static_cast<double>(stream.tiles[instruction.tile].source_bytes);
    }
    bytes.rank += worker;
    bytes.fullest_worker = std::max(bytes.fullest_worker, worker);
  }
  return bytes;
}

LayoutEstimate Estimate(const Program& program, const model::Model& model, RankLayout layout,
                        const RankMachine& machine) {
  LayoutEstimate estimate;
  estimate.layout = layout;
  const model::MoeConfig& moe = model.moe;
  const std::int64_t rows = program.max_rows;
  double experts = 0.0;
  if (moe.num_experts > 0) {
    experts = ExpectedExperts(moe.num_experts, moe.num_experts_per_token, rows);
    estimate.expert_imbalance = ExpectedFullestGroup(moe.num_experts, layout.expert_parallel,
                                                     moe.num_experts_per_token, rows) /
                                (experts / layout.expert_parallel);
  }
  // Dense matrices are level over the workers. Of the experts every worker has the same panels of
  // all, so thin slices leave some without work.
  const double all_workers = program.num_workers * machine.worker_bytes_per_second;
  const double fullest_group = experts / layout.expert_parallel * estimate.expert_imbalance;
  const auto dense = static_cast<double>(CountStepBytes(program, rows, 0).Source());
  estimate.weight_bytes = dense;
  estimate.weight_seconds = dense / std::min(machine.read_bytes_per_second, all_workers);
  for (const Visit& visit : program.visits) {
    for (const Opcode opcode : {Opcode::kExpertGateUp, Opcode::kExpertDown}) {
      const ExpertBytes bytes = BytesOfExpert(program.segments[visit.segment], opcode);
      estimate.weight_bytes += bytes.rank * fullest_group;
      estimate.weight_seconds +=
          fullest_group * std::max(bytes.rank / machine.read_bytes_per_second,
                                   bytes.fullest_worker / machine.worker_bytes_per_second);
    }
  }
  estimate.exchanges = CountExchanges(program);
  estimate.received_bytes = CountReceivedBytes(program, rows);
  estimate.exchange_seconds =
      static_cast<double>(estimate.exchanges) * machine.exchange_seconds +
      static_cast<double>(estimate.received_bytes) / machine.exchange_bytes_per_second;
  return estimate;
}

}  // namespace

double ExpectedExperts(std::int64_t num_experts, std::int64_t top_k, std::int64_t rows) {
  const auto experts = static_cast<double>(num_experts);
  const double missed =
      std::pow(1.0 - static_cast<double>(top_k) / experts, static_cast<double>(rows));
  return experts * (1.0 - missed);
}

double ExpectedFullestGroup(std::int64_t num_experts, std::int32_t groups, std::int64_t top_k,
                            std::int64_t rows) {
  const std::vector<Range> ranges = SplitEvenly(num_experts, groups);
  if (rows == 1) {
    return ExpectedLargest(top_k, [&](std::int64_t m) { return OneRowAtMost(ranges, top_k, m); });
  }
  const double chosen =
      ExpectedExperts(num_experts, top_k, rows) / static_cast<double>(num_experts);
  return ExpectedLargest(ranges.back().size(), [&](std::int64_t m) {
    double all = 1.0;
    for (const Range& range : ranges) all *= BinomialAtMost(range.size(), chosen, m);
    return all;
  });
}

Result<std::vector<LayoutEstimate>> ChooseLayout(const model::Model& model,
                                                 const CompileOptions& options,
                                                 const LayoutRequest& request,
                                                 const RankMachine& machine) {
  RankLayout wanted{std::max(request.tensor_parallel, 1), std::max(request.expert_parallel, 1)};
  const bool is_given = request.tensor_parallel > 0 || request.expert_parallel > 0;
  if (is_given && request.num_ranks > 0) {
    // The one that is not given follows from the number of ranks.
    if (request.tensor_parallel == 0) {
      wanted.tensor_parallel = std::max(request.num_ranks / wanted.expert_parallel, 1);
    }
    if (request.expert_parallel == 0) {
      wanted.expert_parallel = std::max(request.num_ranks / wanted.tensor_parallel, 1);
    }
    if (wanted.NumRanks() != request.num_ranks) {
      const auto asked = [](std::int32_t value) {
        return value == 0 ? std::string("any") : fmt::format("{}", value);
      };
      return Fail(ErrorCode::kUsage, "ranks: {} cannot be tensor parallel {} x expert parallel {}",
                  request.num_ranks, asked(request.tensor_parallel),
                  asked(request.expert_parallel));
    }
  }
  if (is_given) MEGALITH_RETURN_IF_ERROR(CheckRankLayout(model, wanted));
  const std::int32_t num_ranks = is_given ? wanted.NumRanks() : request.num_ranks;
  MEGALITH_ASSIGN_OR_RETURN(std::vector<LayoutEstimate> layouts,
                            EstimateLayouts(model, options, num_ranks, machine));
  if (is_given) {
    const auto found =
        std::find_if(layouts.begin(), layouts.end(), [&wanted](const LayoutEstimate& estimate) {
          return estimate.layout.tensor_parallel == wanted.tensor_parallel;
        });
    std::rotate(layouts.begin(), found, found + 1);
  }
  return layouts;
}

Result<std::vector<LayoutEstimate>> EstimateLayouts(const model::Model& model,
                                                    const CompileOptions& options,
                                                    std::int32_t num_ranks,
                                                    const RankMachine& machine) {
  std::vector<LayoutEstimate> estimates;
  for (std::int32_t tensor = num_ranks; tensor >= 1; --tensor) {
    if (num_ranks % tensor != 0) continue;
    CompileOptions own = options;
    own.ranks = {tensor, num_ranks / tensor};
    if (!CheckRankLayout(model, own.ranks)) continue;
    // What does not divide evenly goes to later ranks, so the fullest is the first or the last.
    std::optional<LayoutEstimate> fullest;
    for (const std::int32_t rank : {0, num_ranks - 1}) {
      own.rank = rank;
      MEGALITH_ASSIGN_OR_RETURN(const Program program, Compile(model, own));
      const LayoutEstimate estimate = Estimate(program, model, own.ranks, machine);
      if (!fullest || estimate.Seconds() > fullest->Seconds()) fullest = estimate;
    }
    estimates.push_back(*fullest);
  }
  if (estimates.empty()) {
    const Status refused = CheckRankLayout(model, {num_ranks, 1});
    return tl::unexpected<Error>(refused.error());
  }
  std::stable_sort(
      estimates.begin(), estimates.end(),
      [](const LayoutEstimate& a, const LayoutEstimate& b) { return a.Seconds() < b.Seconds(); });
  return estimates;
}

}  // namespace megalith::program
