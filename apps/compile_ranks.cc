#include "compile_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "console.h"
#include "program/exchange.h"
#include "program/verifier.h"

namespace megalith::apps {
namespace {

using program::LayoutEstimate;
using program::Program;
using program::RankLayout;

/// Calls function(rank) for all ranks on as many threads as there are cores; the first error.
template <typename Function>
Status ForEachRank(std::int32_t num_ranks, Function function) {
  std::vector<Status> results(static_cast<std::size_t>(num_ranks));
  std::atomic<std::int32_t> next{0};
  const auto work = [&] {
    for (std::int32_t rank = next++; rank < num_ranks; rank = next++) {
      results[static_cast<std::size_t>(rank)] = function(rank);
    }
  };
  std::vector<std::thread> threads;
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  for (unsigned i = 1; i < std::min(cores, static_cast<unsigned>(num_ranks)); ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) thread.join();
  for (Status& result : results) MEGALITH_RETURN_IF_ERROR(std::move(result));
  return {};
}

struct Job {
  std::vector<program::VerifiedProgram> programs;  // by rank
  double seconds = 0.0;                            // for compiling and proving all of them
};

Result<Job> CompileAll(const model::Model& model, const program::CompileOptions& compile,
                       RankLayout layout) {
  const std::int64_t start = NowNs();
  std::vector<std::optional<program::VerifiedProgram>> programs(
      static_cast<std::size_t>(layout.NumRanks()));
  MEGALITH_RETURN_IF_ERROR(ForEachRank(layout.NumRanks(), [&](std::int32_t rank) -> Status {
    program::CompileOptions own = compile;
    own.ranks = layout;
    own.rank = rank;
    MEGALITH_ASSIGN_OR_RETURN(Program program, program::Compile(model, own));
    MEGALITH_ASSIGN_OR_RETURN(programs[static_cast<std::size_t>(rank)],
                              program::Verify(std::move(program)));
    return {};
  }));
  Job job;
  std::vector<const Program*> pointers;
  for (auto& program : programs) {
    pointers.push_back(&**program);
    job.programs.push_back(*std::move(program));
  }
  MEGALITH_RETURN_IF_ERROR(program::ProveRanks(pointers));
  job.seconds = SecondsSince(start);
  return job;
}

/// Exchanges of a visit of each segment, and how many visits it has, in the order of the step.
struct SegmentExchanges {
  std::string name;
  std::int64_t visits = 0;
  std::int64_t exchanges = 0;
};

std::vector<SegmentExchanges> CountBySegment(const Program& program) {
  std::vector<SegmentExchanges> counts;
  for (const program::Segment& segment : program.segments) {
    SegmentExchanges& count = counts.emplace_back();
    count.name = segment.name;
    for (std::size_t i = 0; i < program.mailboxes.size(); ++i) {
      count.exchanges += program::CountExchanges(segment, static_cast<std::int64_t>(i));
    }
  }
  for (const program::Visit& visit : program.visits) ++counts[visit.segment].visits;
  return counts;
}

/// What the ranks read in a step, on average over the experts' choices.
struct ReadBytes {
  std::int64_t least = 0;
  std::int64_t most = 0;
  double mean = 0.0;
  double ideal = 0.0;  ///< the bytes of one rank alone over the number of ranks
};

Result<ReadBytes> CountReads(const model::Model& model, const program::CompileOptions& compile,
                             const Job& job) {
  const std::int64_t rows = compile.max_rows;
  std::int64_t experts = 0;
  if (model.moe.num_experts > 0) {
    experts = std::llround(
        program::ExpectedExperts(model.moe.num_experts, model.moe.num_experts_per_token, rows));
  }
  ReadBytes reads;
  for (const program::VerifiedProgram& program : job.programs) {
    const std::int64_t bytes = program::CountStepBytes(*program, rows, experts).Source();
    reads.least = reads.most == 0 ? bytes : std::min(reads.least, bytes);
    reads.most = std::max(reads.most, bytes);
    reads.mean += static_cast<double>(bytes) / static_cast<double>(job.programs.size());
  }
  program::CompileOptions alone = compile;
  alone.ranks = {};
  alone.rank = 0;
  MEGALITH_ASSIGN_OR_RETURN(const Program whole, program::Compile(model, alone));
  reads.ideal = static_cast<double>(program::CountStepBytes(whole, rows, experts).Source()) /
                static_cast<double>(job.programs.size());
  return reads;
}

std::int64_t MostPackedBytes(const Job& job) {
  std::int64_t most = 0;
  for (const program::VerifiedProgram& program : job.programs) {
    std::int64_t bytes = program->vector_arena_bytes;
    for (const std::int64_t worker : program->weight_arena_bytes) bytes += worker;
    most = std::max(most, bytes);
  }
  return most;
}

std::string Name(RankLayout layout) {
  return fmt::format("{} x {}", layout.tensor_parallel, layout.expert_parallel);
}

void PrintText(const Job& job, const std::vector<LayoutEstimate>& layouts,
               const program::RankMachine& machine, const ReadBytes& reads, std::int64_t rows) {
  const Program& first = *job.programs.front();
  const RankLayout layout = layouts.front().layout;
  Put("{} ranks of {} workers: tensor parallel {} x expert parallel {}\n", layout.NumRanks(),
      first.num_workers, layout.tensor_parallel, layout.expert_parallel);
  Put("  estimate of a step with {} rows, if a rank reads {:.4g} GB/s, a worker at most {:.3g}, an "
      "exchange takes {:.3g} us and {:.3g} GB/s arrive:\n",
      rows, machine.read_bytes_per_second * 1e-9, machine.worker_bytes_per_second * 1e-9,
      machine.exchange_seconds * 1e6, machine.exchange_bytes_per_second * 1e-9);
  for (const LayoutEstimate& estimate : layouts) {
    Put("    {:>7}  weights {:.2f} ms ({:.2f} GB, fullest experts {:.2f} of the mean) + {} "
        "exchanges "
        "{:.2f} ms = {:.2f} ms\n",
        Name(estimate.layout), estimate.weight_seconds * 1e3, estimate.weight_bytes * 1e-9,
        estimate.expert_imbalance, estimate.exchanges, estimate.exchange_seconds * 1e3,
        estimate.Seconds() * 1e3);
  }
  Put("  exchanges of {}:", Name(layout));
  for (const SegmentExchanges& count : CountBySegment(first)) {
    Put(" {} {} x {}", count.name, count.visits, count.exchanges);
  }
  Put("\n  a rank reads {:.3f} to {:.3f} GB a step on average over the experts' choices, mean "
      "{:.3f}; "
      "{:.3f} would be an equal share\n",
      static_cast<double>(reads.least) * 1e-9, static_cast<double>(reads.most) * 1e-9,
      reads.mean * 1e-9, reads.ideal * 1e-9);
  Put("  a rank puts {} and receives {} a step\n",
      FormatBytes(static_cast<std::uint64_t>(program::CountExchangedBytes(first, rows))),
      FormatBytes(static_cast<std::uint64_t>(program::CountReceivedBytes(first, rows))));
  Put("  packed weights of a rank: at most {}\n",
      FormatBytes(static_cast<std::uint64_t>(MostPackedBytes(job))));
  Put("  {} Programs compiled and proved, each and together, in {:.2f} s\n", job.programs.size(),
      job.seconds);
}

void PrintJson(const Job& job, const std::vector<LayoutEstimate>& layouts, const ReadBytes& reads,
               std::int64_t rows) {
  const Program& first = *job.programs.front();
  nlohmann::ordered_json json;
  json["ranks"] = job.programs.size();
  json["tensor_parallel"] = layouts.front().layout.tensor_parallel;
  json["expert_parallel"] = layouts.front().layout.expert_parallel;
  json["workers"] = first.num_workers;
  json["rows"] = rows;
  json["exchanges"] = program::CountExchanges(first);
  for (const SegmentExchanges& count : CountBySegment(first)) {
    json["exchanges_by_segment"].push_back(
        {{"segment", count.name}, {"visits", count.visits}, {"exchanges", count.exchanges}});
  }
  json["bytes"] = {{"read_least", reads.least},
                   {"read_most", reads.most},
                   {"read_mean", std::llround(reads.mean)},
                   {"read_equal_share", std::llround(reads.ideal)},
                   {"put", program::CountExchangedBytes(first, rows)},
                   {"received", program::CountReceivedBytes(first, rows)},
                   {"packed_most", MostPackedBytes(job)}};
  for (const LayoutEstimate& estimate : layouts) {
    json["layouts"].push_back({{"tensor_parallel", estimate.layout.tensor_parallel},
                               {"expert_parallel", estimate.layout.expert_parallel},
                               {"expert_imbalance", estimate.expert_imbalance},
                               {"weight_bytes", std::llround(estimate.weight_bytes)},
                               {"exchanges", estimate.exchanges},
                               {"weight_ms", estimate.weight_seconds * 1e3},
                               {"exchange_ms", estimate.exchange_seconds * 1e3}});
  }
  for (const program::VerifiedProgram& program : job.programs) {
    json["hashes"].push_back(program.hash());
  }
  json["seconds"] = job.seconds;
  Put("{}\n", json.dump(2));
}

}  // namespace

Status CompileRanks(const model::Model& model, const program::CompileOptions& compile,
                    const RankOptions& ranks, bool json) {
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<LayoutEstimate> layouts,
                            ChooseLayout(model, compile, ranks.request, ranks.machine));
  MEGALITH_ASSIGN_OR_RETURN(const Job job, CompileAll(model, compile, layouts.front().layout));
  MEGALITH_ASSIGN_OR_RETURN(const ReadBytes reads, CountReads(model, compile, job));
  if (json) {
    PrintJson(job, layouts, reads, compile.max_rows);
  } else {
    PrintText(job, layouts, ranks.machine, reads, compile.max_rows);
  }
  return {};
}

}  // namespace megalith::apps
