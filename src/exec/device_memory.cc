#include "exec/device_memory.h"

#include <algorithm>

#include "exec/memory_check.h"

namespace megalith::exec {
namespace {

using program::BufferKind;
using program::Program;
using program::Register;
using program::VerifiedProgram;

constexpr std::string_view kLogitsName = "logits";

Status CheckSameState(const Program& a, const Program& b) {
  const auto& x = a.state;
  const auto& y = b.state;
  if (x.num_slots != y.num_slots || x.num_kda_layers != y.num_kda_layers ||
      x.num_mla_layers != y.num_mla_layers || x.page_tokens != y.page_tokens ||
      x.num_pages != y.num_pages || x.max_positions != y.max_positions) {
    return Fail(ErrorCode::kUsage,
                "Programs for {} and {} rows lay out their state differently: slots {}/{}, KDA "
                "layers {}/{}, MLA layers {}/{}, page tokens {}/{}, pages {}/{}, positions {}/{}",
                a.max_rows, b.max_rows, x.num_slots, y.num_slots, x.num_kda_layers,
                y.num_kda_layers, x.num_mla_layers, y.num_mla_layers, x.page_tokens, y.page_tokens,
                x.num_pages, y.num_pages, x.max_positions, y.max_positions);
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
    return std::pair(a->max_rows, a->max_logit_rows) < std::pair(b->max_rows, b->max_logit_rows);
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
  }
  const auto max_rows = static_cast<std::size_t>(limits.max_rows);
  StepRows& rows = memory->rows_;
  rows.runs.reserve(max_rows);
  rows.first_row.reserve(max_rows);
  rows.token.resize(max_rows);
  rows.slot.resize(max_rows);
  rows.position.resize(max_rows);
  rows.logit_rows.resize(static_cast<std::size_t>(limits.max_logit_rows));
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
    default:
      return nullptr;
  }
}

Status DeviceMemory::DescribeState() {
  for (const VerifiedProgram& program : programs_) {
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
    state->layer_stride = state->columns;
    MEGALITH_ASSIGN_OR_RETURN(state->slot_stride,
                              Product({layout.num_kda_layers, state->layer_stride}));
    MEGALITH_ASSIGN_OR_RETURN(state->elements, Product({layout.num_slots, state->slot_stride}));
  }
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
  MEGALITH_RETURN_IF_ERROR(CheckMemory("activations and state", sizes_.Total()));
  MEGALITH_ASSIGN_OR_RETURN(activations_, AllocateOrEmpty(sizes_.activations, huge_pages));
  for (StateArena* state : {&kda_, &conv_, &cache_}) {
    MEGALITH_ASSIGN_OR_RETURN(state->arena, AllocateOrEmpty(state->bytes(), huge_pages));
  }
  return {};
}

Status DeviceMemory::ResolveBuffers() {
  for (const VerifiedProgram& program : programs_) {
    ProgramMemory memory(program);
    for (const program::Buffer& buffer : program->buffers) {
      ProgramMemory::Buffer resolved;
      resolved.row_stride = buffer.row_stride;
      if (const StateArena* state = StateFor(buffer.kind)) {
        resolved.base = state->arena.data();
        resolved.slot_stride = state->slot_stride;
        resolved.layer_stride = state->layer_stride;
        resolved.row_stride = buffer.columns;
      } else if (buffer.kind != BufferKind::kStepInput) {
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
  if (input.logit_rows.size() > static_cast<std::size_t>(limits_.max_logit_rows)) {
    return Fail(ErrorCode::kOutOfRange, "logits of {} rows, at most {} expected",
                input.logit_rows.size(), limits_.max_logit_rows);
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
    const auto logit_rows = static_cast<std::int64_t>(input.logit_rows.size());
    if (rows <= std::min<std::int64_t>(program.max_rows, bound(Register::kRows)) &&
        logit_rows <= std::min<std::int64_t>(program.max_logit_rows, bound(Register::kLogitRows))) {
      *program_index = i;
      return {};
    }
  }
  return Fail(ErrorCode::kOutOfRange, "no Program takes {} rows with logits of {}", num_rows,
              input.logit_rows.size());
}

Result<std::size_t> DeviceMemory::BeginStep(const StepInput& input) {
  std::size_t program_index = 0;
  MEGALITH_RETURN_IF_ERROR(CheckStep(input, &program_index));
  MEGALITH_RETURN_IF_ERROR(sequences_.Begin(input.runs));

  rows_.num_rows = static_cast<std::int32_t>(input.tokens.size());
  rows_.num_logit_rows = static_cast<std::int32_t>(input.logit_rows.size());
  rows_.runs.assign(input.runs.begin(), input.runs.end());
  rows_.first_row.clear();
  std::copy(input.tokens.begin(), input.tokens.end(), rows_.token.begin());
  std::copy(input.logit_rows.begin(), input.logit_rows.end(), rows_.logit_rows.begin());
  std::int32_t row = 0;
  for (const Run& run : input.runs) {
    rows_.first_row.push_back(row);
    for (std::int32_t i = 0; i < run.count; ++i, ++row) {
      rows_.slot[static_cast<std::size_t>(row)] = run.slot;
      rows_.position[static_cast<std::size_t>(row)] = run.first_position + i;
    }
  }
  registers_ = {1, rows_.num_rows, rows_.num_logit_rows, 0};
  step_active_experts_ = 0;
  return program_index;
}

void DeviceMemory::FinishStep(bool succeeded) {
  if (succeeded) {
    sequences_.Commit(rows_.runs);
  } else {
    sequences_.Abandon(rows_.runs);
  }
}

Logits DeviceMemory::StepLogits(std::size_t program_index) const {
  const ProgramMemory& memory = program_memory_[program_index];
  const ProgramMemory::Buffer& buffer = memory.buffers_[memory.logits_buffer_];
  return Logits(reinterpret_cast<const float*>(buffer.base), buffer.row_stride,
                rows_.num_logit_rows, limits_.vocab_size);
}

std::span<const float> DeviceMemory::KdaState(std::int32_t slot, std::int32_t state_index) const {
  const auto* base = reinterpret_cast<const float*>(kda_.arena.data());
  return {base + slot * kda_.slot_stride + state_index * kda_.layer_stride,
          static_cast<std::size_t>(kda_.columns)};
}

std::span<const std::byte> DeviceMemory::ConvState(std::int32_t slot,
                                                   std::int32_t state_index) const {
  const std::int64_t element = DTypeBytes(conv_.dtype);
  const std::int64_t offset = slot * conv_.slot_stride + state_index * conv_.layer_stride;
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
