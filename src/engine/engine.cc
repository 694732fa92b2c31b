#include "engine/engine.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "base/align.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/topology.h"
#include "engine/model_files.h"
#include "engine/rank_leader.h"
#include "engine/rank_place.h"
#include "exec/cpu/engine.h"
#include "exec/packed_cache.h"
#include "exec/reference/interpreter.h"
#include "fabric/agreement.h"
#include "kernels/numerics_revision.h"
#include "program/compile/compile.h"
#include "program/compile/layout_choice.h"
#include "program/exchange.h"

namespace megalith::engine {
namespace {

constexpr std::int32_t kPageTokens = 64;
/// The rest of a prompt of up to so many tokens need not pay for the largest step's buffers.
constexpr std::int32_t kSmallStep = 8;
/// A step of several ranks that takes longer ends the job: one of them computes for ever.
constexpr std::int64_t kRankStepLimitMs = 600'000;

/// Empty stays empty.
Result<std::string> AbsolutePath(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).string();
  if (error) return Fail(ErrorCode::kIo, "{}: {}", path, error.message());
  return absolute;
}

/// Storage of the matrices a Program names, from which tensors exist. A segment serves many layers,
/// so one name must be stored one way in all of them.
class StoredFormats {
 public:
  explicit StoredFormats(const weights::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  program::WeightFormat operator()(std::string_view name) {
    std::optional<weights::MatrixFormat> format;
    const auto num_layers = static_cast<std::int64_t>(checkpoint_.model().layers.size());
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      const std::string filled =
          exec::FillName(exec::FillName(name, "{layer}", layer), "{expert}", 0);
      const auto matrix = checkpoint_.FindMatrix(filled);
      if (!matrix) continue;  // a layer of another kind
      if (format.value_or(matrix->format) != matrix->format && mixed_.empty()) mixed_ = filled;
      format = matrix->format;
      if (filled == name) break;
    }
    return format == weights::MatrixFormat::kMxfp4 ? program::WeightFormat::kMxfp4
                                                   : program::WeightFormat::kBf16;
  }

  /// A matrix stored otherwise than in an earlier layer; empty if there is none.
  const std::string& mixed() const { return mixed_; }

 private:
  const weights::Checkpoint& checkpoint_;
  std::string mixed_;
};

}  // namespace

program::CompileOptions CompileOptionsFor(const Topology& topology, std::int32_t num_workers,
                                          std::int32_t max_positions) {
  program::CompileOptions options;
  options.num_workers = num_workers > 0 ? num_workers : DefaultWorkers(topology);
  options.max_positions = max_positions;
  options.page_tokens = std::min(kPageTokens, max_positions);
  if (const auto l2_bytes = static_cast<std::int64_t>(topology.CacheBytes(2)); l2_bytes > 0) {
    options.store_slot_bytes = std::max<std::int64_t>(l2_bytes / 2 / options.store_slots, 64 << 10);
  }
  return options;
}

Result<std::unique_ptr<Engine>> Engine::Load(const std::string& directory,
                                             const EngineOptions& options) {
  if (options.leader == nullptr) return LoadOnRank(directory, options, nullptr);
  EngineOptions told = options;
  const bool runs_bf16_kernels =
      options.executor == ExecutorKind::kCpu && options.activation_dtype == DType::kBf16;
  if (!told.isa && runs_bf16_kernels) {
    MEGALITH_ASSIGN_OR_RETURN(told.isa, kernels::SelectIsa());  // not each rank its own best
  }
  // Other processes may have other working directories.
  MEGALITH_ASSIGN_OR_RETURN(const std::string path, AbsolutePath(directory));
  MEGALITH_ASSIGN_OR_RETURN(told.drafter, AbsolutePath(options.drafter));
  MEGALITH_ASSIGN_OR_RETURN(told.packed_cache, AbsolutePath(options.packed_cache));
  MEGALITH_ASSIGN_OR_RETURN(const std::uint32_t target, told.leader->AnnounceLoad(path, told));
  MEGALITH_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                            LoadOnRank(path, told, &told.leader->place()));
  engine->rank_target_ = target;
  engine->executor_->SetMirror(told.leader->MakeMirror(target));
  return engine;
}

Result<std::unique_ptr<Engine>> Engine::LoadOnRank(const std::string& directory,
                                                   const EngineOptions& options,
                                                   const RankPlace* place) {
  const std::int64_t start = NowNs();
  auto checkpoint = weights::Checkpoint::Open(directory, options.drafter);
  MEGALITH_RETURN_IF_ERROR(
      AllOrNone(place, checkpoint ? Status() : tl::unexpected(checkpoint.error())));
  std::unique_ptr<Engine> engine(new Engine(std::move(*checkpoint)));
  engine->place_ = place;
  engine->options_ = options;
  engine->options_.progress = nullptr;
  engine->options_.cancel = nullptr;
  if (place != nullptr) MEGALITH_RETURN_IF_ERROR(engine->CheckSameFiles());
  // Unknown tensors and keys do not stop a load, but nobody should have to ask for them.
  for (const std::string& warning : engine->checkpoint_.census().warnings) {
    if (place == nullptr || place->fabric->rank() == 0) Log(LogLevel::kWarning, warning);
  }
  engine->timings_.open_seconds = SecondsSince(start);
  const std::int64_t compile_start = NowNs();
  MEGALITH_RETURN_IF_ERROR(AllOrNone(place, engine->Compile(options)));
  engine->timings_.compile_seconds = SecondsSince(compile_start);
  MEGALITH_RETURN_IF_ERROR(AllOrNone(place, engine->PackWeights(options)));
  MEGALITH_RETURN_IF_ERROR(AllOrNone(place, engine->MakeExecutor(options)));
  MEGALITH_RETURN_IF_ERROR(engine->ReportRanks());
  MEGALITH_RETURN_IF_ERROR(AllOrNone(place, engine->CheckFirstStep()));
  engine->timings_.load_seconds = SecondsSince(start) - engine->timings_.compile_seconds;
  return engine;
}

fabric::Fabric* Engine::fabric() const { return place_ == nullptr ? nullptr : place_->fabric; }

std::int32_t Engine::rank() const {
  return place_ == nullptr ? 0 : static_cast<std::int32_t>(place_->fabric->rank());
}

std::int32_t Engine::num_ranks() const {
  return place_ == nullptr ? 1 : static_cast<std::int32_t>(place_->fabric->num_ranks());
}

Status Engine::JobStatus() const { return place_ == nullptr ? Status() : place_->fabric->status(); }

/// Of this rank alone.
Result<Topology> Engine::FindTopology() const {
  if (place_ != nullptr) return place_->cores.topology;
  return DetectTopology();
}

WorkerPlacement Engine::FindPlacement(const Topology& topology) const {
  WorkerPlacement placement = PlaceWorkers(topology, num_workers_);
  if (place_ != nullptr && place_->cores.shares_cpus && !placement.oversubscribed) {
    placement.cpus.clear();
    placement.oversubscribed = true;
    placement.description =
        fmt::format("{} worker{}, OVERSUBSCRIBED: on CPUs of other ranks, too, not pinned",
                    num_workers_, num_workers_ == 1 ? "" : "s");
  }
  return placement;
}

Status Engine::CheckSameFiles() const {
  const auto files = IdentifyModelFiles(checkpoint_);
  MEGALITH_RETURN_IF_ERROR(AllOrNone(place_, files ? Status() : tl::unexpected(files.error())));
  return fabric::CheckAgreement(*place_->fabric, *files);
}

/// What runs where; of a job rank 0 tells it.
Status Engine::ReportRanks() const {
  if (place_ == nullptr) {
    Log(LogLevel::kInfo, Describe());
    return {};
  }
  const std::string mine = fmt::format("{}; {}", place_->fabric->Describe(), Describe());
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<fabric::Bytes> all,
                            place_->fabric->AllGather(std::as_bytes(std::span(mine))));
  if (place_->fabric->rank() != 0) return {};
  for (const fabric::Bytes& bytes : all) {
    Log(LogLevel::kInfo, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  return {};
}

Status Engine::Compile(const EngineOptions& options) {
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, FindTopology());
  if (options.num_workers < 0) {
    return Fail(ErrorCode::kUsage, "workers: at least 1 expected, {} given", options.num_workers);
  }
  const std::int64_t model_positions = model().max_position_embeddings;
  if (options.max_positions < 0 || options.max_positions > model_positions) {
    return Fail(ErrorCode::kOutOfRange, "context: 1 to {} tokens for this model, {} asked for",
                model_positions, options.max_positions);
  }
  max_positions_ = options.max_positions > 0 ? options.max_positions
                                             : static_cast<std::int32_t>(model_positions);
  if (options.rows_per_step < 1 || options.rows_per_step > program::kMaxRowBucket) {
    return Fail(ErrorCode::kUsage, "rows per step: 1 to {} expected, {} given",
                program::kMaxRowBucket, options.rows_per_step);
  }
  rows_per_step_ = options.rows_per_step;
  if (options.fast_prefill && rows_per_step_ < program::kFastRunRows) {
    return Fail(ErrorCode::kUsage,
                "fast prefill: at least {} rows per step expected, {} given: shorter runs have no "
                "fast form",
                program::kFastRunRows, rows_per_step_);
  }

  program::CompileOptions compile =
      CompileOptionsFor(topology, options.num_workers, max_positions_);
  num_workers_ = compile.num_workers;
  compile.num_slots = options.num_sequences;
  compile.fast_prefill = options.fast_prefill;
  MEGALITH_ASSIGN_OR_RETURN(compile.num_pages, NumPages(options, compile.page_tokens));

  if (options.max_drafts < 0 || options.max_drafts > program::kMaxDrafts) {
    return Fail(ErrorCode::kUsage, "drafts: 0 to {} expected, {} given", program::kMaxDrafts,
                options.max_drafts);
  }
  // Drafts are verified in one step.
  rows_per_step_ = std::max(rows_per_step_, options.max_drafts + 1);
  const std::int32_t logit_rows =
      std::max(options.logit_rows_per_step, options.num_sequences * (options.max_drafts + 1));
  MEGALITH_RETURN_IF_ERROR(ChooseLayout(options, &compile));
  MEGALITH_ASSIGN_OR_RETURN(programs_, CompileShapes(compile, Shapes(options), logit_rows));
  program_hash_ = programs_.front().hash();
  plain_step_bytes_ =
      program::CountStepBytes(*programs_.front(), 1, model().moe.num_experts_per_token).Source();
  return {};
}

/// For steps of one token, or of one token and its drafts, of every sequence.
Status Engine::ChooseLayout(const EngineOptions& options, program::CompileOptions* compile) {
  const std::int32_t ranks = num_ranks();
  if (ranks == 1 && options.tensor_parallel <= 1 && options.expert_parallel <= 1) return {};
  program::CompileOptions step = *compile;
  step.max_rows = std::min(options.num_sequences * (options.max_drafts + 1), rows_per_step_);
  step.max_logit_rows = step.max_rows;
  const program::LayoutRequest request{ranks, options.tensor_parallel, options.expert_parallel};
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<program::LayoutEstimate> layouts,
                            program::ChooseLayout(model(), step, request));
  layout_ = layouts.front().layout;
  compile->ranks = layout_;
  compile->rank = rank();
  if (compile->rank == 0) {
    LogFormat(LogLevel::kInfo,
              "{} ranks: tensor parallel {} x expert parallel {}, {} exchanges a step", ranks,
              layout_.tensor_parallel, layout_.expert_parallel, layouts.front().exchanges);
  }
  return {};
}

/// Collective where there are several ranks, which then also know that they exchange the same.
Result<std::unique_ptr<fabric::Mailboxes>> Engine::MakeMailboxes(
    const std::vector<program::VerifiedProgram>& programs) const {
  if (num_ranks() == 1) return nullptr;
  fabric::Items signatures;
  for (const program::VerifiedProgram& program : programs) {
    signatures.emplace_back(fmt::format("exchanges of {} rows, {} proposals", program->max_rows,
                                        program->draft.num_drafts),
                            program::ExchangeSignature(*program));
  }
  MEGALITH_RETURN_IF_ERROR(fabric::CheckAgreement(*place_->fabric, signatures));
  return place_->fabric->CreateMailboxes(exec::MailboxLayoutFor(programs));
}

Result<std::int32_t> Engine::NumPages(const EngineOptions& options,
                                      std::int32_t page_tokens) const {
  if (options.cache_positions < 0 || options.prefix_cache_bytes < 0) {
    return Fail(ErrorCode::kUsage, "cache: {} positions and {} bytes given, at least 0 expected",
                options.cache_positions, options.prefix_cache_bytes);
  }
  if (options.cache_positions > 0 && options.cache_positions < max_positions_) {
    return Fail(ErrorCode::kUsage, "cache: {} positions cannot hold a sequence of {}",
                options.cache_positions, max_positions_);
  }
  const std::int64_t pages =
      options.cache_positions > 0
          ? CeilDiv(options.cache_positions, std::int64_t{page_tokens})
          : std::int64_t{options.num_sequences} * CeilDiv(max_positions_, page_tokens);
  const std::int64_t position_bytes = model().CountLayers(model::Mixer::kMla) *
                                      (model().mla.kv_lora_rank + model().mla.qk_rope_head_dim) *
                                      DTypeBytes(options.activation_dtype);
  const std::int64_t snapshot_pages =
      position_bytes == 0 ? 0 : options.prefix_cache_bytes / (position_bytes * page_tokens);
  if (pages + snapshot_pages > std::numeric_limits<std::int32_t>::max()) {
    return Fail(ErrorCode::kOutOfMemory, "cache: {} pages of {} positions are too many",
                pages + snapshot_pages, page_tokens);
  }
  return static_cast<std::int32_t>(pages + snapshot_pages);
}

/// Row buckets for one token, for the end of a prompt or a verified block, and for a whole step;
/// for several sequences also those between. With a drafter all but the first also with proposals:
/// as many as may be verified, and few.
std::vector<Engine::ProgramShape> Engine::Shapes(const EngineOptions& options) const {
  std::vector<ProgramShape> shapes = {{}};
  const std::int32_t largest = program::RowBucket(rows_per_step_);
  const std::int32_t block = program::RowBucket(std::max(options.max_drafts + 1, kSmallStep));
  std::set<std::int32_t> buckets;
  if (largest > block) buckets.insert(block);
  if (largest > 1) buckets.insert(largest);
  if (options.num_sequences > 1) {
    for (std::int32_t rows = 2; rows < largest; rows = program::RowBucket(rows + 1)) {
      buckets.insert(rows);
    }
  }
  for (const std::int32_t rows : buckets) shapes.push_back({rows, 0, 0});
  if (checkpoint_.drafter() == nullptr || options.max_drafts == 0) return shapes;
  const auto most = static_cast<std::int32_t>(
      std::min<std::int64_t>(options.max_drafts, checkpoint_.drafter()->MaxDrafts()));
  for (const std::int32_t rows : buckets) {
    for (const std::int32_t num_drafts : std::set{1, std::min(3, most), most}) {
      shapes.push_back({rows, std::min(rows, options.num_sequences), num_drafts});
    }
  }
  return shapes;
}

/// One Program of each shape, proved. Fills in what follows from the checkpoint.
Result<std::vector<program::VerifiedProgram>> Engine::CompileShapes(
    program::CompileOptions compile, const std::vector<ProgramShape>& shapes,
    std::int32_t logit_rows) const {
  model::Model compiled = model();
  if (options_.lora_norm_uses_rms_eps) compiled.lora_norm_eps = compiled.rms_norm_eps;
  StoredFormats formats(checkpoint_);
  compile.activation_dtype = options_.activation_dtype;
  compile.dense = options_.dense;
  compile.weight_format = [&formats](std::string_view name) { return formats(name); };
  std::vector<program::VerifiedProgram> programs;
  compile.max_drafts = options_.max_drafts;
  compile.drafter = checkpoint_.drafter();
  for (const ProgramShape& shape : shapes) {
    compile.max_rows = shape.rows;
    compile.max_logit_rows = std::clamp(logit_rows, 1, shape.rows);
    compile.draft_runs = shape.draft_runs;
    compile.num_drafts = shape.num_drafts;
    MEGALITH_ASSIGN_OR_RETURN(program::Program program, program::Compile(compiled, compile));
    if (!formats.mixed().empty()) {
      return Fail(ErrorCode::kUnsupported,
                  "tensor {}: stored in another format than in the layers before it, which is not "
                  "supported",
                  formats.mixed());
    }
    MEGALITH_ASSIGN_OR_RETURN(program::VerifiedProgram verified,
                              program::Verify(std::move(program)));
    programs.push_back(std::move(verified));
  }
  return programs;
}

Result<Variant> Engine::MakeVariant(const VariantOptions& options) const {
  if (options_.leader == nullptr) return MakeVariantOnRank(options);
  RankLeader& leader = *options_.leader;
  MEGALITH_ASSIGN_OR_RETURN(const std::uint32_t target,
                            leader.AnnounceVariant(rank_target_, options));
  MEGALITH_ASSIGN_OR_RETURN(Variant variant, MakeVariantOnRank(options));
  variant.executor->SetMirror(leader.MakeMirror(target));
  return variant;
}

Result<Variant> Engine::MakeVariantOnRank(const VariantOptions& options) const {
  auto programs = CompileVariant(options);
  MEGALITH_RETURN_IF_ERROR(
      AllOrNone(place_, programs ? Status() : tl::unexpected(programs.error())));
  Variant variant;
  variant.programs = std::move(*programs);
  MEGALITH_ASSIGN_OR_RETURN(variant.mailboxes, MakeMailboxes(variant.programs));
  auto executor = StartVariant(options, variant);
  MEGALITH_RETURN_IF_ERROR(
      AllOrNone(place_, executor ? Status() : tl::unexpected(executor.error())));
  variant.executor = std::move(*executor);
  return variant;
}

Result<std::vector<program::VerifiedProgram>> Engine::CompileVariant(
    const VariantOptions& options) const {
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, FindTopology());
  program::CompileOptions compile =
      CompileOptionsFor(topology, num_workers_, options.max_positions);
  compile.num_slots = options.num_sequences;
  compile.barrier_after_each_op = options.barrier_after_each_op;
  compile.fast_prefill = options.fast_prefill;
  compile.ranks = layout_;
  compile.rank = rank();
  std::vector<ProgramShape> shapes;
  for (const std::int32_t rows : options.row_buckets) shapes.push_back({rows, 0, 0});
  return CompileShapes(compile, shapes, options.logit_rows);
}

Result<std::unique_ptr<exec::Executor>> Engine::StartVariant(const VariantOptions& options,
                                                             const Variant& variant) const {
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, FindTopology());
  exec::CpuEngineOptions cpu;
  if (options.isa || options_.isa) {
    cpu.isa = options.isa ? *options.isa : *options_.isa;
  } else {
    MEGALITH_ASSIGN_OR_RETURN(cpu.isa, kernels::SelectIsa());
  }
  cpu.placement = FindPlacement(topology);
  cpu.step_timeout_ms = place_ == nullptr ? 0 : kRankStepLimitMs;
  cpu.huge_pages = options_.huge_pages;
  cpu.prefetch = options.prefetch;
  cpu.mailboxes = variant.mailboxes.get();
  return exec::MakeCpuEngine(variant.programs, *weights_, std::move(cpu));
}

std::string Engine::Describe() const {
  return executor_->Describe() +
         (options_.fast_prefill
              ? fmt::format("; prefill fast: chunked KDA and expanded MLA in runs of {} rows and "
                            "more, other bits than exact",
                            program::kFastRunRows)
              : "; prefill exact");
}

Result<std::string> Engine::StateIdentity() const {
  MEGALITH_ASSIGN_OR_RETURN(const exec::PackedCacheKey key, exec::MakeCheckpointKey(checkpoint_));
  const program::StateLayout& state = programs_.front()->state;
  const std::string settings =
      fmt::format("{} {} {} {} {} {} {}{}", kernels::kNumericsRevision, isa_name_,
                  DTypeName(options_.activation_dtype), program::DenseFormatsText(options_.dense),
                  options_.lora_norm_uses_rms_eps, state.page_tokens, state.draft_positions,
                  options_.fast_prefill ? " fast prefill" : "");
  return fmt::format("{:016x}{:016x}{:016x}", key[0], key[1],
                     XXH3_64bits(settings.data(), settings.size()));
}

Status Engine::PackWeights(const EngineOptions& options) {
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, FindTopology());
  const WorkerPlacement placement = FindPlacement(topology);
  exec::PackOptions pack;
  pack.huge_pages = options.huge_pages;
  pack.worker_cpus = placement.cpus;
  pack.topology = &topology;
  pack.cache_directory = options.packed_cache;
  pack.cache_use = options.packed_cache_use;
  CancelFlag stop;
  pack.progress = options.progress;
  pack.cancel = options.cancel;
  if (place_ != nullptr) {
    // Other ranks would wait for what is not wanted any more.
    pack.cancel = &stop;
    pack.progress = [&](const Progress& progress) {
      const bool is_cancelled = options.cancel != nullptr && options.cancel->IsCancelled();
      if (is_cancelled) place_->fabric->Abort("loading was stopped on request");
      if (place_->fabric->failed()) stop.Cancel();
      if (options.progress) options.progress(progress);
    };
  }
  // The Programs with proposals read all that the others read, and more.
  const auto& widest = std::max_element(
      programs_.begin(), programs_.end(),
      [](const auto& a, const auto& b) { return a->visits.size() < b->visits.size(); });
  MEGALITH_ASSIGN_OR_RETURN(exec::PackedWeights weights,
                            exec::PackedWeights::Pack(**widest, checkpoint_, pack));
  timings_.fill_seconds = weights.fill_seconds();
  timings_.cache_write_seconds = weights.cache_write_seconds();
  weights_.emplace(std::move(weights));
  return {};
}

Status Engine::MakeExecutor(const EngineOptions& options) {
  MEGALITH_ASSIGN_OR_RETURN(mailboxes_, MakeMailboxes(programs_));
  if (options.executor == ExecutorKind::kReference) {
    isa_name_ = "reference";
    exec::ReferenceOptions reference;
    reference.mailboxes = mailboxes_.get();
    if (options.isa) reference.numerics = kernels::NumericsOf(*options.isa);
    MEGALITH_ASSIGN_OR_RETURN(
        executor_, exec::MakeReferenceExecutor(programs_, *weights_, std::move(reference)));
    return {};
  }
  kernels::Isa isa = kernels::Isa::kPortable;
  if (options.isa) {
    isa = *options.isa;
  } else if (options.activation_dtype == DType::kBf16) {
    MEGALITH_ASSIGN_OR_RETURN(isa, kernels::SelectIsa());
  }
  isa_name_ = kernels::IsaName(isa);
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, FindTopology());
  exec::CpuEngineOptions cpu;
  cpu.isa = isa;
  cpu.placement = FindPlacement(topology);
  cpu.step_timeout_ms = place_ == nullptr ? 0 : kRankStepLimitMs;
  cpu.huge_pages = options.huge_pages;
  cpu.mailboxes = mailboxes_.get();
  MEGALITH_ASSIGN_OR_RETURN(executor_, exec::MakeCpuEngine(programs_, *weights_, std::move(cpu)));
  return {};
}

/// A wrong checkpoint (a dead head, scales from another file) often loads without complaint; its
/// logits show it at the first token.
Status Engine::CheckFirstStep() {
  const std::int32_t token = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(model().bos_token_id, 0, model().vocab_size - 1));
  const exec::Run run{0, 0, 1};
  const std::int32_t logit_row = 0;
  const auto logits = executor_->Step({{&run, 1}, {&token, 1}, {&logit_row, 1}});
  if (!logits) {
    // Other ranks may be in the middle of theirs.
    if (place_ != nullptr) place_->fabric->Abort(logits.error().message);
    return tl::unexpected(logits.error());
  }
  const std::span<const float> row = logits->Row(0);
  const auto bad = std::find_if(row.begin(), row.end(), [](float x) { return !std::isfinite(x); });
  if (bad != row.end()) {
    return Fail(ErrorCode::kNumeric,
                "{}: the first step's logit of token {} is {}: the weights cannot be right",
                checkpoint_.directory(), bad - row.begin(), *bad);
  }
  if (row.size() > 1 &&
      std::all_of(row.begin(), row.end(), [&row](float x) { return x == row[0]; })) {
    return Fail(ErrorCode::kNumeric,
                "{}: the first step's logits are all {}: the weights cannot be right",
                checkpoint_.directory(), row[0]);
  }
  return executor_->ReleaseSlot(0);
}

}  // namespace megalith::engine
