#include "exec/testing/executors.h"

#include <bit>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "base/topology.h"
#include "exec/device_memory.h"
#include "exec/exchange.h"
#include "fabric/inproc.h"
#include "program/compile/compile.h"

namespace megalith::exec::testing {
namespace {

std::mutex cache_mutex;

/// What of a spec decides a Program.
using ProgramKey =
    std::tuple<std::string, DType, std::int32_t, std::int32_t, std::int32_t, std::int32_t,
               std::int32_t, std::int32_t, std::int64_t, decltype(program::DenseFormats::part),
               std::int32_t, std::string, std::int32_t, std::int32_t, std::int32_t, std::int32_t,
               std::int32_t, bool>;

Result<program::VerifiedProgram> MakeProgram(const weights::Checkpoint& checkpoint,
                                             const ExecutorSpec& spec, std::int32_t bucket) {
  static std::map<ProgramKey, program::VerifiedProgram> cache;
  const ProgramKey key{spec.directory,
                       spec.activation_dtype,
                       spec.num_workers,
                       bucket,
                       spec.num_slots,
                       spec.page_tokens,
                       spec.max_positions,
                       spec.num_pages,
                       spec.max_active_experts,
                       spec.dense.part,
                       spec.max_drafts,
                       spec.drafter,
                       spec.draft_runs,
                       spec.num_drafts,
                       spec.rank,
                       spec.ranks.tensor_parallel,
                       spec.ranks.expert_parallel,
                       spec.fast_prefill};
  if (const auto found = cache.find(key); found != cache.end()) return found->second;
  program::CompileOptions options;
  options.num_workers = spec.num_workers;
  options.ranks = spec.ranks;
  options.rank = spec.rank;
  options.max_rows = bucket;
  options.max_logit_rows = bucket;
  options.activation_dtype = spec.activation_dtype;
  options.dense = spec.dense;
  options.num_slots = spec.num_slots;
  options.page_tokens = spec.page_tokens;
  options.max_positions = spec.max_positions;
  options.num_pages = spec.num_pages;
  options.max_drafts = spec.max_drafts;
  options.drafter = checkpoint.drafter();
  options.draft_runs = spec.draft_runs;
  options.num_drafts = spec.num_drafts;
  options.fast_prefill = spec.fast_prefill;
  MEGALITH_ASSIGN_OR_RETURN(program::Program program,
                            program::Compile(checkpoint.model(), options));
  if (spec.max_active_experts > 0) {
    program.registers[static_cast<std::size_t>(program::Register::kActiveExperts)].max_value =
        spec.max_active_experts;
  }
  MEGALITH_ASSIGN_OR_RETURN(program::VerifiedProgram verified, program::Verify(std::move(program)));
  cache.emplace(key, verified);
  return verified;
}

Result<const weights::Checkpoint*> OpenCached(const std::string& directory,
                                              const std::string& drafter) {
  static std::map<std::pair<std::string, std::string>, weights::Checkpoint> cache;
  const std::pair key{directory, drafter};
  if (const auto found = cache.find(key); found != cache.end()) return &found->second;
  MEGALITH_ASSIGN_OR_RETURN(weights::Checkpoint checkpoint,
                            weights::Checkpoint::Open(directory, drafter));
  return &cache.emplace(key, std::move(checkpoint)).first->second;
}

}  // namespace

std::string Describe(const ExecutorSpec& spec) {
  return fmt::format(
      "{} {} workers {}",
      spec.reference ? (spec.numerics.order == kernels::DotOrder::kSplitPairs ? "reference split"
                                                                              : "reference joined")
                     : kernels::IsaName(spec.isa),
      DTypeName(spec.activation_dtype), spec.num_workers);
}

Result<const weights::Checkpoint*> OpenCheckpoint(const std::string& directory,
                                                  const std::string& drafter) {
  const std::lock_guard lock(cache_mutex);
  return OpenCached(directory, drafter);
}

Result<std::vector<program::VerifiedProgram>> MakePrograms(const ExecutorSpec& spec) {
  const std::lock_guard lock(cache_mutex);
  MEGALITH_ASSIGN_OR_RETURN(const weights::Checkpoint* checkpoint,
                            OpenCached(spec.directory, spec.drafter));
  std::vector<program::VerifiedProgram> programs;
  for (const std::int32_t bucket : spec.row_buckets) {
    MEGALITH_ASSIGN_OR_RETURN(program::VerifiedProgram program,
                              MakeProgram(*checkpoint, spec, bucket));
    programs.push_back(std::move(program));
  }
  return programs;
}

Result<const PackedWeights*> Pack(const ExecutorSpec& spec) {
  static std::map<std::tuple<std::string, std::string, std::int32_t, decltype(spec.dense.part),
                             std::int32_t, std::int32_t, std::int32_t, bool>,
                  PackedWeights>
      cache;
  const std::lock_guard lock(cache_mutex);
  const std::tuple key{spec.directory,
                       spec.drafter,
                       spec.num_workers,
                       spec.dense.part,
                       spec.rank,
                       spec.ranks.tensor_parallel,
                       spec.ranks.expert_parallel,
                       spec.draft_runs > 0};
  if (const auto found = cache.find(key); found != cache.end()) return &found->second;
  MEGALITH_ASSIGN_OR_RETURN(const weights::Checkpoint* checkpoint,
                            OpenCached(spec.directory, spec.drafter));
  MEGALITH_ASSIGN_OR_RETURN(const program::VerifiedProgram program,
                            MakeProgram(*checkpoint, spec, spec.row_buckets.front()));
  MEGALITH_ASSIGN_OR_RETURN(PackedWeights packed,
                            PackedWeights::Pack(*program, *checkpoint, PackOptions{}));
  return &cache.emplace(key, std::move(packed)).first->second;
}

Result<std::unique_ptr<Executor>> MakeExecutor(const ExecutorSpec& spec) {
  MEGALITH_ASSIGN_OR_RETURN(std::vector<program::VerifiedProgram> programs, MakePrograms(spec));
  MEGALITH_ASSIGN_OR_RETURN(const PackedWeights* weights, Pack(spec));
  if (spec.reference) {
    ReferenceOptions options;
    options.numerics = spec.numerics;
    options.interleaving_seed = spec.interleaving_seed;
    options.observer = spec.observer;
    options.mailboxes = spec.mailboxes;
    return MakeReferenceExecutor(std::move(programs), *weights, std::move(options));
  }
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
  CpuEngineOptions options;
  options.isa = spec.isa;
  options.placement = PlaceWorkers(topology, spec.num_workers);
  options.prefetch = spec.prefetch;
  options.trace_records = spec.trace_records;
  options.step_timeout_ms = spec.step_timeout_ms;
  options.before_instruction = spec.before_instruction;
  options.mailboxes = spec.mailboxes;
  return MakeCpuEngine(std::move(programs), *weights, std::move(options));
}

Status OnRanks(const ExecutorSpec& spec,
               const std::function<Status(Executor& executor, std::int32_t rank)>& body) {
  const auto num_ranks = static_cast<std::size_t>(spec.ranks.NumRanks());
  MEGALITH_ASSIGN_OR_RETURN(auto job, fabric::MakeInprocJob(static_cast<std::uint32_t>(num_ranks)));
  std::vector<Status> results(num_ranks);
  const auto run = [&](std::size_t rank) -> Status {
    ExecutorSpec own = spec;
    own.rank = static_cast<std::int32_t>(rank);
    if (spec.instructed_rank >= 0 && own.rank != spec.instructed_rank) {
      own.before_instruction = nullptr;
    }
    MEGALITH_ASSIGN_OR_RETURN(const auto programs, MakePrograms(own));
    MEGALITH_ASSIGN_OR_RETURN(const auto mailboxes,
                              job[rank]->CreateMailboxes(MailboxLayoutFor(programs)));
    own.mailboxes = mailboxes.get();
    MEGALITH_ASSIGN_OR_RETURN(const auto executor, MakeExecutor(own));
    return body(*executor, own.rank);
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = run(rank);
      if (!results[rank]) job[rank]->Abort(results[rank].error().message);
      job[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& result : results) MEGALITH_RETURN_IF_ERROR(std::move(result));
  return {};
}

Result<LogitRows> Feed(Executor& executor, std::int32_t slot, std::span<const std::int32_t> tokens,
                       std::int32_t rows_per_step, std::int32_t first_position) {
  LogitRows rows;
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  for (std::int32_t done = 0; done < num_tokens; done += rows_per_step) {
    const std::int32_t count = std::min(rows_per_step, num_tokens - done);
    const Run run{slot, first_position + done, count};
    std::vector<std::int32_t> logit_rows;
    for (std::int32_t i = 0; i < count; ++i) logit_rows.push_back(i);
    const auto step_tokens =
        tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count));
    MEGALITH_ASSIGN_OR_RETURN(const StepOutput logits,
                              executor.Step({{&run, 1}, step_tokens, logit_rows}));
    for (std::int32_t i = 0; i < count; ++i) {
      const std::span<const float> row = logits.Row(i);
      rows.emplace_back(row.begin(), row.end());
    }
  }
  return rows;
}

SequenceState ReadState(const Executor& executor, std::int32_t slot) {
  const DeviceMemory& memory = executor.memory();
  const program::StateLayout& layout = memory.program(0)->state;
  SequenceState state;
  for (std::int32_t layer = 0; layer < layout.num_kda_layers; ++layer) {
    const auto kda = memory.KdaState(slot, layer);
    state.kda.insert(state.kda.end(), kda.begin(), kda.end());
    const auto conv = memory.ConvState(slot, layer);
    state.conv.insert(state.conv.end(), conv.begin(), conv.end());
  }
  for (std::int32_t layer = 0; layer < layout.num_mla_layers; ++layer) {
    for (std::int32_t position = 0; position < memory.sequences().Length(slot); ++position) {
      const auto row = memory.CacheRow(slot, layer, position);
      state.cache.insert(state.cache.end(), row.begin(), row.end());
    }
  }
  return state;
}

std::string FirstDifference(const LogitRows& want, const LogitRows& have) {
  if (want.size() != have.size()) {
    return fmt::format("{} rows expected, {} found", want.size(), have.size());
  }
  for (std::size_t row = 0; row < want.size(); ++row) {
    if (want[row].size() != have[row].size()) {
      return fmt::format("row {}: {} logits expected, {} found", row, want[row].size(),
                         have[row].size());
    }
    for (std::size_t i = 0; i < want[row].size(); ++i) {
      if (std::bit_cast<std::uint32_t>(want[row][i]) !=
          std::bit_cast<std::uint32_t>(have[row][i])) {
        return fmt::format("row {}, logit {}: {} expected, {} found", row, i, want[row][i],
                           have[row][i]);
      }
    }
  }
  return "";
}

std::int32_t ArgMax(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<std::int32_t>(best);
}

std::vector<std::int32_t> RandomTokens(std::size_t count, std::int32_t vocab_size,
                                       std::uint64_t seed) {
  std::vector<std::int32_t> tokens(count);
  std::uint64_t state = seed;
  for (std::int32_t& token : tokens) {
    // splitmix64 (Steele, Lea, Flood 2014)
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    token = static_cast<std::int32_t>((z ^ (z >> 31)) % static_cast<std::uint64_t>(vocab_size));
  }
  return tokens;
}

}  // namespace megalith::exec::testing
