#include "exec/device_memory.h"

#include <algorithm>
#include <tuple>

#include "exec/memory_check.h"

namespace megalith::exec {
namespace {

using program::BufferKind;
using program::Program;
using program::Register;
using program::VerifiedProgram;

// Buffers that the host reads after a step.
constexpr std::string_view kLogitsName = "logits";
constexpr std::string_view kTokensName = "tokens";
constexpr std::string_view kDraftsName = "draft_tokens";
constexpr std::string_view kConfidenceName = "draft_confidence";

Status CheckSameState(const Program& a, const Program& b) {
  const auto& x = a.state;
  const auto& y = b.state;
  if (x.num_slots != y.num_slots || x.num_kda_layers != y.num_kda_layers ||
      x.num_mla_layers != y.num_mla_layers || x.page_tokens != y.page_tokens ||
      x.num_pages != y.num_pages || x.max_positions != y.max_positions ||
      x.states_per_slot != y.states_per_slot || x.draft_positions != y.draft_positions) {
    return Fail(ErrorCode::kUsage,
                "Programs for {} and {} rows lay out their state differently: slots {}/{}, KDA "
                "layers {}/{}, MLA layers {}/{}, page tokens {}/{}, pages {}/{}, positions {}/{}, "
                "states {}/{}, draft positions {}/{}",
                a.max_rows, b.max_rows, x.num_slots, y.num_slots, x.num_kda_layers,
                y.num_kda_layers, x.num_mla_layers, y.num_mla_layers, x.page_tokens, y.page_tokens,
                x.num_pages, y.num_pages, x.max_positions, y.max_positions, x.states_per_slot,
                y.states_per_slot, x.draft_positions, y.draft_positions);
  }
  if (a.vocab_size != b.vocab_size || a.num_workers != b.num_workers ||
      a.activation_dtype != b.activation_dtype || a.hidden_size != b.hidden_size) {
    return Fail(ErrorCode::kUsage,
                "Programs for {} and {} rows do not belong together: vocabulary {}/{}, workers "
                "{}/{}, activations {}/{}, hidden size {}/{}",
                a.max_rows, b.max_rows, a.vocab_size, b.vocab_size, a.num_workers, b.num_workers,
                DTypeName(a.activation_dtype), DTypeName(b.activation_dtype), a.hidden_size,
                b.hidden_size);
  }
  return {};
}

Result<Arena> AllocateOrEmpty(std::int64_t bytes, HugePages mode) {
  if (bytes == 0) return Arena();
  return Arena::Allocate(static_cast<std::size_t>(bytes), mode);
}

/// Of extents that are not negative. kOutOfMemory if it is more elements than any machine holds.
Result<std::int64_t> Product(std::initializer_list<std::int64_t> extents) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 56;
  std::int64_t product = 1;
  for (const std::int64_t extent : extents) {
    if (extent > 0 && product > kMostElements / extent) {
      return Fail(ErrorCode::kOutOfMemory, "state of {} elements cannot be held",
                  fmt::join(extents, " x "));
    }
    product *= extent;
  }
  return product;
}

/// The buffer of that name, or kNone; kBadProgram if it is of another kind.
Result<std::uint32_t> FindOutput(const Program& program, std::string_view name, BufferKind kind,
                                 DType dtype, std::int64_t columns) {
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    const program::Buffer& buffer = program.buffers[i];
    if (buffer.name != name) continue;
    if (buffer.kind == kind && buffer.dtype == dtype && buffer.columns == columns) {
      return static_cast<std::uint32_t>(i);
    }
    return Fail(ErrorCode::kBadProgram, "buffer {}: {} of {} expected, {} of {} found", name,
                columns, DTypeName(dtype), buffer.columns, DTypeName(buffer.dtype));
  }
  return program::kNone;
}

program::StateLayout LayoutOf(const std::vector<VerifiedProgram>& programs) {
  return programs.front()->state;
}

}  // namespace

std::span<const std::byte> ProgramMemory::Bytes(std::uint32_t buffer) const {
  return {buffers_[buffer].base,
          static_cast<std::size_t>(program::BufferBytes(program().buffers[buffer]))};
}

std::uint32_t ProgramMemory::FindBuffer(std::string_view name) const {
  const auto& buffers = program().buffers;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].name == name) return static_cast<std::uint32_t>(i);
  }
  return program::kNone;
}

DeviceMemory::DeviceMemory(std::vector<VerifiedProgram> programs)
    : programs_(std::move(programs)), sequences_(LayoutOf(programs_)) {}

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::Create(std::vector<VerifiedProgram> programs,
                                                           HugePages huge_pages) {
  if (programs.empty()) return Fail(ErrorCode::kUsage, "no Program to run");
  std::sort(programs.begin(), programs.end(), [](const auto& a, const auto& b) {
    const auto size = [](const Program& of) {
      return std::tuple(of.max_rows, of.draft.max_runs, of.draft.num_drafts, of.max_logit_rows);
    };
    return size(*a) < size(*b);
  });
  for (const VerifiedProgram& program : programs) {
    MEGALITH_RETURN_IF_ERROR(CheckSameState(*programs.front(), *program));
  }
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(std::move(programs)));
  MEGALITH_RETURN_IF_ERROR(memory->DescribeState());
  MEGALITH_RETURN_IF_ERROR(memory->Allocate(huge_pages));
  MEGALITH_RETURN_IF_ERROR(memory->ResolveBuffers());

  const Program& first = *memory->programs_.front();
  ExecutorLimits& limits = memory->limits_;
  limits.num_slots = first.state.num_slots;
  limits.max_positions = first.state.max_positions;
  limits.vocab_size = first.vocab_size;
  for (const VerifiedProgram& program : memory->programs_) {
    limits.max_rows = std::max(limits.max_rows, program->max_rows);
    limits.max_logit_rows = std::max(limits.max_logit_rows, program->max_logit_rows);
    limits.max_next_drafts = std::max(limits.max_next_drafts, program->draft.num_drafts);
  }
  limits.max_drafts = first.state.states_per_slot - 1;
  const auto max_rows = static_cast<std::size_t>(limits.max_rows);
  StepRows& rows = memory->rows_;
  rows.runs.reserve(max_rows);
  rows.first_row.reserve(max_rows);
  rows.token.resize(max_rows);
  rows.slot.resize(max_rows);
  rows.position.resize(max_rows);
  const auto max_logit_rows = static_cast<std::size_t>(limits.max_logit_rows);
  rows.logit_rows.resize(max_logit_rows);
  rows.logit_run.resize(max_logit_rows);
  rows.first_logit_row.reserve(max_rows);
  rows.draft_run.reserve(max_rows);
  memory->ReserveOutput();
  return memory;
}

DeviceMemory::StateArena* DeviceMemory::StateFor(BufferKind kind) {
  switch (kind) {
    case BufferKind::kKdaState:
      return &kda_;
    case BufferKind::kConvState:
      return &conv_;
    case BufferKind::kMlaCache:
      return &cache_;
    case BufferKind::kDraftCache:
      return &draft_;
    default:
      return nullptr;
  }
}

Status DeviceMemory::DescribeState() {
  std::int64_t num_draft_layers = 0;
  for (const VerifiedProgram& program : programs_) {
    num_draft_layers = std::count_if(
        program->buffers.begin(), program->buffers.end(),
        [](const program::Buffer& buffer) { return buffer.kind == BufferKind::kDraftCache; });
    for (const program::Buffer& buffer : program->buffers) {
      StateArena* state = StateFor(buffer.kind);
      if (state == nullptr) continue;
      if (state->columns != 0 &&
          (state->columns != buffer.columns || state->dtype != buffer.dtype)) {
        return Fail(ErrorCode::kUsage,
                    "state {}: {} elements of {} in one place, {} of {} in another", buffer.name,
                    state->columns, DTypeName(state->dtype), buffer.columns,
                    DTypeName(buffer.dtype));
      }
      state->columns = buffer.columns;
      state->dtype = buffer.dtype;
    }
  }
  const program::StateLayout& layout = programs_.front()->state;
  for (StateArena* state : {&kda_, &conv_}) {
    state->state_stride = state->columns;
    MEGALITH_ASSIGN_OR_RETURN(state->layer_stride,
                              Product({layout.states_per_slot, state->state_stride}));
    MEGALITH_ASSIGN_OR_RETURN(state->slot_stride,
                              Product({layout.num_kda_layers, state->layer_stride}));
    MEGALITH_ASSIGN_OR_RETURN(state->elements, Product({layout.num_slots, state->slot_stride}));
  }
  MEGALITH_ASSIGN_OR_RETURN(draft_.slot_stride, Product({layout.draft_positions, draft_.columns}));
  MEGALITH_ASSIGN_OR_RETURN(draft_.layer_stride, Product({layout.num_slots, draft_.slot_stride}));
  MEGALITH_ASSIGN_OR_RETURN(draft_.elements, Product({num_draft_layers, draft_.layer_stride}));
  MEGALITH_ASSIGN_OR_RETURN(cache_.layer_stride,
                            Product({layout.num_pages, layout.page_tokens, cache_.columns}));
  MEGALITH_ASSIGN_OR_RETURN(cache_.elements, Product({layout.num_mla_layers, cache_.layer_stride}));
  return {};
}

Status DeviceMemory::Allocate(HugePages huge_pages) {
  for (const VerifiedProgram& program : programs_) {
    sizes_.activations = std::max(sizes_.activations, program->activation_arena_bytes);
  }
  sizes_.kda_state = kda_.bytes();
  sizes_.conv_state = conv_.bytes();
  sizes_.mla_cache = cache_.bytes();
  sizes_.draft_cache = draft_.bytes();
  MEGALITH_RETURN_IF_ERROR(CheckMemory("activations and state", sizes_.Total()));
  MEGALITH_ASSIGN_OR_RETURN(activations_, AllocateOrEmpty(sizes_.activations, huge_pages));
  for (StateArena* state : {&kda_, &conv_, &cache_, &draft_}) {
    MEGALITH_ASSIGN_OR_RETURN(state->arena, AllocateOrEmpty(state->bytes(), huge_pages));
  }
  return {};
}

Status DeviceMemory::ResolveBuffers() {
  for (const VerifiedProgram& program : programs_) {
    ProgramMemory memory(program);
    std::int64_t draft_layer = 0;
    for (const program::Buffer& buffer : program->buffers) {
      ProgramMemory::Buffer resolved;
      resolved.row_stride = buffer.row_stride;
      if (const StateArena* state = StateFor(buffer.kind)) {
        resolved.base = state->arena.data();
        if (state == &draft_) {
          resolved.base += draft_layer++ * state->layer_stride * DTypeBytes(state->dtype);
        }
        resolved.slot_stride = state->slot_stride;
        resolved.layer_stride = state->layer_stride;
        resolved.state_stride = state->state_stride;
        resolved.row_stride = buffer.columns;
      } else if (buffer.kind != BufferKind::kStepInput && buffer.kind != BufferKind::kMailbox) {
        const std::int64_t end = buffer.offset + program::BufferBytes(buffer);
        if (buffer.offset < 0 || buffer.offset % 64 != 0 || end > program->activation_arena_bytes) {
          return Fail(ErrorCode::kBadProgram,
                      "buffer {}: bytes {}..{} do not lie inside the arena of {}", buffer.name,
                      buffer.offset, end, program->activation_arena_bytes);
        }
        resolved.base = activations_.data() + buffer.offset;
      }
      memory.buffers_.push_back(resolved);
    }
    memory.logits_buffer_ = memory.FindBuffer(kLogitsName);
    if (memory.logits_buffer_ == program::kNone) {
      return Fail(ErrorCode::kBadProgram, "no buffer is called {}", kLogitsName);
    }
    const program::Buffer& logits = program->buffers[memory.logits_buffer_];
    if (logits.kind != BufferKind::kLogitRows || logits.dtype != DType::kF32 ||
        logits.columns != program->vocab_size) {
      return Fail(ErrorCode::kBadProgram,
                  "buffer {}: f32 logit rows of {} expected, {} of {} found", kLogitsName,
                  program->vocab_size, DTypeName(logits.dtype), logits.columns);
    }
    MEGALITH_ASSIGN_OR_RETURN(
        memory.tokens_buffer_,
        FindOutput(*program, kTokensName, BufferKind::kLogitRows, DType::kI32, 1));
    MEGALITH_ASSIGN_OR_RETURN(memory.drafts_buffer_,
                              FindOutput(*program, kDraftsName, BufferKind::kDraftRuns, DType::kI32,
                                         program->draft.num_drafts));
    MEGALITH_ASSIGN_OR_RETURN(memory.confidence_buffer_,
                              FindOutput(*program, kConfidenceName, BufferKind::kDraftRuns,
                                         DType::kF32, program->draft.num_drafts));
    if (memory.tokens_buffer_ == program::kNone) {
      return Fail(ErrorCode::kBadProgram, "no buffer is called {}", kTokensName);
    }
    if (program->draft.max_runs > 0 && memory.drafts_buffer_ == program::kNone) {
      return Fail(ErrorCode::kBadProgram, "no buffer is called {}", kDraftsName);
    }
    program_memory_.push_back(std::move(memory));
  }
  return {};
}

Status DeviceMemory::CheckStep(const StepInput& input, std::size_t* program_index) const {
  const std::size_t num_rows = input.tokens.size();
  if (num_rows == 0 || num_rows > static_cast<std::size_t>(limits_.max_rows)) {
    return Fail(ErrorCode::kOutOfRange, "step of {} rows, 1 to {} expected", num_rows,
                limits_.max_rows);
  }
  std::int64_t rows_of_runs = 0;
  for (const Run& run : input.runs) rows_of_runs += run.count;
  if (rows_of_runs != static_cast<std::int64_t>(num_rows)) {
    return Fail(ErrorCode::kUsage, "the runs have {} rows, but {} tokens are given", rows_of_runs,
                num_rows);
  }
  for (std::size_t row = 0; row < num_rows; ++row) {
    if (input.tokens[row] < 0 || input.tokens[row] >= limits_.vocab_size) {
      return Fail(ErrorCode::kOutOfRange, "row {}: token {} is outside the vocabulary of {}", row,
                  input.tokens[row], limits_.vocab_size);
    }
  }
  MEGALITH_RETURN_IF_ERROR(CheckRunsTokens(input));
  auto num_logit_rows = static_cast<std::int64_t>(input.logit_rows.size());
  std::int32_t draft_runs = 0;
  std::int32_t next_drafts = 0;
  for (const Run& run : input.runs) {
    if (run.wants_token) num_logit_rows += run.num_drafts + 1;
    if (run.next_drafts > 0) ++draft_runs;
    next_drafts = std::max(next_drafts, run.next_drafts);
  }
  if (num_logit_rows > limits_.max_logit_rows) {
    return Fail(ErrorCode::kOutOfRange, "logits of {} rows, at most {} expected", num_logit_rows,
                limits_.max_logit_rows);
  }
  for (const std::int32_t row : input.logit_rows) {
    if (row < 0 || static_cast<std::size_t>(row) >= num_rows) {
      return Fail(ErrorCode::kOutOfRange, "logits of row {}, the step has {} rows", row, num_rows);
    }
  }
  for (std::size_t i = 0; i < programs_.size(); ++i) {
    const Program& program = *programs_[i];
    const auto bound = [&](Register value) {
      return program.registers[static_cast<std::size_t>(value)].max_value;
    };
    const auto rows = static_cast<std::int64_t>(num_rows);
    const std::int64_t logit_rows = num_logit_rows;
    if (rows <= std::min<std::int64_t>(program.max_rows, bound(Register::kRows)) &&
        logit_rows <= std::min<std::int64_t>(program.max_logit_rows, bound(Register::kLogitRows)) &&
        draft_runs <= program.draft.max_runs && next_drafts <= program.draft.num_drafts) {
      *program_index = i;
      return {};
    }
  }
  return Fail(ErrorCode::kOutOfRange,
              "no Program takes {} rows with logits of {} and {} runs that draft {} tokens",
              num_rows, num_logit_rows, draft_runs, next_drafts);
}

/// Whether what runs want of tokens and drafts makes sense.
Status DeviceMemory::CheckRunsTokens(const StepInput& input) const {
  for (std::size_t i = 0; i < input.runs.size(); ++i) {
    const Run& run = input.runs[i];
    if (!run.wants_token && (run.num_drafts != 0 || run.next_drafts != 0)) {
      return Fail(ErrorCode::kUsage, "run {}: {} drafts and {} next ones, but it wants no token", i,
                  run.num_drafts, run.next_drafts);
    }
    if (run.num_drafts < 0 || run.num_drafts > limits_.max_drafts || run.next_drafts < 0 ||
        run.next_drafts > limits_.max_next_drafts) {
      return Fail(ErrorCode::kOutOfRange,
                  "run {}: {} drafts of at most {}, {} next ones of at most {}", i, run.num_drafts,
                  limits_.max_drafts, run.next_drafts, limits_.max_next_drafts);
    }
    const auto num_chosen = static_cast<std::size_t>(run.wants_token ? run.num_drafts + 1 : 0);
    if (!run.adjustments.empty() && run.adjustments.size() != num_chosen) {
      return Fail(ErrorCode::kUsage, "run {}: adjustments of {} logit rows, {} expected", i,
                  run.adjustments.size(), num_chosen);
    }
    for (const kernels::LogitAdjustment& adjustment : run.adjustments) {
      MEGALITH_RETURN_IF_ERROR(kernels::CheckAdjustment(adjustment, limits_.vocab_size));
    }
  }
  return {};
}

Result<std::size_t> DeviceMemory::BeginStep(const StepInput& input) {
  std::size_t program_index = 0;
  MEGALITH_RETURN_IF_ERROR(CheckStep(input, &program_index));
  MEGALITH_RETURN_IF_ERROR(sequences_.Begin(input.runs));

  rows_.num_rows = static_cast<std::int32_t>(input.tokens.size());
  rows_.runs.assign(input.runs.begin(), input.runs.end());
  rows_.first_row.clear();
  rows_.first_logit_row.clear();
  rows_.draft_run.clear();
  std::copy(input.tokens.begin(), input.tokens.end(), rows_.token.begin());
  std::size_t num_logit_rows = input.logit_rows.size();
  std::copy(input.logit_rows.begin(), input.logit_rows.end(), rows_.logit_rows.begin());
  std::fill_n(rows_.logit_run.begin(), num_logit_rows, -1);
  std::int32_t row = 0;
  for (std::size_t i = 0; i < input.runs.size(); ++i) {
    const Run& run = input.runs[i];
    const auto run_index = static_cast<std::int32_t>(i);
    rows_.first_row.push_back(row);
    for (std::int32_t j = 0; j < run.count; ++j, ++row) {
      rows_.slot[static_cast<std::size_t>(row)] = run.slot;
      rows_.position[static_cast<std::size_t>(row)] = run.first_position + j;
    }
    rows_.first_logit_row.push_back(run.wants_token ? static_cast<std::int32_t>(num_logit_rows)
                                                    : -1);
    for (std::int32_t j = run.num_drafts; run.wants_token && j >= 0; --j, ++num_logit_rows) {
      rows_.logit_rows[num_logit_rows] = row - 1 - j;
      rows_.logit_run[num_logit_rows] = run_index;
    }
    if (run.next_drafts > 0) rows_.draft_run.push_back(run_index);
  }
  rows_.num_logit_rows = static_cast<std::int32_t>(num_logit_rows);
  rows_.num_draft_runs = static_cast<std::int32_t>(rows_.draft_run.size());
  const std::int32_t block_rows = programs_[program_index]->draft.block_rows;
  registers_ = {1, rows_.num_rows,       rows_.num_logit_rows,
                0, rows_.num_draft_runs, std::int64_t{rows_.num_draft_runs} * block_rows};
  step_active_experts_ = 0;
  return program_index;
}

Acceptance DeviceMemory::Accept(std::size_t run_index, RowView<const std::int32_t> tokens) const {
  const Run& run = rows_.runs[run_index];
  const std::int32_t first = rows_.first_logit_row[run_index];
  const std::int32_t first_draft = rows_.first_row[run_index] + run.count - run.num_drafts;
  Acceptance acceptance;
  while (acceptance.num_accepted < run.num_drafts &&
         *tokens.Row(first + acceptance.num_accepted) ==
             rows_.token[static_cast<std::size_t>(first_draft + acceptance.num_accepted)]) {
    ++acceptance.num_accepted;
  }
  acceptance.token = *tokens.Row(first + acceptance.num_accepted);
  acceptance.position = run.first_position + run.count - run.num_drafts + acceptance.num_accepted;
  return acceptance;
}

void DeviceMemory::FinishStep(std::size_t program_index, bool succeeded) {
  if (succeeded) {
    CollectOutput(program_index);
    sequences_.Commit(rows_.runs, accepted_);
  } else {
    sequences_.Abandon(rows_.runs);
  }
}

void DeviceMemory::ReserveOutput() {
  const auto max_rows = static_cast<std::size_t>(limits_.max_rows);
  std::int32_t max_draft_runs = 0;
  for (const VerifiedProgram& program : programs_) {
    max_draft_runs = std::max(max_draft_runs, program->draft.max_runs);
  }
  const auto max_proposals =
      static_cast<std::size_t>(max_draft_runs) * static_cast<std::size_t>(limits_.max_next_drafts);
  tokens_.reserve(static_cast<std::size_t>(limits_.max_logit_rows));
  drafts_.reserve(max_proposals);
  confidence_.reserve(max_proposals);
  accepted_.reserve(max_rows);
  run_outputs_.reserve(max_rows);
}

/// Copies what the host wants out of the step's buffers, which the next step overwrites.
void DeviceMemory::CollectOutput(std::size_t program_index) {
  const ProgramMemory& memory = program_memory_[program_index];
  const auto tokens = memory.Rows<const std::int32_t>({memory.tokens_buffer_, 0, 0});
  tokens_.clear();
  for (std::int32_t row = 0; row < rows_.num_logit_rows; ++row) {
    tokens_.push_back(*tokens.Row(row));
  }
  const auto num_drafts = static_cast<std::size_t>(programs_[program_index]->draft.num_drafts);
  drafts_.clear();
  confidence_.clear();
  for (std::int32_t run = 0; run < rows_.num_draft_runs; ++run) {
    const auto drafts = memory.Rows<const std::int32_t>({memory.drafts_buffer_, 0, 0});
    drafts_.insert(drafts_.end(), drafts.Row(run), drafts.Row(run) + num_drafts);
    if (memory.confidence_buffer_ == program::kNone) continue;
    const auto confidence = memory.Rows<const float>({memory.confidence_buffer_, 0, 0});
    confidence_.insert(confidence_.end(), confidence.Row(run), confidence.Row(run) + num_drafts);
  }
  accepted_.assign(rows_.runs.size(), 0);
  run_outputs_.assign(rows_.runs.size(), {});
  std::size_t proposal = 0;
  for (std::size_t i = 0; i < rows_.runs.size(); ++i) {
    const Run& run = rows_.runs[i];
    if (!run.wants_token) continue;
    RunOutput& output = run_outputs_[i];
    output.first_logit_row = rows_.first_logit_row[i];
    output.num_accepted = accepted_[i] = Accept(i, tokens).num_accepted;
    output.tokens = std::span(tokens_).subspan(static_cast<std::size_t>(output.first_logit_row),
                                               static_cast<std::size_t>(run.num_drafts) + 1);
    if (run.next_drafts == 0) continue;
    const auto wanted = static_cast<std::size_t>(run.next_drafts);
    output.drafts = std::span(drafts_).subspan(proposal, wanted);
    if (!confidence_.empty()) output.confidence = std::span(confidence_).subspan(proposal, wanted);
    proposal += num_drafts;
  }
}

StepOutput DeviceMemory::Output(std::size_t program_index) const {
  const ProgramMemory& memory = program_memory_[program_index];
  const ProgramMemory::Buffer& buffer = memory.buffers_[memory.logits_buffer_];
  return StepOutput(reinterpret_cast<const float*>(buffer.base), buffer.row_stride,
                    rows_.num_logit_rows, limits_.vocab_size, run_outputs_);
}

std::span<std::byte> DeviceMemory::Elements(StateArena& state, std::int64_t first,
                                            std::int64_t count) {
  const std::int64_t element = DTypeBytes(state.dtype);
  return {state.arena.data() + first * element, static_cast<std::size_t>(count * element)};
}

/// What of a slot's sequence is its own and changes with every token. Lists of one length are alike
/// in all slots.
std::vector<std::span<std::byte>> DeviceMemory::CopiedParts(std::int32_t slot,
                                                            std::int32_t length) {
  const program::StateLayout& layout = programs_.front()->state;
  std::vector<std::span<std::byte>> parts;
  for (StateArena* state : {&kda_, &conv_}) {
    const std::int64_t first =
        slot * state->slot_stride + sequences_.StateIndex(slot) * state->state_stride;
    for (std::int64_t layer = 0; layer < layout.num_kda_layers; ++layer) {
      parts.push_back(Elements(*state, first + layer * state->layer_stride, state->columns));
    }
  }
  const std::int64_t positions = std::min(length, layout.draft_positions);
  for (std::int64_t first = 0; first < draft_.elements; first += draft_.layer_stride) {
    parts.push_back(
        Elements(draft_, first + slot * draft_.slot_stride, positions * draft_.columns));
  }
  return parts;
}

std::vector<std::span<std::byte>> DeviceMemory::PageContents(std::int32_t length,
                                                             std::span<const std::int32_t> pages) {
  const program::StateLayout& layout = programs_.front()->state;
  std::vector<std::span<std::byte>> contents;
  for (std::int64_t layer = 0; layer < layout.num_mla_layers; ++layer) {
    std::int64_t left = length;
    for (const std::int32_t page : pages) {
      const std::int64_t rows = std::min<std::int64_t>(left, layout.page_tokens);
      const std::int64_t first =
          layer * cache_.layer_stride + std::int64_t{page} * layout.page_tokens * cache_.columns;
      contents.push_back(Elements(cache_, first, rows * cache_.columns));
      left -= rows;
    }
  }
  return contents;
}

std::int64_t DeviceMemory::page_bytes() const {
  const program::StateLayout& layout = programs_.front()->state;
  return layout.num_mla_layers * layout.page_tokens * cache_.columns * DTypeBytes(cache_.dtype);
}

void DeviceMemory::CopyPage(Sequences::PageCopy copy) {
  if (copy.from < 0) return;
  const program::StateLayout& layout = programs_.front()->state;
  const std::int64_t elements = layout.page_tokens * cache_.columns;
  for (std::int64_t layer = 0; layer < layout.num_mla_layers; ++layer) {
    const std::int64_t base = layer * cache_.layer_stride;
    std::ranges::copy(Elements(cache_, base + copy.from * elements, elements),
                      Elements(cache_, base + copy.to * elements, elements).begin());
  }
}

Result<std::unique_ptr<Snapshot>> DeviceMemory::MakeSnapshot(std::int32_t length,
                                                             std::vector<std::int32_t> pages) {
  std::size_t bytes = 0;
  for (const auto& part : CopiedParts(0, length)) bytes += part.size();
  std::unique_ptr<Snapshot> snapshot(new Snapshot(*this, length, bytes, std::move(pages)));
  if (snapshot->copies_ == nullptr) {
    return Fail(ErrorCode::kOutOfMemory, "snapshot of {} tokens: {} bytes cannot be allocated",
                length, bytes);
  }
  return snapshot;
}

Result<std::unique_ptr<Snapshot>> DeviceMemory::Save(std::int32_t slot) {
  MEGALITH_ASSIGN_OR_RETURN(std::vector<std::int32_t> pages, sequences_.HoldPages(slot));
  const std::int32_t length = sequences_.Length(slot);
  MEGALITH_ASSIGN_OR_RETURN(auto snapshot, MakeSnapshot(length, std::move(pages)));
  std::byte* out = snapshot->copies_.get();
  for (const auto& part : CopiedParts(slot, length)) out = std::ranges::copy(part, out).out;
  return snapshot;
}

Result<std::unique_ptr<Snapshot>> DeviceMemory::NewSnapshot(std::int32_t length) {
  MEGALITH_ASSIGN_OR_RETURN(std::vector<std::int32_t> pages, sequences_.TakePages(length));
  return MakeSnapshot(length, std::move(pages));
}

Status DeviceMemory::Restore(const Snapshot& snapshot, std::int32_t slot) {
  const std::int32_t length = snapshot.length();
  MEGALITH_ASSIGN_OR_RETURN(const Sequences::PageCopy copy,
                            sequences_.Adopt(slot, length, snapshot.pages()));
  CopyPage(copy);
  const std::byte* from = snapshot.copies_.get();
  for (const auto& part : CopiedParts(slot, length)) {
    std::copy_n(from, part.size(), part.begin());
    from += part.size();
  }
  return {};
}

std::span<const float> DeviceMemory::KdaState(std::int32_t slot, std::int32_t state_index) const {
  const auto* base = reinterpret_cast<const float*>(kda_.arena.data());
  return {base + slot * kda_.slot_stride + state_index * kda_.layer_stride +
              sequences_.StateIndex(slot) * kda_.state_stride,
          static_cast<std::size_t>(kda_.columns)};
}

std::span<const std::byte> DeviceMemory::ConvState(std::int32_t slot,
                                                   std::int32_t state_index) const {
  const std::int64_t element = DTypeBytes(conv_.dtype);
  const std::int64_t offset = slot * conv_.slot_stride + state_index * conv_.layer_stride +
                              sequences_.StateIndex(slot) * conv_.state_stride;
  return {conv_.arena.data() + offset * element, static_cast<std::size_t>(conv_.columns * element)};
}

std::span<const std::byte> DeviceMemory::CacheRow(std::int32_t slot, std::int32_t state_index,
                                                  std::int32_t position) const {
  const std::int32_t page_tokens = programs_.front()->state.page_tokens;
  const std::int64_t page = sequences_.PageTable(slot)[position / page_tokens];
  const std::int64_t element = DTypeBytes(cache_.dtype);
  const std::int64_t offset = state_index * cache_.layer_stride +
                              (page * page_tokens + position % page_tokens) * cache_.columns;
  return {cache_.arena.data() + offset * element,
          static_cast<std::size_t>(cache_.columns * element)};
}

}  // namespace megalith::exec
