#include "program/compile/compile.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "base/align.h"
#include "kernels/layout.h"
#include "program/compile/builder.h"
#include "program/compile/fetch.h"
#include "program/compile/layers.h"
#include "program/compile/split_phases.h"
#include "program/compile/synchronize.h"

namespace megalith::program {
namespace {

constexpr std::array<std::int32_t, 9> kRowBuckets = {1, 2, 4, 8, 16, 64, 256, 1024, kMaxRowBucket};

Status CheckDraftOptions(const CompileOptions& options) {
  if (options.max_drafts < 0 || options.max_drafts > kMaxDrafts || options.num_drafts < 0 ||
      options.num_drafts > kMaxDrafts || options.draft_runs < 0) {
    return Fail(ErrorCode::kUsage,
                "compile: {} drafts per run and {} proposals, 0 to {} expected; {} drafting runs",
                options.max_drafts, options.num_drafts, kMaxDrafts, options.draft_runs);
  }
  if ((options.draft_runs > 0) != (options.num_drafts > 0) ||
      (options.draft_runs > 0 && options.drafter == nullptr)) {
    return Fail(ErrorCode::kUsage,
                "compile: {} drafting runs with {} proposals and {} drafter do not belong together",
                options.draft_runs, options.num_drafts, options.drafter == nullptr ? "no" : "a");
  }
  if (options.drafter != nullptr && options.num_drafts > options.drafter->MaxDrafts()) {
    return Fail(ErrorCode::kUsage, "compile: {} drafts asked for, the drafter proposes up to {}",
                options.num_drafts, options.drafter->MaxDrafts());
  }
  return {};
}

Status CheckOptions(const CompileOptions& options) {
  const auto at_least_one = [](std::string_view name, std::int64_t value) -> Status {
    if (value >= 1) return {};
    return Fail(ErrorCode::kUsage, "compile: {} must be at least 1, {} given", name, value);
  };
  MEGALITH_RETURN_IF_ERROR(at_least_one("workers", options.num_workers));
  MEGALITH_RETURN_IF_ERROR(at_least_one("rows", options.max_rows));
  MEGALITH_RETURN_IF_ERROR(at_least_one("logit rows", options.max_logit_rows));
  MEGALITH_RETURN_IF_ERROR(at_least_one("slots", options.num_slots));
  MEGALITH_RETURN_IF_ERROR(at_least_one("page tokens", options.page_tokens));
  MEGALITH_RETURN_IF_ERROR(at_least_one("positions", options.max_positions));
  MEGALITH_RETURN_IF_ERROR(at_least_one("store slots", options.store_slots));
  MEGALITH_RETURN_IF_ERROR(at_least_one("store slot bytes", options.store_slot_bytes));
  if (options.max_logit_rows > options.max_rows) {
    return Fail(ErrorCode::kUsage, "compile: {} logit rows asked for, but only {} rows",
                options.max_logit_rows, options.max_rows);
  }
  MEGALITH_RETURN_IF_ERROR(CheckDraftOptions(options));
  if (options.rank < 0 || options.rank >= options.ranks.NumRanks()) {
    return Fail(ErrorCode::kUsage, "compile: rank {} of {}", options.rank,
                options.ranks.NumRanks());
  }
  if (options.fast_prefill && options.activation_dtype != DType::kBf16) {
    return Fail(ErrorCode::kUsage, "compile: fast prefill computes with bf16 activations, {} given",
                DTypeName(options.activation_dtype));
  }
  if (options.activation_dtype != DType::kBf16 && options.activation_dtype != DType::kF32) {
    return Fail(ErrorCode::kUsage, "compile: activations are bf16 or f32, {} given",
                DTypeName(options.activation_dtype));
  }
  return {};
}

/// Config values that are well-formed but have no instructions yet.
Status CheckSupported(const model::Model& model) {
  if (model.CountLayers(model::FeedForward::kMoe) > 0 &&
      !model.moe.routed_expert_hidden_size.has_value()) {
    return Fail(
        ErrorCode::kUnsupported,
        "config.json: routed_expert_hidden_size null (experts at full width, without latent "
        "projections) is not supported yet");
  }
  return {};
}

/// That the drafter belongs to the model: what its reader has checked already, for callers without
/// one.
Status CheckDrafter(const model::Model& model, const model::Drafter* drafter) {
  if (drafter == nullptr) return {};
  const std::vector<std::int64_t>& layers = drafter->aux_layers;
  const bool ascending =
      std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
  if (layers.empty() || !ascending || layers.front() < 0 ||
      layers.back() >= static_cast<std::int64_t>(model.layers.size())) {
    return Fail(ErrorCode::kUnsupported, "drafter: ascending layers of 0 to {} expected, {} found",
                model.layers.size() - 1, fmt::join(layers, ", "));
  }
  if (drafter->hidden_size != model.hidden_size || drafter->vocab_size != model.vocab_size) {
    return Fail(ErrorCode::kUnsupported,
                "drafter: hidden size {} and vocabulary {} expected, {} and {} found",
                model.hidden_size, model.vocab_size, drafter->hidden_size, drafter->vocab_size);
  }
  return {};
}

std::string SegmentName(const model::Layer& layer) {
  return std::string(layer.mixer == model::Mixer::kKda ? "kda" : "mla") +
         (layer.feed_forward == model::FeedForward::kDense ? "_dense" : "_moe");
}

class Compiler {
 public:
  Compiler(const model::Model& model, const CompileOptions& options)
      : model_(model), options_(options), builder_(model, options) {}

  Program Run() {
    SetHeader();
    buffers_ = AddLayerBuffers(builder_);
    AddHandOverCounters();
    AddEmbedding();
    AddLayers();
    AddHead();
    AddDraft();
    Program& program = builder_.program;
    program.activation_arena_bytes = builder_.arena_high();
    return std::move(program);
  }

 private:
  void SetHeader() {
    Program& program = builder_.program;
    program.model_name = model_.family;
    program.num_workers = options_.num_workers;
    program.max_rows = options_.max_rows;
    program.max_logit_rows = options_.max_logit_rows;
    program.vocab_size = static_cast<std::int32_t>(model_.vocab_size);
    program.activation_dtype = options_.activation_dtype;
    program.situ_beta = model_.activation.situ_beta;
    program.situ_linear_beta = model_.activation.situ_linear_beta.value_or(0.0f);
    program.hidden_size = model_.hidden_size;
    SetSharding();
    program.weight_arena_bytes.assign(static_cast<std::size_t>(options_.num_workers), 0);
    program.store = {options_.store_slots, options_.store_slot_bytes};
    const std::int64_t pairs = options_.max_rows * model_.moe.num_experts_per_token;
    program.registers = {RegisterBound{1}, RegisterBound{options_.max_rows},
                         RegisterBound{options_.max_logit_rows},
                         RegisterBound{std::min(model_.moe.num_experts, pairs)}};
    SetDraftShape();
    StateLayout& state = program.state;
    state.num_slots = options_.num_slots;
    state.num_kda_layers = static_cast<std::int32_t>(model_.CountLayers(model::Mixer::kKda));
    state.num_mla_layers = static_cast<std::int32_t>(model_.CountLayers(model::Mixer::kMla));
    state.page_tokens = options_.page_tokens;
    state.max_positions = options_.max_positions;
    state.num_pages = options_.num_pages > 0 ? options_.num_pages : PagesOfAllSlots();
    state.states_per_slot = options_.max_drafts + 1;
    if (options_.drafter != nullptr) {
      state.draft_positions = static_cast<std::int32_t>(
          options_.drafter->ContextPositions(options_.max_positions, options_.max_drafts));
    }
  }

  void SetSharding() {
    Program& program = builder_.program;
    const RankLayout& ranks = options_.ranks;
    Sharding& sharding = program.sharding;
    sharding.rank = options_.rank;
    sharding.num_ranks = ranks.NumRanks();
    sharding.expert_groups = ranks.expert_parallel;
    sharding.first_kda_head = builder_.OwnHeads(model_.kda.num_heads).begin;
    if (options_.drafter != nullptr) {
      sharding.first_draft_head = builder_.OwnHeads(options_.drafter->num_key_value_heads).begin;
    }
    if (ranks.NumRanks() == 1) return;
    AddMailbox("all_ranks", 0, ranks.NumRanks());
    if (ranks.tensor_parallel > 1 && ranks.expert_parallel > 1) {
      AddMailbox("group", sharding.Group() * ranks.tensor_parallel, ranks.tensor_parallel);
    }
  }

  void AddMailbox(std::string name, std::int32_t first_rank, std::int32_t num_ranks) {
    const std::uint32_t buffer =
        builder_.AddBuffer(std::move(name), BufferKind::kMailbox, DType::kI32, 1);
    builder_.program.mailboxes.push_back({buffer, first_rank, num_ranks});
    num_exchanges_.push_back(0);
  }

  std::int32_t PagesOfAllSlots() const {
    return options_.num_slots * CeilDiv(options_.max_positions, options_.page_tokens);
  }

  void SetDraftShape() {
    if (options_.drafter == nullptr) return;
    const model::Drafter& drafter = *options_.drafter;
    Program& program = builder_.program;
    DraftShape& draft = program.draft;
    draft.num_captures = static_cast<std::int32_t>(drafter.aux_layers.size());
    if (options_.draft_runs == 0) return;
    draft.max_runs = options_.draft_runs;
    draft.num_drafts = options_.num_drafts;
    draft.first_slot = drafter.sample_from_anchor ? 0 : 1;
    draft.mask_token = static_cast<std::int32_t>(drafter.mask_token_id);
    // Slots behind the last wanted one matter only to those that see them.
    const bool causal =
        std::all_of(drafter.layers.begin(), drafter.layers.end(),
                    [](const model::DrafterLayer& layer) { return layer.causal_in_block; });
    draft.block_rows = causal ? draft.first_slot + draft.num_drafts
                              : static_cast<std::int32_t>(drafter.block_size);
    program.registers[static_cast<std::size_t>(Register::kDraftRuns)] = {draft.max_runs};
    program.registers[static_cast<std::size_t>(Register::kDraftRows)] = {
        std::int64_t{draft.max_runs} * draft.block_rows};
  }

  void AddHandOverCounters() {
    Program& program = builder_.program;
    start_ = static_cast<std::uint32_t>(program.counters.size());
    program.counters.push_back({"start", CounterScope::kHost, kNone, 1});
    done_ = static_cast<std::uint32_t>(program.counters.size());
    program.counters.push_back({"done", CounterScope::kDone, kNone, options_.num_workers});
    hand_over_ = static_cast<std::uint32_t>(program.counters.size());
    program.counters.push_back({"hand_over", CounterScope::kProgram, kNone, options_.num_workers});
  }

  void AddEmbedding() {
    SegmentBuilder segment(builder_, "embedding");
    EmitEmbedding(segment, buffers_);
    AddVisit(AddSegment(segment), model::Layer{}, -1);
  }

  void AddLayers() {
    std::map<std::string, std::uint32_t> segments;
    for (std::size_t layer = 0; layer < model_.layers.size(); ++layer) {
      const model::Layer& spec = model_.layers[layer];
      const std::string name = SegmentName(spec);
      if (segments.count(name) == 0) segments[name] = AddLayerSegment(spec);
      AddVisit(segments[name], spec, static_cast<std::int32_t>(layer));
    }
  }

  std::uint32_t AddLayerSegment(const model::Layer& layer) {
    SegmentBuilder segment(builder_, SegmentName(layer));
    const SharedBuffers& shared = buffers_.shared;
    EmitResidualNorm(segment, buffers_,
                     {"mixer_norm", "layers.{layer}.self_attention_res",
                      "layers.{layer}.input_layernorm.weight"},
                     shared.prefix, shared.mixer_in, true);
    if (layer.mixer == model::Mixer::kKda) {
      EmitKda(segment, buffers_);
    } else {
      EmitMla(segment, buffers_);
    }
    EmitResidualNorm(
        segment, buffers_,
        {"ffn_norm", "layers.{layer}.mlp_res", "layers.{layer}.post_attention_layernorm.weight"},
        shared.prefix_mid, shared.ffn_in, false);
    if (layer.feed_forward == model::FeedForward::kDense) {
      EmitDenseFeedForward(segment, buffers_);
    } else {
      EmitMoe(segment, buffers_);
    }
    return AddSegment(segment);
  }

  void AddHead() {
    SegmentBuilder segment(builder_, "head");
    EmitHead(segment, buffers_);
    if (options_.draft_runs == 0) EmitStepEnd(segment);
    AddVisit(AddSegment(segment), model::Layer{}, -1);
  }

  void AddDraft() {
    if (options_.draft_runs == 0) return;
    for (std::size_t layer = 0; layer < options_.drafter->layers.size(); ++layer) {
      SegmentBuilder segment(builder_, fmt::format("draft_layer_{}", layer));
      EmitDraftLayer(segment, buffers_, layer);
      AddVisit(AddSegment(segment), model::Layer{}, -1);
    }
    SegmentBuilder head(builder_, "draft_head");
    EmitDraftHead(head, buffers_);
    AddVisit(AddSegment(head), model::Layer{}, -1);
    SegmentBuilder token(builder_, "draft_token");
    EmitDraftToken(token, buffers_);
    const std::uint32_t token_segment = AddSegment(token);
    for (std::int32_t slot = 0; slot < options_.num_drafts; ++slot) {
      AddVisit(token_segment, model::Layer{}, -1);
      Visit& visit = builder_.program.visits.back();
      visit.draft_slot = slot;
      if (slot > 0) ShareWeights(visit, builder_.program.visits.end()[-2]);
    }
    SegmentBuilder end(builder_, "end");
    EmitStepEnd(end);
    AddVisit(AddSegment(end), model::Layer{}, -1);
  }

  /// The visit binds what the one before it bound; its own place in the arenas is given back.
  void ShareWeights(Visit& visit, const Visit& earlier) {
    Program& program = builder_.program;
    program.weight_arena_bytes = visit.weight_base;
    program.vector_arena_bytes = visit.vector_base;
    visit.weight_base = earlier.weight_base;
    visit.expert_base = earlier.expert_base;
    visit.vector_base = earlier.vector_base;
    visit.shares_weights = true;
  }

  /// Orders, schedules and stores a segment. Every visit begins by waiting for the previous one and
  /// ends by handing over to the next.
  std::uint32_t AddSegment(SegmentBuilder& segment) {
    if (options_.barrier_after_each_op) {
      SplitPhasesByOperation(segment);
      SynchronizeWithBarriers(segment);
    } else {
      Synchronize(segment);
    }
    Program& program = builder_.program;
    for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
      Stream& stream = segment.segment.streams[worker];
      std::vector<Instruction>& instructions = stream.instructions;
      for (const PhasedInstruction& item : segment.streams[worker]) {
        instructions.push_back(item.instruction);
      }
      if (!instructions.empty() && instructions.front().opcode == Opcode::kStepBegin) {
        instructions.front().wait_counter = start_;
        instructions.front().wait_amount = 1;
      } else {
        Instruction wait;
        wait.wait_counter = hand_over_;
        wait.wait_amount = options_.num_workers;
        instructions.insert(instructions.begin(), wait);
      }
      Instruction hand_over;
      hand_over.signal_counter = hand_over_;
      hand_over.signal_amount = 1;
      const bool ends_step = instructions.back().opcode == Opcode::kStepEnd;
      if (ends_step) {
        instructions.back().signal_counter = done_;
        instructions.back().signal_amount = 1;
      }
      instructions.insert(ends_step ? instructions.end() - 1 : instructions.end(), hand_over);
      if (options_.barrier_after_each_op) {
        ScheduleFetchesInPlace(stream);
      } else {
        ScheduleFetches(program, stream);
      }
    }
    program.segments.push_back(std::move(segment.segment));
    visits_of_segment_.push_back(0);
    return static_cast<std::uint32_t>(program.segments.size() - 1);
  }

  void AddVisit(std::uint32_t segment_index, const model::Layer& layer, std::int32_t layer_index) {
    Program& program = builder_.program;
    const Segment& segment = program.segments[segment_index];
    Visit visit;
    visit.segment = segment_index;
    visit.layer = layer_index;
    visit.ordinal = visits_of_segment_[segment_index]++;
    visit.num_blocks = num_blocks_;
    visit.vector_base = program.vector_arena_bytes;
    program.vector_arena_bytes += segment.vector_bytes;
    if (layer_index >= 0) {
      visit.pushes_block = layer.pushes_block;
      if (layer.pushes_block) ++num_blocks_;
      visit.capture_index = CaptureIndex(layer_index);
      visit.state_index = layer.mixer == model::Mixer::kKda ? kda_layers_++ : mla_layers_++;
    }
    visit.first_exchange = num_exchanges_;
    for (std::size_t mailbox = 0; mailbox < num_exchanges_.size(); ++mailbox) {
      num_exchanges_[mailbox] += CountExchanges(segment, static_cast<std::int64_t>(mailbox));
    }
    for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
      const Stream& stream = segment.streams[worker];
      std::int64_t& arena = program.weight_arena_bytes[worker];
      visit.weight_base.push_back(arena);
      arena += stream.weight_bytes;
      visit.expert_base.push_back(arena);
      arena += stream.expert_stride_bytes * OwnExperts();
    }
    program.visits.push_back(std::move(visit));
  }

  std::int64_t OwnExperts() const {
    return SplitEvenly(
               model_.moe.num_experts,
               options_.ranks
                   .expert_parallel)[static_cast<std::size_t>(builder_.program.sharding.Group())]
        .size();
  }

  std::int32_t CaptureIndex(std::int32_t layer) const {
    if (options_.drafter == nullptr) return -1;
    const std::vector<std::int64_t>& layers = options_.drafter->aux_layers;
    const auto found = std::find(layers.begin(), layers.end(), layer);
    return found == layers.end() ? -1 : static_cast<std::int32_t>(found - layers.begin());
  }

  const model::Model& model_;
  const CompileOptions& options_;
  ProgramBuilder builder_;
  LayerBuffers buffers_;
  std::uint32_t start_ = kNone;
  std::uint32_t done_ = kNone;
  std::uint32_t hand_over_ = kNone;
  std::vector<std::int32_t> visits_of_segment_;
  std::int32_t num_blocks_ = 0;
  std::int32_t kda_layers_ = 0;
  std::int32_t mla_layers_ = 0;
  std::vector<std::int64_t> num_exchanges_;  // so far, by mailbox
};

}  // namespace

Result<Program> Compile(const model::Model& model, const CompileOptions& options) {
  MEGALITH_RETURN_IF_ERROR(CheckOptions(options));
  MEGALITH_RETURN_IF_ERROR(CheckSupported(model));
  MEGALITH_RETURN_IF_ERROR(CheckDrafter(model, options.drafter));
  MEGALITH_RETURN_IF_ERROR(CheckRankLayout(model, options.ranks));
  return Compiler(model, options).Run();
}

std::int32_t RowBucket(std::int32_t rows) {
  return *std::lower_bound(kRowBuckets.begin(), kRowBuckets.end() - 1, rows);
}

}  // namespace megalith::program
