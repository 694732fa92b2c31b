#include "weights/inspect.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "model/config.h"
#include "model/drafter_tensors.h"
#include "model/dspark.h"
#include "weights/census.h"

namespace megalith::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBf16Bytes = 2;
constexpr std::uint64_t kF32Bytes = 4;

std::uint64_t U64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

std::uint64_t SaturatingAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

std::vector<LayerGroup> GroupLayers(const model::Model& model) {
  std::vector<LayerGroup> groups;
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const model::Layer& layer = model.layers[l];
    auto group = std::find_if(groups.begin(), groups.end(), [&](const LayerGroup& candidate) {
      return candidate.mixer == layer.mixer && candidate.feed_forward == layer.feed_forward;
    });
    if (group == groups.end()) {
      groups.push_back({layer.mixer, layer.feed_forward, {}});
      group = groups.end() - 1;
    }
    group->layers.push_back(static_cast<std::int64_t>(l));
  }
  return groups;
}

std::array<PartReport, model::kNumModelParts> PartReports(
    const model::Model& model, const std::array<model::StoredSize, model::kNumParts>& sizes) {
  std::array<PartReport, model::kNumModelParts> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    PartReport& report = parts[i];
    report.part = static_cast<model::Part>(i);
    report.stored = sizes[i];
    report.parameters_per_token = sizes[i].num_parameters;
    report.bytes_per_token = sizes[i].num_bytes;
    if (report.part == model::Part::kExperts) {
      // Whole experts: all of a model are alike.
      const std::uint64_t experts = U64(model.moe.num_experts);
      const std::uint64_t chosen = U64(model.moe.num_experts_per_token);
      report.parameters_per_token = sizes[i].num_parameters / experts * chosen;
      report.bytes_per_token = sizes[i].num_bytes / experts * chosen;
    } else if (report.part == model::Part::kEmbedding) {
      report.parameters_per_token = U64(model.hidden_size);
      report.bytes_per_token = U64(model.hidden_size) * kBf16Bytes;
    }
  }
  if (model.tie_word_embeddings) {  // stored once, but read as the head
    const PartReport& embedding = parts[static_cast<std::size_t>(model::Part::kEmbedding)];
    PartReport& head = parts[static_cast<std::size_t>(model::Part::kHead)];
    head.parameters_per_token = embedding.stored.num_parameters;
    head.bytes_per_token = embedding.stored.num_bytes;
  }
  return parts;
}

// Spec section 7.
StateReport StateOf(const model::Model& model) {
  StateReport state;
  const std::uint64_t kda_layers = U64(model.CountLayers(model::Mixer::kKda));
  const std::uint64_t mla_layers = U64(model.CountLayers(model::Mixer::kMla));
  const std::uint64_t head_dim = U64(model.kda.head_dim);
  const std::uint64_t width = U64(model.kda.num_heads) * head_dim;
  state.kda_recurrent_bytes = kda_layers * width * head_dim * kF32Bytes;
  state.kda_conv_bytes =
      kda_layers * 3 * U64(model.kda.short_conv_kernel_size - 1) * width * kBf16Bytes;
  state.mla_bytes_per_token =
      mla_layers * U64(model.mla.kv_lora_rank + model.mla.qk_rope_head_dim) * kBf16Bytes;
  if (model.attn_res_block_size > 0) {
    state.residual_block_bytes = U64(model.MaxBlocks() + 1) * U64(model.hidden_size) * kBf16Bytes;
  }
  return state;
}

Result<InspectReport> MakeReport(const model::Model& model, std::string_view source,
                                 const std::array<model::StoredSize, model::kNumParts>& sizes,
                                 const InspectOptions& options) {
  const std::int64_t context = options.context_tokens.value_or(model.max_position_embeddings);
  if (context < 1 || options.num_sequences < 1) {
    return Fail(ErrorCode::kOutOfRange, "a memory plan for {} tokens of {} sequences", context,
                options.num_sequences);
  }
  if (context > model.max_position_embeddings) {
    return Fail(ErrorCode::kOutOfRange,
                "a memory plan for {} tokens: at most max_position_embeddings ({}) expected",
                context, model.max_position_embeddings);
  }
  InspectReport report;
  report.source = source;
  report.model = model;
  report.layer_groups = GroupLayers(model);
  report.num_expected = model::Total(sizes).num_tensors;
  report.parts = PartReports(model, sizes);
  report.state = StateOf(model);
  MemoryPlan& plan = report.plan;
  plan.context_tokens = context;
  plan.num_sequences = options.num_sequences;
  plan.weight_bytes = report.stored().num_bytes;
  const std::uint64_t sequences = U64(options.num_sequences);
  std::uint64_t tokens = 0;
  if (__builtin_mul_overflow(report.state.kda_recurrent_bytes + report.state.kda_conv_bytes,
                             sequences, &plan.kda_bytes) ||
      __builtin_mul_overflow(U64(context), sequences, &tokens) ||
      __builtin_mul_overflow(tokens, report.state.mla_bytes_per_token, &plan.mla_bytes) ||
      __builtin_add_overflow(plan.weight_bytes, plan.kda_bytes, &plan.total_bytes) ||
      __builtin_add_overflow(plan.total_bytes, plan.mla_bytes, &plan.total_bytes)) {
    return Fail(ErrorCode::kOutOfRange,
                "a memory plan for {} sequences of {} tokens: its bytes do not fit 64 bits",
                options.num_sequences, context);
  }
  return report;
}

DrafterReport MakeDrafterReport(const model::Drafter& drafter, std::string_view source,
                                const std::array<model::StoredSize, model::kNumParts>& sizes) {
  DrafterReport report;
  report.source = source;
  report.drafter = drafter;
  report.stored = model::Total(sizes);
  const auto of = [&](model::Part part) { return sizes[static_cast<std::size_t>(part)].num_bytes; };
  report.bytes_per_block = report.stored.num_bytes - of(model::Part::kEmbedding);
  if (drafter.tie_word_embeddings) {  // stored once, but read as the head
    report.bytes_per_block += U64(drafter.vocab_size) * U64(drafter.hidden_size) * kBf16Bytes;
  }
  report.context_bytes_per_token = U64(static_cast<std::int64_t>(drafter.layers.size())) * 2 *
                                   U64(drafter.num_key_value_heads * drafter.head_dim) * kBf16Bytes;
  return report;
}

Status AddDraftPlan(const InspectOptions& options, InspectReport* report) {
  const DrafterReport* drafter = report->drafter ? &*report->drafter : nullptr;
  const bool text_alone = options.drafts_from_text && !options.drafter_beside;
  if (options.max_drafts < 0) {
    return Fail(ErrorCode::kOutOfRange, "a memory plan for {} drafts: at least 0 expected",
                options.max_drafts);
  }
  if (options.max_drafts == 0 || (drafter == nullptr && !text_alone)) return {};
  const MemoryPlan& model_plan = report->plan;
  DraftPlan& plan = report->draft_plan.emplace();
  plan.num_drafts = options.max_drafts;
  std::int64_t positions = 0;
  std::uint64_t position_bytes = 0;
  if (drafter != nullptr) {
    if (!options.drafts_from_text) {
      plan.num_drafts = std::min(plan.num_drafts, drafter->drafter.MaxDrafts());
    }
    plan.weight_bytes = drafter->stored.num_bytes;
    positions = drafter->drafter.ContextPositions(model_plan.context_tokens, plan.num_drafts);
    position_bytes = drafter->context_bytes_per_token;
  }
  std::uint64_t tokens = 0;
  if (__builtin_mul_overflow(model_plan.kda_bytes, U64(plan.num_drafts), &plan.kda_bytes) ||
      __builtin_mul_overflow(U64(positions), U64(model_plan.num_sequences), &tokens) ||
      __builtin_mul_overflow(tokens, position_bytes, &plan.context_bytes) ||
      __builtin_add_overflow(model_plan.total_bytes, plan.weight_bytes, &plan.total_bytes) ||
      __builtin_add_overflow(plan.total_bytes, plan.kda_bytes, &plan.total_bytes) ||
      __builtin_add_overflow(plan.total_bytes, plan.context_bytes, &plan.total_bytes)) {
    return Fail(ErrorCode::kOutOfRange,
                "a memory plan for {} sequences of {} tokens with {} drafts: its bytes do not fit "
                "64 bits",
                model_plan.num_sequences, model_plan.context_tokens, plan.num_drafts);
  }
  return {};
}

/// The drafter of a checkpoint that has one.
DrafterReport DrafterOf(const Checkpoint& checkpoint) {
  DrafterReport report = MakeDrafterReport(*checkpoint.drafter(), checkpoint.drafter_directory(),
                                           checkpoint.drafter_census().parts);
  const auto [first, last] = checkpoint.shards().FolderShards(kDrafterFolder);
  report.num_shards = last - first;
  for (std::size_t i = first; i < last; ++i) {
    report.num_file_bytes += checkpoint.shards().ShardBytes(i);
  }
  return report;
}

/// From a config alone.
Status AddDrafter(const std::string& path, InspectReport* report) {
  MEGALITH_ASSIGN_OR_RETURN(const model::DrafterConfig config,
                            model::ReadDrafterConfig(path, report->model));
  report->drafter =
      MakeDrafterReport(config.drafter, path,
                        model::CountTensors(model::MakeDrafterTensorRules(config.drafter), false));
  report->warnings.insert(report->warnings.end(), config.warnings.begin(), config.warnings.end());
  return {};
}

bool HasShardFiles(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return true;
  }
  return false;
}

}  // namespace

model::StoredSize InspectReport::stored() const {
  std::array<model::StoredSize, model::kNumParts> sizes = {};
  for (std::size_t i = 0; i < parts.size(); ++i) sizes[i] = parts[i].stored;
  return model::Total(sizes);
}

std::uint64_t InspectReport::parameters_per_token() const {
  std::uint64_t sum = 0;
  for (const PartReport& part : parts) sum = SaturatingAdd(sum, part.parameters_per_token);
  return sum;
}

std::uint64_t InspectReport::bytes_per_token() const {
  std::uint64_t sum = 0;
  for (const PartReport& part : parts) sum = SaturatingAdd(sum, part.bytes_per_token);
  return sum;
}

std::uint64_t InspectReport::dense_bytes_per_token() const {
  return bytes_per_token() -
         parts[static_cast<std::size_t>(model::Part::kExperts)].bytes_per_token -
         parts[static_cast<std::size_t>(model::Part::kEmbedding)].bytes_per_token;
}

namespace {

Result<InspectReport> ReportCheckpoint(const Checkpoint& checkpoint,
                                       const InspectOptions& options) {
  const Census& census = checkpoint.census();
  MEGALITH_ASSIGN_OR_RETURN(
      InspectReport report,
      MakeReport(checkpoint.model(), checkpoint.directory(), census.parts, options));
  const ShardSet& shards = checkpoint.shards();
  FilesReport files;
  files.num_shards = shards.FolderShards(kModelFolder).second;
  for (std::size_t i = 0; i < files.num_shards; ++i) files.num_file_bytes += shards.ShardBytes(i);
  files.num_present = shards.FolderTensors(kModelFolder).second;
  files.num_skipped = census.num_skipped;
  files.skipped_bytes = census.skipped_bytes;
  files.num_unknown = census.num_unknown;
  files.num_mxfp4_matrices = census.num_mxfp4_matrices;
  files.num_bf16_matrices = census.num_bf16_matrices;
  files.prefix = checkpoint.prefix();
  report.files = std::move(files);
  if (checkpoint.drafter() != nullptr) report.drafter = DrafterOf(checkpoint);
  report.warnings = census.warnings;
  return report;
}

/// `drafter`: a directory or config.json; empty: none.
Result<InspectReport> InspectWithDrafter(const std::string& path, const std::string& drafter,
                                         const InspectOptions& options) {
  InspectReport report;
  std::error_code error;
  const bool has_shards = fs::is_directory(path, error) && HasShardFiles(path);
  if (has_shards) {
    const std::string opened = HasShardFiles(drafter) ? drafter : std::string();
    MEGALITH_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path, opened));
    MEGALITH_ASSIGN_OR_RETURN(report, ReportCheckpoint(checkpoint, options));
  } else {
    MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ReadConfig(path));
    MEGALITH_ASSIGN_OR_RETURN(report,
                              MakeReport(config.model, path,
                                         model::CountTensors(model::MakeTensorRules(config.model),
                                                             config.model.declares_mxfp4_experts),
                                         options));
    report.warnings = config.warnings;
  }
  if (!drafter.empty() && !report.drafter) {
    MEGALITH_RETURN_IF_ERROR(AddDrafter(drafter, &report));
  }
  MEGALITH_RETURN_IF_ERROR(AddDraftPlan(options, &report));
  return report;
}

}  // namespace

Result<InspectReport> Inspect(const std::string& path, const InspectOptions& options) {
  if (!options.drafter.empty() || !options.drafter_beside) {
    return InspectWithDrafter(path, options.drafter, options);
  }
  const std::string beside = (fs::path(path) / "dspark").string();
  std::error_code error;
  // A link to nothing is something, too.
  if (fs::symlink_status(beside, error).type() == fs::file_type::not_found) {
    return InspectWithDrafter(path, {}, options);
  }
  auto report = InspectWithDrafter(path, beside, options);
  if (report) return report;
  // Nobody asked for that drafter, so the model must not suffer for it.
  auto alone = InspectWithDrafter(path, {}, options);
  if (alone) alone->warnings.push_back("drafter not shown: " + report.error().message);
  return alone;
}

}  // namespace megalith::weights
