#include "program/instruction_shapes.h"

#include <algorithm>
#include <set>

#include "base/align.h"
#include "program/attention_division.h"
#include "program/draft_shapes.h"
#include "program/dump.h"
#include "program/exchange.h"

namespace megalith::program {
namespace {

constexpr std::int64_t kLanes =
    16;  // state rows are padded to whole vectors; panels have so many outputs
constexpr std::int64_t kBlockInputs = 32;  // inputs of panels are padded to whole blocks

class InstructionCheck {
 public:
  InstructionCheck(const Program& program, std::uint32_t segment, std::size_t worker,
                   std::size_t index)
      : program_(program),
        segment_index_(segment),
        segment_(program.segments[segment]),
        worker_(worker),
        index_(index),
        stream_(segment_.streams[worker]),
        instruction_(stream_.instructions[index]) {}

  Status Run() {
    MEGALITH_RETURN_IF_ERROR(CheckCounters());
    MEGALITH_RETURN_IF_ERROR(CheckOperands());
    MEGALITH_RETURN_IF_ERROR(CheckTileAndSlot());
    for (std::uint32_t vector : instruction_.vectors) {
      if (vector != kNone && vector >= segment_.vectors.size()) {
        return Violation("V1", "vector {} does not exist", vector);
      }
    }
    if (instruction_.rows.step < 1 || instruction_.rows.first < 0 ||
        instruction_.rows.first >= instruction_.rows.step) {
      return Violation("V1", "rows {} + {}k is no row share", instruction_.rows.first,
                       instruction_.rows.step);
    }
    MEGALITH_RETURN_IF_ERROR(CheckTrip());
    return CheckShapes();
  }

 private:
  template <typename... Args>
  tl::unexpected<Error> Violation(std::string_view property, fmt::format_string<Args...> format,
                                  Args&&... args) const {
    return Fail(ErrorCode::kBadProgram, "{}: segment {} worker {} instruction {} ({}): {}",
                property, segment_.name, worker_, index_, Info(instruction_.opcode).name,
                fmt::format(format, std::forward<Args>(args)...));
  }

  // ---- ids ------------------------------------------------------------------------------------

  Status CheckCounters() const {
    for (std::uint32_t counter : {instruction_.wait_counter, instruction_.signal_counter}) {
      if (counter == kNone) continue;
      if (counter >= program_.counters.size()) {
        return Violation("V1", "counter {} does not exist", counter);
      }
      const Counter& used = program_.counters[counter];
      if (used.scope == CounterScope::kSegment && used.segment != segment_index_) {
        return Violation("V1", "counter {} belongs to another segment", used.name);
      }
    }
    if (instruction_.signal_counter != kNone && instruction_.signal_amount != 1) {
      return Violation("V3", "a signal of 1 expected, {} found", instruction_.signal_amount);
    }
    return {};
  }

  Status CheckOperands() const {
    const std::size_t named = Info(instruction_.opcode).operand_names.size();
    for (std::size_t i = 0; i < instruction_.operands.size(); ++i) {
      const Operand& operand = instruction_.operands[i];
      if (operand.buffer == kNone) {
        if (i < named && !Optional(i)) {
          return Violation("V1", "operand {} is missing",
                           Info(instruction_.opcode).operand_names[i]);
        }
        continue;
      }
      if (i >= named) return Violation("V1", "operand {} is not one of this opcode", i);
      if (operand.buffer >= program_.buffers.size()) {
        return Violation("V1", "buffer {} does not exist", operand.buffer);
      }
      const Buffer& buffer = program_.buffers[operand.buffer];
      if (operand.begin < 0 || operand.begin >= operand.end || operand.end > buffer.columns) {
        return Violation("V1", "columns [{}, {}) are not inside buffer {} of {} columns",
                         operand.begin, operand.end, buffer.name, buffer.columns);
      }
    }
    return {};
  }

  bool Optional(std::size_t operand) const {
    if (instruction_.opcode == Opcode::kDraftChoose) return IsOptionalOfDraftChoose(operand);
    if (instruction_.opcode == Opcode::kMarkovEmbed) return operand == 4;
    if (instruction_.opcode == Opcode::kMatmul) {
      const Epilogue epilogue = instruction_.epilogue;
      if (operand == 2) {
        return epilogue != Epilogue::kAddSharedResidual && epilogue != Epilogue::kSigmoidGate &&
               epilogue != Epilogue::kAddDraftBase;
      }
      if (operand == 3) {
        return epilogue != Epilogue::kAddSharedResidual && epilogue != Epilogue::kAddResidual;
      }
      if (operand == 4) return instruction_.imm[1] == 0;
    }
    if (instruction_.opcode == Opcode::kMlaExpanded) return operand == 4;
    if (instruction_.opcode == Opcode::kAttnResNorm) {
      return operand == 1 || (operand == 3 && instruction_.imm[1] == 0);
    }
    if (IsExchange(instruction_.opcode)) return operand > 0;
    return false;
  }

  bool NeedsTile() const {
    switch (instruction_.opcode) {
      case Opcode::kMatmul:
      case Opcode::kExpertGateUp:
      case Opcode::kExpertDown:
      case Opcode::kFetch:
        return true;
      default:
        return false;
    }
  }

  Status CheckTileAndSlot() const {
    if (!NeedsTile()) {
      if (instruction_.tile != kNone) return Violation("V1", "has a tile but reads no weights");
    } else if (instruction_.tile >= stream_.tiles.size()) {
      return Violation("V1", "tile {} does not exist", instruction_.tile);
    }
    const bool needs_slot =
        instruction_.opcode == Opcode::kMatmul || instruction_.opcode == Opcode::kFetch;
    if (needs_slot != (instruction_.slot != kNone)) {
      return Violation("V1", "{}",
                       needs_slot ? "has no store slot" : "has a store slot it cannot use");
    }
    if (needs_slot && instruction_.slot >= static_cast<std::uint32_t>(program_.store.num_slots)) {
      return Violation("V4", "slot {} does not exist, the store has {}", instruction_.slot,
                       program_.store.num_slots);
    }
    return {};
  }

  // ---- trip counts (V7) -----------------------------------------------------------------------

  Status CheckTrip() const {
    const bool by_expert =
        instruction_.opcode == Opcode::kExpertGateUp || instruction_.opcode == Opcode::kExpertDown;
    const bool by_row = Info(instruction_.opcode).scope != RowScope::kNoRows ||
                        instruction_.opcode == Opcode::kRoutePlan;
    if (by_expert) return CheckExpertTrip();
    if (instruction_.opcode == Opcode::kExpertSum) {
      MEGALITH_RETURN_IF_ERROR(CheckPlan(instruction_.operands[1], instruction_.imm[0],
                                         program_.max_rows * instruction_.imm[1]));
    }
    if (!by_row) {
      if (instruction_.trip == Register::kOne) return {};
      return Violation("V7", "runs once, but its trip count is register {}",
                       RegisterName(instruction_.trip));
    }
    const BufferKind counted = RowsOf(instruction_.trip);
    if (counted == BufferKind::kSingle) {
      return Violation("V7", "walks over rows, but its trip count is register {}",
                       RegisterName(instruction_.trip));
    }
    const std::int64_t bound =
        program_.registers[static_cast<std::size_t>(instruction_.trip)].max_value;
    for (std::size_t i = 0; i < instruction_.operands.size(); ++i) {
      const Operand& operand = instruction_.operands[i];
      if (operand.buffer == kNone) continue;
      const Buffer& buffer = program_.buffers[operand.buffer];
      if (buffer.kind == counted && bound > buffer.rows) {
        return Violation("V7", "up to {} rows, but buffer {} has {}", bound, buffer.name,
                         buffer.rows);
      }
      const bool is_rows =
          buffer.kind == BufferKind::kRows || buffer.kind == BufferKind::kLogitRows ||
          buffer.kind == BufferKind::kDraftRuns || buffer.kind == BufferKind::kDraftRows;
      if (is_rows && buffer.kind != counted && !Gathers(i, buffer.kind)) {
        return Violation("V7", "trip count {} does not count the rows of buffer {}",
                         RegisterName(instruction_.trip), buffer.name);
      }
    }
    return {};
  }

  /// Whether the operand's rows are found by the step's lists rather than counted by the register:
  /// logit rows among step rows, the tokens and block slots of a drafting run. The lists hold rows
  /// that exist (exec checks a step before it runs).
  bool Gathers(std::size_t operand, BufferKind kind) const {
    if (instruction_.opcode == Opcode::kAttnResNorm) {
      return instruction_.imm[1] == 1 && kind == BufferKind::kRows && operand < 2;
    }
    return GathersForDraft(instruction_, operand, kind);
  }

  Status CheckExpertTrip() const {
    if (instruction_.trip != Register::kActiveExperts) {
      return Violation("V7", "walks over experts, but its trip count is register {}",
                       RegisterName(instruction_.trip));
    }
    const std::int64_t experts = instruction_.imm[0];
    const std::int64_t top_k = instruction_.imm[1];
    if (experts < 1 || top_k < 1 || top_k > experts) {
      return Violation("V7", "{} experts, {} per row", experts, top_k);
    }
    const std::int64_t pairs = program_.max_rows * top_k;
    const std::int64_t bound =
        program_.registers[static_cast<std::size_t>(Register::kActiveExperts)].max_value;
    if (bound < 1 || bound > std::min(experts, pairs)) {
      return Violation("V7", "up to {} active experts, but only {} can be chosen", bound,
                       std::min(experts, pairs));
    }
    const Tensor& tensor = program_.tensors[stream_.tiles[instruction_.tile].tensor];
    if (tensor.num_experts != experts) {
      return Violation("V7", "{} experts, but tensor {} has {}", experts, tensor.name,
                       tensor.num_experts);
    }
    for (const Operand& operand : instruction_.operands) {
      if (operand.buffer == kNone) continue;
      const Buffer& buffer = program_.buffers[operand.buffer];
      const std::int64_t needed = buffer.kind == BufferKind::kPairs ? pairs : program_.max_rows;
      if (buffer.kind != BufferKind::kSingle && buffer.rows < needed) {
        return Violation("V7", "up to {} rows, but buffer {} has {}", needed, buffer.name,
                         buffer.rows);
      }
    }
    if (instruction_.imm[3] != tensor.first_expert ||
        instruction_.imm[4] != tensor.first_expert + tensor.own_experts) {
      return Violation("V7", "experts {} to {}, but this rank has {} to {} of tensor {}",
                       instruction_.imm[3], instruction_.imm[4], tensor.first_expert,
                       tensor.first_expert + tensor.own_experts, tensor.name);
    }
    return CheckPlan(instruction_.operands[1], experts, pairs);
  }

  Status CheckPlan(const Operand& plan, std::int64_t experts, std::int64_t pairs) const {
    const Buffer& buffer = program_.buffers[plan.buffer];
    if (buffer.kind != BufferKind::kSingle || buffer.dtype != DType::kI32 ||
        Columns(plan) != PlanColumns(experts, pairs)) {
      return Violation("V7", "the plan {} of {} columns does not hold {} experts and {} pairs",
                       buffer.name, Columns(plan), experts, pairs);
    }
    return {};
  }

  // ---- shapes ---------------------------------------------------------------------------------

  static std::int64_t Columns(const Operand& operand) { return operand.end - operand.begin; }

  Status ExpectColumns(std::size_t operand, std::int64_t expected) const {
    const std::int64_t found = Columns(instruction_.operands[operand]);
    if (found == expected) return {};
    return Violation("V1", "operand {}: {} columns expected, {} found",
                     Info(instruction_.opcode).operand_names[operand], expected, found);
  }

  Status ExpectRange(std::size_t operand, std::int64_t begin, std::int64_t end) const {
    const Operand& found = instruction_.operands[operand];
    if (found.begin == begin && found.end == end) return {};
    return Violation("V1", "operand {}: columns [{}, {}) expected, [{}, {}) found",
                     Info(instruction_.opcode).operand_names[operand], begin, end, found.begin,
                     found.end);
  }

  Status ExpectBuffer(std::size_t operand, BufferKind kind, DType dtype) const {
    const Buffer& buffer = program_.buffers[instruction_.operands[operand].buffer];
    if (buffer.kind == kind && buffer.dtype == dtype) return {};
    return Violation("V1", "operand {}: buffer {} has the wrong kind or dtype {}",
                     Info(instruction_.opcode).operand_names[operand], buffer.name,
                     DTypeName(buffer.dtype));
  }

  Status ExpectDType(std::size_t operand, DType dtype) const {
    const Buffer& buffer = program_.buffers[instruction_.operands[operand].buffer];
    if (buffer.dtype == dtype) return {};
    return Violation("V1", "operand {}: {} expected, buffer {} is {}",
                     Info(instruction_.opcode).operand_names[operand], DTypeName(dtype),
                     buffer.name, DTypeName(buffer.dtype));
  }

  Status ExpectVector(std::size_t slot, DType dtype, std::int64_t count) const {
    const std::uint32_t index = instruction_.vectors[slot];
    if (index == kNone) return Violation("V1", "vector {} is missing", slot);
    const Vector& vector = segment_.vectors[index];
    if (vector.dtype == dtype && vector.count == count) return {};
    return Violation("V1", "vector {}: {} {} expected, {} {} found", vector.name, count,
                     DTypeName(dtype), vector.count, DTypeName(vector.dtype));
  }

  Status CheckShapes() const {
    switch (instruction_.opcode) {
      case Opcode::kWait:
      case Opcode::kStepEnd:
      case Opcode::kFetch:
        return {};
      case Opcode::kStepBegin:
        return ExpectBuffer(0, BufferKind::kStepInput, DType::kI32);
      case Opcode::kFetchNext:
        if (instruction_.imm[0] >= 0 && instruction_.imm[0] < program_.store.num_slots) return {};
        return Violation("V4", "prologue entry {} does not exist", instruction_.imm[0]);
      case Opcode::kEmbed:
        return CheckEmbed();
      case Opcode::kAttnResNorm:
        return CheckAttnResNorm();
      case Opcode::kPushBlock:
        return CheckPushBlock();
      case Opcode::kRmsNorm:
        return CheckRmsNorm();
      case Opcode::kMatmul:
        return CheckMatmul();
      case Opcode::kKda:
        return CheckKda();
      case Opcode::kMlaAppend:
        return CheckMlaAppend();
      case Opcode::kMlaAttention:
      case Opcode::kMlaPartial:
        return CheckMlaAttention();
      case Opcode::kMlaMerge:
        return CheckMlaMerge();
      case Opcode::kMlaExpanded:
        return CheckMlaExpanded();
      case Opcode::kRouterTopK:
        return CheckRouterTopK();
      case Opcode::kRoutePlan:
        return CheckRoutePlan();
      case Opcode::kExpertGateUp:
        return CheckExpert(true);
      case Opcode::kExpertDown:
        return CheckExpert(false);
      case Opcode::kExpertSum:
        return CheckExpertSum();
      case Opcode::kExchangeFill:
      case Opcode::kExchangePublish:
      case Opcode::kExchangeReceive:
        return CheckExchange();
      case Opcode::kCaptureResidual:
      case Opcode::kSample:
      case Opcode::kDraftAppend:
      case Opcode::kDraftEmbed:
      case Opcode::kDraftAttention:
      case Opcode::kMarkovEmbed:
      case Opcode::kDraftChoose:
      case Opcode::kMarkovGate:
      case Opcode::kMarkovRnn:
        if (const auto fault = FindDraftFault(program_, segment_, instruction_)) {
          return Violation("V1", "{}", *fault);
        }
        return {};
    }
    return Violation("V1", "unknown opcode");
  }

  Status CheckEmbed() const {
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kStepInput, DType::kI32));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kRows, program_.activation_dtype));
    return ExpectColumns(1, program_.hidden_size);
  }

  Status CheckAttnResNorm() const {
    const std::int64_t hidden = program_.hidden_size;
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kRows, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(0, hidden));
    MEGALITH_RETURN_IF_ERROR(ExpectDType(2, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(2, hidden));
    MEGALITH_RETURN_IF_ERROR(ExpectVector(1, DType::kBf16, hidden));
    if (instruction_.operands[1].buffer != kNone) {
      MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kRows, program_.activation_dtype));
      MEGALITH_RETURN_IF_ERROR(ExpectVector(0, DType::kF32, hidden));
    }
    const bool gathers = instruction_.imm[1] == 1;
    if (gathers != (instruction_.trip == Register::kLogitRows)) {
      return Violation("V7", "logit rows are gathered exactly when they are the trip count");
    }
    if (gathers) return ExpectBuffer(3, BufferKind::kStepInput, DType::kI32);
    return {};
  }

  Status CheckPushBlock() const {
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kRows, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(0, program_.hidden_size));
    return ExpectBuffer(1, BufferKind::kRows, program_.activation_dtype);
  }

  Status CheckRmsNorm() const {
    const std::int64_t count = Columns(instruction_.operands[0]);
    MEGALITH_RETURN_IF_ERROR(ExpectDType(0, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectDType(1, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(1, count));
    return ExpectVector(0, DType::kBf16, count);
  }

  Status CheckMatmul() const {
    const Tile& tile = stream_.tiles[instruction_.tile];
    const Tensor& tensor = program_.tensors[tile.tensor];
    if (tensor.num_experts > 0) return Violation("V1", "tensor {} is an expert's", tensor.name);
    const bool pair = instruction_.epilogue == Epilogue::kGatedPair;
    if (pair != (tile.pair_tensor != kNone)) {
      return Violation("V1", "a gated pair needs a paired tile and nothing else does");
    }
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(0, tile.num_inputs));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(1, tile.num_outputs));
    const Buffer& in = program_.buffers[instruction_.operands[0].buffer];
    const Buffer& out = program_.buffers[instruction_.operands[1].buffer];
    const auto is_activation = [this](const Buffer& buffer) {
      return buffer.dtype == program_.activation_dtype || buffer.dtype == DType::kF32;
    };
    if (!is_activation(in) || !is_activation(out)) {
      return Violation("V1", "buffers {} and {} must hold activations or f32", in.name, out.name);
    }
    if (instruction_.epilogue == Epilogue::kAddDraftBase) {
      MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kDraftRuns, DType::kF32));
      MEGALITH_RETURN_IF_ERROR(ExpectBuffer(2, BufferKind::kDraftRows, DType::kF32));
      return ExpectColumns(2, tile.num_outputs);
    }
    if (instruction_.epilogue != Epilogue::kStore) {
      MEGALITH_RETURN_IF_ERROR(ExpectDType(1, program_.activation_dtype));
    }
    MEGALITH_RETURN_IF_ERROR(CheckPanelsOut(tile, tensor));
    for (std::size_t operand : {std::size_t{2}, std::size_t{3}}) {
      if (instruction_.operands[operand].buffer == kNone) continue;
      MEGALITH_RETURN_IF_ERROR(ExpectColumns(operand, tile.num_outputs));
      const bool shared = operand == 2 && instruction_.epilogue == Epilogue::kAddSharedResidual;
      MEGALITH_RETURN_IF_ERROR(
          ExpectDType(operand, shared ? DType::kF32 : program_.activation_dtype));
    }
    return {};
  }

  /// Products that leave out fast runs keep their panels for these.
  Status CheckPanelsOut(const Tile& tile, const Tensor& tensor) const {
    if (instruction_.imm[1] == 0 && instruction_.operands[4].buffer == kNone) return {};
    if (instruction_.imm[1] != 1 || instruction_.trip != Register::kRows) {
      return Violation("V1", "panels are kept by products over rows that leave out fast runs");
    }
    if (tensor.format != WeightFormat::kBf16) {
      return Violation("V1", "panels of {} are not bf16", tensor.name);
    }
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(4, BufferKind::kSingle, DType::kBf16));
    return ExpectColumns(4, tile.bytes / DTypeBytes(DType::kBf16));
  }

  Status CheckKda() const {
    const std::int64_t first = instruction_.imm[0];
    const std::int64_t last = instruction_.imm[1];
    const std::int64_t heads = last - first;
    if (first < 0 || heads < 1) return Violation("V1", "heads [{}, {})", first, last);
    if (Columns(instruction_.operands[0]) % heads != 0) {
      return Violation("V1", "{} columns are not {} whole heads", Columns(instruction_.operands[0]),
                       heads);
    }
    const std::int64_t dim = Columns(instruction_.operands[0]) / heads;
    for (std::size_t operand : {0u, 1u, 2u, 3u, 4u, 6u}) {
      MEGALITH_RETURN_IF_ERROR(ExpectBuffer(operand, BufferKind::kRows, program_.activation_dtype));
      MEGALITH_RETURN_IF_ERROR(ExpectRange(operand, first * dim, last * dim));
    }
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(5, BufferKind::kRows, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(5, first, last));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(7, BufferKind::kKdaState, DType::kF32));
    const std::int64_t state = dim * RoundUp(dim, kLanes);
    // State is kept for this rank's heads only.
    const std::int64_t origin = program_.sharding.first_kda_head;
    if (first < origin) return Violation("V1", "heads [{}, {}) are another rank's", first, last);
    MEGALITH_RETURN_IF_ERROR(ExpectRange(7, (first - origin) * state, (last - origin) * state));
    const std::uint32_t taps_vector = instruction_.vectors[0];
    if (taps_vector == kNone || segment_.vectors[taps_vector].taps < 1) {
      return Violation("V1", "vector 0 holds no convolution taps");
    }
    const std::int64_t taps = segment_.vectors[taps_vector].taps;
    const std::int64_t channels = program_.buffers[instruction_.operands[0].buffer].columns;
    for (std::size_t vector : {0u, 1u, 2u}) {
      MEGALITH_RETURN_IF_ERROR(ExpectVector(vector, DType::kF32, channels * taps));
      if (segment_.vectors[instruction_.vectors[vector]].taps != taps) {
        return Violation("V1", "q, k and v have different numbers of taps");
      }
    }
    MEGALITH_RETURN_IF_ERROR(ExpectVector(3, DType::kF32, channels / dim));
    MEGALITH_RETURN_IF_ERROR(ExpectVector(4, DType::kF32, channels));
    MEGALITH_RETURN_IF_ERROR(ExpectVector(5, DType::kF32, dim));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(8, BufferKind::kConvState, program_.activation_dtype));
    if (taps < 2) return Violation("V1", "a convolution of {} taps has no history", taps);
    const std::int64_t history = (taps - 1) * 3 * dim;
    MEGALITH_RETURN_IF_ERROR(ExpectRange(8, (first - origin) * history, (last - origin) * history));
    return ExpectBuffer(9, BufferKind::kStepInput, DType::kI32);
  }

  Status CheckMlaAppend() const {
    const std::int64_t width = Columns(instruction_.operands[0]);
    const std::int64_t rank = instruction_.imm[0];
    if (rank < 1 || rank > width) return Violation("V1", "rank {} of {} columns", rank, width);
    MEGALITH_RETURN_IF_ERROR(ExpectDType(0, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kMlaCache, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(1, 0, width));
    MEGALITH_RETURN_IF_ERROR(ExpectWholeCache(1));
    MEGALITH_RETURN_IF_ERROR(ExpectVector(0, DType::kBf16, rank));
    return ExpectBuffer(2, BufferKind::kStepInput, DType::kI32);
  }

  /// Cache rows are stored without gaps, so the operand is the whole row.
  Status ExpectWholeCache(std::size_t operand) const {
    const Buffer& cache = program_.buffers[instruction_.operands[operand].buffer];
    if (cache.columns == Columns(instruction_.operands[operand]) &&
        cache.row_stride == cache.columns) {
      return {};
    }
    return Violation("V1", "cache {} is not used as whole rows", cache.name);
  }

  Status CheckMlaAttention() const {
    const std::int64_t first = instruction_.imm[0];
    const std::int64_t last = instruction_.imm[1];
    const std::int64_t heads = last - first;
    if (first < 0 || heads < 1) return Violation("V1", "heads [{}, {})", first, last);
    const std::int64_t query = Columns(instruction_.operands[0]);
    const std::int64_t latent = Columns(instruction_.operands[1]);
    if (query % heads != 0 || latent % heads != 0) {
      return Violation("V1", "{} and {} columns are not {} whole heads", query, latent, heads);
    }
    const std::int64_t rank = latent / heads;
    const std::int64_t extra = Columns(instruction_.operands[2]) - rank;
    if (extra < 0 || extra > query / heads) {
      return Violation("V1", "cache rows of {} for rank {} and queries of {}",
                       Columns(instruction_.operands[2]), rank, query / heads);
    }
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kRows, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(0, first * (query / heads), last * (query / heads)));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kRows, DType::kF32));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(1, first * rank, last * rank));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(2, BufferKind::kMlaCache, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectWholeCache(2));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(3, BufferKind::kRows, DType::kF32));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(4, BufferKind::kStepInput, DType::kI32));
    if (instruction_.opcode == Opcode::kMlaAttention) {
      return ExpectRange(3, first * rank, last * rank);
    }
    const std::int64_t share = instruction_.imm[3];
    return ExpectShares(3, share, share + 1, heads, rank);
  }

  /// The operand is what the shares [first, last) of divided attention leave, each in its own
  /// columns: as many as it can need.
  Status ExpectShares(std::size_t operand, std::int64_t first, std::int64_t last,
                      std::int64_t heads, std::int64_t rank) const {
    const std::int64_t shares = instruction_.imm[4];
    if (shares < 1 || first < 0 || first >= last || last > shares) {
      return Violation("V1", "shares [{}, {}) of {}", first, last, shares);
    }
    const std::int64_t items = MaxItemsOfShare(heads, program_.state.max_positions, shares);
    const std::int64_t room = program_.buffers[instruction_.operands[operand].buffer].columns;
    // Divisions only: nothing here is known to be small.
    if (items > room / shares / PartialStride(rank)) {
      return Violation("V7", "up to {} items of {} columns in each of {} shares, but {} has {}",
                       items, PartialStride(rank), shares,
                       program_.buffers[instruction_.operands[operand].buffer].name, room);
    }
    const std::int64_t columns = items * PartialStride(rank);
    return ExpectRange(operand, first * columns, last * columns);
  }

  Status CheckMlaMerge() const {
    const std::int64_t first = instruction_.imm[0];
    const std::int64_t last = instruction_.imm[1];
    const std::int64_t divided = instruction_.imm[2];
    const std::int64_t divided_end = instruction_.imm[3];
    if (divided < 0 || first < divided || first >= last || last > divided_end) {
      return Violation("V1", "heads [{}, {}) of [{}, {})", first, last, divided, divided_end);
    }
    const std::int64_t out = Columns(instruction_.operands[1]);
    if (out % (last - first) != 0) {
      return Violation("V1", "{} columns are not {} whole heads", out, last - first);
    }
    const std::int64_t rank = out / (last - first);
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kRows, DType::kF32));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kRows, DType::kF32));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(1, first * rank, last * rank));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(2, BufferKind::kStepInput, DType::kI32));
    MEGALITH_RETURN_IF_ERROR(ExpectShares(0, 0, instruction_.imm[4], divided_end - divided, rank));
    return CheckShares(rank);
  }

  /// What is merged was computed as all shares of one division of the same heads.
  Status CheckShares(std::int64_t rank) const {
    const auto& imm = instruction_.imm;
    std::set<std::int32_t> shares;
    for (const Stream& stream : segment_.streams) {
      for (const Instruction& other : stream.instructions) {
        if (other.opcode != Opcode::kMlaPartial ||
            other.operands[3].buffer != instruction_.operands[0].buffer) {
          continue;
        }
        if (other.imm[0] != imm[2] || other.imm[1] != imm[3] || other.imm[4] != imm[4] ||
            other.operands[1].end != imm[3] * rank) {
          return Violation("V8",
                           "merges {} shares of heads [{}, {}), but of [{}, {}) share {} of {}"
                           " is computed",
                           imm[4], imm[2], imm[3], other.imm[0], other.imm[1], other.imm[3],
                           other.imm[4]);
        }
        if (!shares.insert(other.imm[3]).second) {
          return Violation("V8", "merges share {}, which is computed twice", other.imm[3]);
        }
      }
    }
    if (static_cast<std::int64_t>(shares.size()) == imm[4]) return {};
    return Violation("V8", "merges {} shares, but {} are computed", imm[4], shares.size());
  }

  Status CheckMlaExpanded() const {
    const std::int64_t first = instruction_.imm[0];
    const std::int64_t last = instruction_.imm[1];
    const std::int64_t heads = last - first;
    if (first < 0 || heads < 1) return Violation("V1", "heads [{}, {})", first, last);
    for (std::size_t operand : {0u, 5u}) {
      if (Columns(instruction_.operands[operand]) % heads != 0) {
        return Violation("V1", "{} columns are not {} whole heads",
                         Columns(instruction_.operands[operand]), heads);
      }
    }
    const std::int64_t query = Columns(instruction_.operands[0]) / heads;
    const std::int64_t value = Columns(instruction_.operands[5]) / heads;
    const std::int64_t rank = instruction_.imm[2];
    const std::int64_t extra = Columns(instruction_.operands[3]) - rank;
    if (rank < 1 || extra < 0 || extra >= query) {
      return Violation("V1", "cache rows of {} for rank {} and queries of {}",
                       Columns(instruction_.operands[3]), rank, query);
    }
    const auto panels = [](std::int64_t outputs, std::int64_t inputs) {
      return RoundUp(outputs, kLanes) * RoundUp(inputs, kBlockInputs);
    };
    const std::int64_t key_panels = panels(rank, query - extra);
    const std::int64_t value_panels = panels(value, rank);
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kRows, DType::kBf16));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(0, first * query, last * query));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kSingle, DType::kBf16));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(1, first * key_panels, last * key_panels));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(2, BufferKind::kSingle, DType::kBf16));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(2, first * value_panels, last * value_panels));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(3, BufferKind::kMlaCache, DType::kBf16));
    MEGALITH_RETURN_IF_ERROR(ExpectWholeCache(3));
    if (instruction_.operands[4].buffer != kNone) {
      MEGALITH_RETURN_IF_ERROR(ExpectBuffer(4, BufferKind::kRows, DType::kBf16));
      MEGALITH_RETURN_IF_ERROR(ExpectRange(4, first * value, last * value));
    }
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(5, BufferKind::kRows, DType::kBf16));
    MEGALITH_RETURN_IF_ERROR(ExpectRange(5, first * value, last * value));
    return ExpectBuffer(6, BufferKind::kStepInput, DType::kI32);
  }

  Status CheckRouterTopK() const {
    const std::int64_t experts = Columns(instruction_.operands[0]);
    const std::int64_t top_k = instruction_.imm[0];
    const std::int64_t groups = instruction_.imm[3];
    const std::int64_t top_groups = instruction_.imm[4];
    if (top_k < 1 || top_k > experts || groups < 1 || experts % groups != 0 || top_groups < 1 ||
        top_groups > groups || top_k > experts / groups * top_groups) {
      return Violation("V7", "{} of {} experts in {} of {} groups", top_k, experts, top_groups,
                       groups);
    }
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kRows, DType::kF32));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kRows, DType::kI32));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(2, BufferKind::kRows, DType::kF32));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(1, top_k));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(2, top_k));
    return ExpectVector(0, DType::kF32, experts);
  }

  Status CheckRoutePlan() const {
    const std::int64_t experts = instruction_.imm[0];
    const std::int64_t top_k = instruction_.imm[1];
    if (experts < 1 || top_k < 1 || top_k > experts) {
      return Violation("V7", "{} experts, {} per row", experts, top_k);
    }
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kRows, DType::kI32));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(1, BufferKind::kRows, DType::kF32));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(0, top_k));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(1, top_k));
    return CheckPlan(instruction_.operands[2], experts, program_.max_rows * top_k);
  }

  Status CheckExpert(bool pair) const {
    const Tile& tile = stream_.tiles[instruction_.tile];
    if (pair != (tile.pair_tensor != kNone) || tile.transposed) {
      return Violation("V1", "the tile does not fit this instruction");
    }
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(0, tile.num_inputs));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(2, tile.num_outputs));
    const bool per_pair = pair || instruction_.imm[2] == 1;
    const BufferKind in = pair ? BufferKind::kRows : BufferKind::kPairs;
    const BufferKind out = per_pair ? BufferKind::kPairs : BufferKind::kRows;
    const Tensor& tensor = program_.tensors[tile.tensor];
    if (!per_pair && tensor.own_experts != tensor.num_experts) {
      return Violation("V1", "sums over {} of {} experts", tensor.own_experts, tensor.num_experts);
    }
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, in, program_.activation_dtype));
    return ExpectBuffer(2, out, program_.activation_dtype);
  }

  Status CheckExpertSum() const {
    const std::int64_t experts = instruction_.imm[0];
    const std::int64_t top_k = instruction_.imm[1];
    if (experts < 1 || top_k < 1 || top_k > experts) {
      return Violation("V7", "{} experts, {} per row", experts, top_k);
    }
    if (instruction_.trip != Register::kRows) {
      return Violation("V7", "sums over the experts of rows, trip count {} found",
                       RegisterName(instruction_.trip));
    }
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(0, BufferKind::kRows, DType::kI32));
    MEGALITH_RETURN_IF_ERROR(ExpectColumns(0, top_k));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(2, BufferKind::kPairs, program_.activation_dtype));
    MEGALITH_RETURN_IF_ERROR(ExpectBuffer(3, BufferKind::kRows, program_.activation_dtype));
    const std::int64_t pairs = program_.max_rows * top_k;
    if (program_.buffers[instruction_.operands[2].buffer].rows < pairs) {
      return Violation("V7", "up to {} pairs, but buffer {} has {}", pairs,
                       program_.buffers[instruction_.operands[2].buffer].name,
                       program_.buffers[instruction_.operands[2].buffer].rows);
    }
    return ExpectRange(3, instruction_.operands[2].begin, instruction_.operands[2].end);
  }

  Status CheckExchange() const {
    const std::int64_t index = instruction_.imm[0];
    if (index < 0 || index >= static_cast<std::int64_t>(program_.mailboxes.size())) {
      return Violation("V1", "mailbox {} does not exist", index);
    }
    const Mailbox& mailbox = program_.mailboxes[static_cast<std::size_t>(index)];
    if (instruction_.operands[0].buffer != mailbox.buffer || instruction_.imm[1] < 0) {
      return Violation("V6", "exchange {} of buffer {} is none of mailbox {}", instruction_.imm[1],
                       program_.buffers[instruction_.operands[0].buffer].name, index);
    }
    if (instruction_.opcode == Opcode::kExchangePublish && instruction_.rows.step != 1) {
      return Violation("V6", "a share of the rows is published");
    }
    const std::int64_t source = instruction_.imm[2];
    const bool is_member =
        source >= mailbox.first_rank && source < mailbox.first_rank + mailbox.num_ranks;
    if (instruction_.opcode == Opcode::kExchangeReceive &&
        (!is_member || source == program_.sharding.rank)) {
      return Violation("V6", "receives from rank {}, one of the others in [{}, {}) expected",
                       source, mailbox.first_rank, mailbox.first_rank + mailbox.num_ranks);
    }
    return CheckExchangeParts();
  }

  Status CheckExchangeParts() const {
    const bool has_plan = instruction_.operands[1].buffer != kNone;
    for (std::size_t i = kFirstExchangePart; i < instruction_.operands.size(); ++i) {
      const Operand& operand = instruction_.operands[i];
      if (operand.buffer == kNone) continue;
      const Buffer& buffer = program_.buffers[operand.buffer];
      if (buffer.kind == RowsOf(instruction_.trip)) continue;
      if (buffer.kind != BufferKind::kPairs || instruction_.trip != Register::kRows) {
        return Violation("V7", "trip count {} does not count the rows of buffer {}",
                         RegisterName(instruction_.trip), buffer.name);
      }
      const std::int64_t pairs = buffer.rows;
      if (!has_plan || pairs % program_.max_rows != 0) {
        return Violation("V7", "the pairs of buffer {} cannot be found without a plan",
                         buffer.name);
      }
      const Buffer& plan = program_.buffers[instruction_.operands[1].buffer];
      const std::int64_t experts = (Columns(instruction_.operands[1]) - 1 - 2 * pairs) / 2;
      if (plan.kind != BufferKind::kSingle || plan.dtype != DType::kI32 || experts < 1 ||
          Columns(instruction_.operands[1]) != PlanColumns(experts, pairs)) {
        return Violation("V7", "plan {} does not hold the {} pairs of buffer {}", plan.name, pairs,
                         buffer.name);
      }
      if (instruction_.imm[3] < 0 || instruction_.imm[3] > instruction_.imm[4] ||
          instruction_.imm[4] > experts) {
        return Violation("V7", "pairs of experts {} to {} of {}", instruction_.imm[3],
                         instruction_.imm[4], experts);
      }
    }
    return {};
  }

  const Program& program_;
  std::uint32_t segment_index_;
  const Segment& segment_;
  std::size_t worker_;
  std::size_t index_;
  const Stream& stream_;
  const Instruction& instruction_;
};

}  // namespace

Status CheckInstruction(const Program& program, std::uint32_t segment, std::size_t worker,
                        std::size_t index) {
  return InstructionCheck(program, segment, worker, index).Run();
}

}  // namespace megalith::program
