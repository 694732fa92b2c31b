// V1: every id, range and size is valid, everything a visit binds lies inside its arena and belongs
// to that visit alone. V7: trip counts are bounded by the buffers. instruction_shapes.cc has the
// checks of single instructions.

#include <algorithm>
#include <map>

#include "base/align.h"
#include "program/instruction_shapes.h"
#include "program/proofs.h"

namespace megalith::program {
namespace {

// Larger than any real machine, small enough that products of two cannot overflow.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 20;
constexpr std::int64_t kMaxStoreSlots = 4096;
constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kPanelOutputs = 16;
constexpr std::int64_t kScaleGroup = 32;  // inputs per MXFP4 scale

template <typename... Args>
tl::unexpected<Error> Violation(std::string_view property, fmt::format_string<Args...> format,
                                Args&&... args) {
  return Fail(ErrorCode::kBadProgram, "{}: {}", property,
              fmt::format(format, std::forward<Args>(args)...));
}

Status InRange(std::string_view what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return Violation("V1", "{}: {} to {} expected, {} found", what, low, high, value);
}

/// Intervals of one arena that must not overlap.
class Intervals {
 public:
  void Add(std::int64_t begin, std::int64_t end, std::string owner) {
    if (begin < end) items_.push_back({begin, end, std::move(owner)});
  }
  Status CheckDisjoint(std::string_view arena) {
    std::sort(items_.begin(), items_.end(),
              [](const Item& a, const Item& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < items_.size(); ++i) {
      if (items_[i].begin < items_[i - 1].end) {
        return Violation("V1", "{}: {} [{}, {}) overlaps {} [{}, {})", arena, items_[i].owner,
                         items_[i].begin, items_[i].end, items_[i - 1].owner, items_[i - 1].begin,
                         items_[i - 1].end);
      }
    }
    return {};
  }

 private:
  struct Item {
    std::int64_t begin;
    std::int64_t end;
    std::string owner;
  };
  std::vector<Item> items_;
};

class WellFormed {
 public:
  explicit WellFormed(const Program& program) : program_(program) {}

  Status Run() {
    MEGALITH_RETURN_IF_ERROR(CheckHeader());
    for (const Buffer& buffer : program_.buffers) MEGALITH_RETURN_IF_ERROR(CheckBuffer(buffer));
    MEGALITH_RETURN_IF_ERROR(CheckCounters());
    for (const Tensor& tensor : program_.tensors) MEGALITH_RETURN_IF_ERROR(CheckTensor(tensor));
    MEGALITH_RETURN_IF_ERROR(CheckSharding());
    for (std::size_t i = 0; i < program_.segments.size(); ++i) {
      MEGALITH_RETURN_IF_ERROR(CheckSegment(i));
    }
    MEGALITH_RETURN_IF_ERROR(CheckVisits());
    return CheckBinds();
  }

 private:
  Status CheckHeader() const {
    MEGALITH_RETURN_IF_ERROR(InRange("workers", program_.num_workers, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("rows", program_.max_rows, 1, kMaxRows));
    MEGALITH_RETURN_IF_ERROR(InRange("logit rows", program_.max_logit_rows, 1, program_.max_rows));
    MEGALITH_RETURN_IF_ERROR(InRange("vocabulary", program_.vocab_size, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("hidden size", program_.hidden_size, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("segments", Size(program_.segments), 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("visits", Size(program_.visits), 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("weight arenas", Size(program_.weight_arena_bytes),
                                     program_.num_workers, program_.num_workers));
    for (std::int64_t bytes : program_.weight_arena_bytes) {
      MEGALITH_RETURN_IF_ERROR(InRange("weight arena bytes", bytes, 0, kMaxBytes));
    }
    MEGALITH_RETURN_IF_ERROR(
        InRange("vector arena bytes", program_.vector_arena_bytes, 0, kMaxBytes));
    MEGALITH_RETURN_IF_ERROR(
        InRange("activation arena bytes", program_.activation_arena_bytes, 0, kMaxBytes));
    if (program_.activation_dtype != DType::kBf16 && program_.activation_dtype != DType::kF32) {
      return Violation("V1", "activation dtype: bf16 or f32 expected, {} found",
                       DTypeName(program_.activation_dtype));
    }
    const StateLayout& state = program_.state;
    MEGALITH_RETURN_IF_ERROR(InRange("slots", state.num_slots, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("KDA layers", state.num_kda_layers, 0, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("MLA layers", state.num_mla_layers, 0, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("page tokens", state.page_tokens, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("positions", state.max_positions, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("pages", state.num_pages, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("store slots", program_.store.num_slots, 1, kMaxStoreSlots));
    MEGALITH_RETURN_IF_ERROR(InRange("store slot bytes", program_.store.slot_bytes, 1, kMaxBytes));
    MEGALITH_RETURN_IF_ERROR(CheckDraft());
    MEGALITH_RETURN_IF_ERROR(CheckTables());
    return CheckRegisters();
  }

  Status CheckRegisters() const {
    const auto bound = [this](Register value) {
      return program_.registers[static_cast<std::size_t>(value)].max_value;
    };
    const auto expect = [&](Register value, std::int64_t low, std::int64_t high) -> Status {
      if (bound(value) >= low && bound(value) <= high) return {};
      return Violation("V7", "register {}: a bound of {} to {} expected, {} found",
                       RegisterName(value), low, high, bound(value));
    };
    MEGALITH_RETURN_IF_ERROR(expect(Register::kOne, 1, 1));
    MEGALITH_RETURN_IF_ERROR(expect(Register::kRows, program_.max_rows, program_.max_rows));
    MEGALITH_RETURN_IF_ERROR(
        expect(Register::kLogitRows, program_.max_logit_rows, program_.max_logit_rows));
    // What the experts and the plan hold bounds it further, per instruction.
    MEGALITH_RETURN_IF_ERROR(expect(Register::kActiveExperts, 0, kMaxCount));
    const DraftShape& draft = program_.draft;
    MEGALITH_RETURN_IF_ERROR(expect(Register::kDraftRuns, draft.max_runs, draft.max_runs));
    const std::int64_t block_rows = std::int64_t{draft.max_runs} * draft.block_rows;
    return expect(Register::kDraftRows, block_rows, block_rows);
  }

  Status CheckDraft() const {
    const DraftShape& draft = program_.draft;
    const StateLayout& state = program_.state;
    MEGALITH_RETURN_IF_ERROR(InRange("states per slot", state.states_per_slot, 1, kMaxDrafts + 1));
    MEGALITH_RETURN_IF_ERROR(InRange("draft positions", state.draft_positions, 0, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("captures", draft.num_captures, 0, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("drafting runs", draft.max_runs, 0, kMaxRows));
    if (draft.max_runs == 0) return {};
    MEGALITH_RETURN_IF_ERROR(InRange("drafts", draft.num_drafts, 1, kMaxDrafts));
    MEGALITH_RETURN_IF_ERROR(InRange("first draft slot", draft.first_slot, 0, 1));
    return InRange("block rows", draft.block_rows, draft.num_drafts + draft.first_slot, kMaxRows);
  }

  Status CheckTables() const {
    MEGALITH_RETURN_IF_ERROR(InRange("tables", Size(program_.tables), 1, kMaxCount));
    for (const Table& table : program_.tables) {
      MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("table {} rows", table.name), table.rows,
                                       program_.vocab_size, program_.vocab_size));
      MEGALITH_RETURN_IF_ERROR(
          InRange(fmt::format("table {} columns", table.name), table.columns, 1, kMaxCount));
    }
    return InRange(fmt::format("table {} columns", program_.tables[0].name),
                   program_.tables[0].columns, program_.hidden_size, program_.hidden_size);
  }

  Status CheckBuffer(const Buffer& buffer) const {
    MEGALITH_RETURN_IF_ERROR(
        InRange(fmt::format("buffer {} columns", buffer.name), buffer.columns, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("buffer {} row stride", buffer.name),
                                     buffer.row_stride, buffer.columns, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(
        InRange(fmt::format("buffer {} rows", buffer.name), buffer.rows, 1, kMaxCount));
    if (buffer.rows > kMaxBytes / buffer.row_stride / 4) {
      return Violation("V1", "buffer {}: {} rows of stride {} are too large", buffer.name,
                       buffer.rows, buffer.row_stride);
    }
    const std::int64_t bytes = BufferBytes(buffer);
    if (bytes == 0) return {};
    MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("buffer {} offset", buffer.name), buffer.offset, 0,
                                     program_.activation_arena_bytes - bytes));
    if (buffer.offset % kAlignment != 0) {
      return Violation("V1", "buffer {}: offset {} is not a multiple of {}", buffer.name,
                       buffer.offset, kAlignment);
    }
    return {};
  }

  Status CheckCounters() const {
    for (const Counter& counter : program_.counters) {
      MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("counter {} signals", counter.name),
                                       counter.signals_per_visit, 1, kMaxCount));
      if (counter.scope == CounterScope::kSegment) {
        MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("counter {} segment", counter.name),
                                         counter.segment, 0, Size(program_.segments) - 1));
      }
    }
    return {};
  }

  Status CheckTensor(const Tensor& tensor) const {
    MEGALITH_RETURN_IF_ERROR(
        InRange(fmt::format("tensor {} outputs", tensor.name), tensor.outputs, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(
        InRange(fmt::format("tensor {} inputs", tensor.name), tensor.inputs, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(
        InRange(fmt::format("tensor {} experts", tensor.name), tensor.num_experts, 0, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("tensor {} own rows", tensor.name),
                                     tensor.num_rows, 0, tensor.outputs));
    MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("tensor {} first row", tensor.name),
                                     tensor.first_row, 0, tensor.outputs - tensor.num_rows));
    MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("tensor {} own experts", tensor.name),
                                     tensor.own_experts, 0, tensor.num_experts));
    MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("tensor {} first expert", tensor.name),
                                     tensor.first_expert, 0,
                                     tensor.num_experts - tensor.own_experts));
    if (tensor.format == WeightFormat::kMxfp4 && tensor.inputs % kScaleGroup != 0) {
      return Violation("V1", "tensor {}: MXFP4 inputs must be a multiple of {}, {} found",
                       tensor.name, kScaleGroup, tensor.inputs);
    }
    return {};
  }

  Status CheckSharding() const {
    const Sharding& sharding = program_.sharding;
    MEGALITH_RETURN_IF_ERROR(InRange("ranks", sharding.num_ranks, 1, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("rank", sharding.rank, 0, sharding.num_ranks - 1));
    MEGALITH_RETURN_IF_ERROR(
        InRange("expert groups", sharding.expert_groups, 1, sharding.num_ranks));
    if (sharding.num_ranks % sharding.expert_groups != 0) {
      return Violation("V1", "{} ranks are not {} equal groups", sharding.num_ranks,
                       sharding.expert_groups);
    }
    MEGALITH_RETURN_IF_ERROR(InRange("first KDA head", sharding.first_kda_head, 0, kMaxCount));
    MEGALITH_RETURN_IF_ERROR(InRange("first draft head", sharding.first_draft_head, 0, kMaxCount));
    for (std::size_t i = 0; i < program_.mailboxes.size(); ++i) {
      const Mailbox& mailbox = program_.mailboxes[i];
      const std::string what = fmt::format("mailbox {}", i);
      MEGALITH_RETURN_IF_ERROR(
          InRange(what + " buffer", mailbox.buffer, 0, Size(program_.buffers) - 1));
      if (program_.buffers[mailbox.buffer].kind != BufferKind::kMailbox) {
        return Violation("V1", "{}: buffer {} is none of a mailbox", what,
                         program_.buffers[mailbox.buffer].name);
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (program_.mailboxes[j].buffer == mailbox.buffer) {
          return Violation("V1", "mailboxes {} and {} share buffer {}", j, i,
                           program_.buffers[mailbox.buffer].name);
        }
      }
      MEGALITH_RETURN_IF_ERROR(InRange(what + " first rank", mailbox.first_rank, 0, sharding.rank));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " ranks", mailbox.num_ranks,
                                       sharding.rank - mailbox.first_rank + 1,
                                       sharding.num_ranks - mailbox.first_rank));
    }
    return {};
  }

  Status CheckSegment(std::size_t index) {
    const Segment& segment = program_.segments[index];
    MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("segment {} streams", segment.name),
                                     Size(segment.streams), program_.num_workers,
                                     program_.num_workers));
    MEGALITH_RETURN_IF_ERROR(InRange(fmt::format("segment {} vector bytes", segment.name),
                                     segment.vector_bytes, 0, kMaxBytes));
    MEGALITH_RETURN_IF_ERROR(CheckVectors(segment));
    for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
      const Stream& stream = segment.streams[worker];
      const std::string where = fmt::format("segment {} worker {}", segment.name, worker);
      MEGALITH_RETURN_IF_ERROR(CheckTiles(stream, where));
      for (const PrologueEntry& entry : stream.prologue) {
        MEGALITH_RETURN_IF_ERROR(
            InRange(where + " prologue tile", entry.tile, 0, Size(stream.tiles) - 1));
        MEGALITH_RETURN_IF_ERROR(
            InRange(where + " prologue slot", entry.slot, 0, program_.store.num_slots - 1));
      }
      for (std::size_t i = 0; i < stream.instructions.size(); ++i) {
        MEGALITH_RETURN_IF_ERROR(
            CheckInstruction(program_, static_cast<std::uint32_t>(index), worker, i));
      }
    }
    return {};
  }

  Status CheckVectors(const Segment& segment) const {
    Intervals intervals;
    for (const Vector& vector : segment.vectors) {
      const std::string what = fmt::format("segment {} vector {}", segment.name, vector.name);
      MEGALITH_RETURN_IF_ERROR(InRange(what + " count", vector.count, 1, kMaxCount));
      MEGALITH_RETURN_IF_ERROR(
          InRange(what + " stored count", vector.stored_count, vector.count, kMaxCount));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " source bytes", vector.source_bytes, 1, kMaxBytes));
      if (vector.layout == VectorLayout::kTransposed) {
        MEGALITH_RETURN_IF_ERROR(InRange(what + " taps", vector.taps, 1, vector.count));
        if (vector.count % vector.taps != 0) {
          return Violation("V1", "{}: {} elements are not whole channels of {} taps", what,
                           vector.count, vector.taps);
        }
      }
      if (vector.dtype != DType::kBf16 && vector.dtype != DType::kF32) {
        return Violation("V1", "{}: bf16 or f32 expected, {} found", what, DTypeName(vector.dtype));
      }
      if (vector.layout != VectorLayout::kAsStored && vector.dtype != DType::kF32) {
        return Violation("V1", "{}: folds and transposed taps are f32, {} found", what,
                         DTypeName(vector.dtype));
      }
      const std::int64_t bytes = vector.count * DTypeBytes(vector.dtype);
      MEGALITH_RETURN_IF_ERROR(
          InRange(what + " offset", vector.offset, 0, segment.vector_bytes - bytes));
      if (vector.offset % kAlignment != 0) {
        return Violation("V1", "{}: offset {} is not a multiple of {}", what, vector.offset,
                         kAlignment);
      }
      intervals.Add(vector.offset, vector.offset + bytes, vector.name);
    }
    return intervals.CheckDisjoint(fmt::format("segment {} vectors", segment.name));
  }

  Status CheckTiles(const Stream& stream, const std::string& where) const {
    MEGALITH_RETURN_IF_ERROR(InRange(where + " weight bytes", stream.weight_bytes, 0, kMaxBytes));
    MEGALITH_RETURN_IF_ERROR(
        InRange(where + " expert stride", stream.expert_stride_bytes, 0, kMaxBytes));
    Intervals dense;
    Intervals expert;
    for (std::size_t i = 0; i < stream.tiles.size(); ++i) {
      const Tile& tile = stream.tiles[i];
      const std::string what = fmt::format("{} tile {}", where, i);
      MEGALITH_RETURN_IF_ERROR(
          InRange(what + " tensor", tile.tensor, 0, Size(program_.tensors) - 1));
      const Tensor& tensor = program_.tensors[tile.tensor];
      MEGALITH_RETURN_IF_ERROR(CheckPair(tile, tensor, what));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " outputs", tile.num_outputs, 1, kMaxCount));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " inputs", tile.num_inputs, 1, kMaxCount));
      const std::int64_t outputs = tile.transposed ? tensor.inputs : tensor.outputs;
      const std::int64_t inputs = tile.transposed ? tensor.outputs : tensor.inputs;
      MEGALITH_RETURN_IF_ERROR(
          InRange(what + " first output", tile.first_output, 0, outputs - tile.num_outputs));
      MEGALITH_RETURN_IF_ERROR(
          InRange(what + " first input", tile.first_input, 0, inputs - tile.num_inputs));
      if (tensor.format == WeightFormat::kMxfp4 &&
          (tile.transposed || tile.first_input != 0 || tile.num_inputs != tensor.inputs)) {
        return Violation("V1", "{}: MXFP4 {} must be read over all inputs, not transposed", what,
                         tensor.name);
      }
      if (tensor.format == WeightFormat::kInt8 &&
          (tile.transposed || tile.first_input % kScaleGroup != 0)) {
        return Violation("V1",
                         "{}: int8 {} must be read from a whole group of {} inputs, not transposed",
                         what, tensor.name, kScaleGroup);
      }
      const std::int64_t panels =
          CeilDiv(tile.num_outputs, kPanelOutputs) * (tile.pair_tensor == kNone ? 1 : 2);
      MEGALITH_RETURN_IF_ERROR(InRange(what + " panels", tile.num_panels, panels, panels));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " source bytes", tile.source_bytes, 1, kMaxBytes));
      const bool is_expert = tensor.num_experts > 0;
      const std::int64_t room = is_expert ? stream.expert_stride_bytes : stream.weight_bytes;
      MEGALITH_RETURN_IF_ERROR(InRange(what + " bytes", tile.bytes, tile.source_bytes, room));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " offset", tile.offset, 0, room - tile.bytes));
      if (tile.offset % kAlignment != 0 || tile.bytes % kAlignment != 0) {
        return Violation("V1", "{}: offset {} and bytes {} must be multiples of {}", what,
                         tile.offset, tile.bytes, kAlignment);
      }
      (is_expert ? expert : dense).Add(tile.offset, tile.offset + tile.bytes, what);
    }
    MEGALITH_RETURN_IF_ERROR(dense.CheckDisjoint(where + " weights"));
    return expert.CheckDisjoint(where + " expert block");
  }

  Status CheckPair(const Tile& tile, const Tensor& tensor, const std::string& what) const {
    if (tile.pair_tensor == kNone) return {};
    MEGALITH_RETURN_IF_ERROR(
        InRange(what + " pair tensor", tile.pair_tensor, 0, Size(program_.tensors) - 1));
    const Tensor& pair = program_.tensors[tile.pair_tensor];
    if (pair.outputs != tensor.outputs || pair.inputs != tensor.inputs ||
        pair.format != tensor.format || pair.num_experts != tensor.num_experts ||
        pair.first_row != tensor.first_row || pair.num_rows != tensor.num_rows ||
        pair.first_expert != tensor.first_expert || pair.own_experts != tensor.own_experts) {
      return Violation("V1", "{}: {} and {} differ in shape or format", what, tensor.name,
                       pair.name);
    }
    return {};
  }

  Status CheckVisits() const {
    std::map<std::uint32_t, std::int32_t> ordinals;
    std::int32_t blocks = 0;
    std::int32_t captures = 0;
    std::int32_t draft_slots = 0;
    for (std::size_t i = 0; i < program_.visits.size(); ++i) {
      const Visit& visit = program_.visits[i];
      const std::string what = fmt::format("visit {}", i);
      MEGALITH_RETURN_IF_ERROR(
          InRange(what + " segment", visit.segment, 0, Size(program_.segments) - 1));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " ordinal", visit.ordinal, ordinals[visit.segment],
                                       ordinals[visit.segment]));
      ++ordinals[visit.segment];
      MEGALITH_RETURN_IF_ERROR(InRange(what + " blocks", visit.num_blocks, blocks, blocks));
      blocks += visit.pushes_block ? 1 : 0;
      MEGALITH_RETURN_IF_ERROR(CheckBlocksFit(visit, blocks, what));
      if (visit.capture_index != -1) {
        MEGALITH_RETURN_IF_ERROR(CheckCapture(visit, captures++, what));
      }
      if (visit.draft_slot != -1) {
        MEGALITH_RETURN_IF_ERROR(
            InRange(what + " draft slot", visit.draft_slot, draft_slots, draft_slots));
        ++draft_slots;
      }
      if (BindsDraftSlot(visit) != (visit.draft_slot != -1)) {
        return Violation("V1", "{}: a draft slot and instructions that use one belong together",
                         what);
      }
      MEGALITH_RETURN_IF_ERROR(InRange(what + " weight bases", Size(visit.weight_base),
                                       program_.num_workers, program_.num_workers));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " expert bases", Size(visit.expert_base),
                                       program_.num_workers, program_.num_workers));
      MEGALITH_RETURN_IF_ERROR(InRange(what + " exchange numbers", Size(visit.first_exchange),
                                       Size(program_.mailboxes), Size(program_.mailboxes)));
    }
    for (std::uint32_t i = 0; i < program_.segments.size(); ++i) {
      // What it reads and writes would count in the other proofs, and nothing would run it.
      if (!ordinals.contains(i)) {
        return Violation("V1", "segment {} is never visited", program_.segments[i].name);
      }
    }
    MEGALITH_RETURN_IF_ERROR(InRange("captured residuals", captures, program_.draft.num_captures,
                                     program_.draft.num_captures));
    return InRange("draft slots", draft_slots, program_.draft.num_drafts,
                   program_.draft.num_drafts);
  }

  /// Captures come in order and each visit that captures has instructions that do it.
  Status CheckCapture(const Visit& visit, std::int32_t expected, const std::string& what) const {
    MEGALITH_RETURN_IF_ERROR(InRange(what + " capture", visit.capture_index, expected, expected));
    for (const Stream& stream : program_.segments[visit.segment].streams) {
      for (const Instruction& instruction : stream.instructions) {
        if (instruction.opcode == Opcode::kCaptureResidual) return {};
      }
    }
    return Violation("V1", "{}: captures a residual without an instruction for it", what);
  }

  bool BindsDraftSlot(const Visit& visit) const {
    for (const Stream& stream : program_.segments[visit.segment].streams) {
      for (const Instruction& instruction : stream.instructions) {
        if (instruction.opcode == Opcode::kMarkovEmbed ||
            instruction.opcode == Opcode::kDraftChoose ||
            instruction.epilogue == Epilogue::kAddDraftBase) {
          return true;
        }
      }
    }
    return false;
  }

  /// The block buffer of every instruction of the visit must hold all blocks that exist by then.
  Status CheckBlocksFit(const Visit& visit, std::int32_t blocks, const std::string& what) const {
    for (const Stream& stream : program_.segments[visit.segment].streams) {
      for (const Instruction& instruction : stream.instructions) {
        if (instruction.opcode != Opcode::kAttnResNorm &&
            instruction.opcode != Opcode::kPushBlock) {
          continue;
        }
        if (instruction.operands[1].buffer == kNone) {
          if (blocks == 0) continue;
          return Violation("V1", "{}: a residual norm without blocks, but {} exist", what, blocks);
        }
        const Operand& operand = instruction.operands[1];
        if (blocks * program_.hidden_size > operand.end - operand.begin) {
          return Violation("V1", "{}: {} blocks of {} do not fit {} columns", what, blocks,
                           program_.hidden_size, operand.end - operand.begin);
        }
      }
    }
    return {};
  }

  /// What the visits bind: weights, experts, vectors and state are each visit's own.
  Status CheckBinds() const {
    Intervals vectors;
    std::vector<Intervals> weights(static_cast<std::size_t>(program_.num_workers));
    std::map<std::pair<BufferKind, std::int32_t>, std::size_t> states;
    for (std::size_t i = 0; i < program_.visits.size(); ++i) {
      const Visit& visit = program_.visits[i];
      const Segment& segment = program_.segments[visit.segment];
      const std::string what = fmt::format("visit {} ({})", i, segment.name);
      if (visit.shares_weights) {
        MEGALITH_RETURN_IF_ERROR(CheckShared(i, what));
        continue;
      }
      MEGALITH_RETURN_IF_ERROR(CheckBase(what + " vector base", visit.vector_base,
                                         segment.vector_bytes, program_.vector_arena_bytes));
      vectors.Add(visit.vector_base, visit.vector_base + segment.vector_bytes, what);
      for (std::size_t worker = 0; worker < weights.size(); ++worker) {
        const Stream& stream = segment.streams[worker];
        const std::int64_t arena = program_.weight_arena_bytes[worker];
        const std::string whose = fmt::format("{} worker {}", what, worker);
        MEGALITH_RETURN_IF_ERROR(CheckBase(whose + " weight base", visit.weight_base[worker],
                                           stream.weight_bytes, arena));
        weights[worker].Add(visit.weight_base[worker],
                            visit.weight_base[worker] + stream.weight_bytes, what);
        std::int64_t experts = 0;
        for (const Tile& tile : stream.tiles) {
          experts = std::max(experts, program_.tensors[tile.tensor].own_experts);
        }
        if (stream.expert_stride_bytes > 0 && experts > kMaxBytes / stream.expert_stride_bytes) {
          return Violation("V1", "{}: {} experts of {} bytes are too large", whose, experts,
                           stream.expert_stride_bytes);
        }
        const std::int64_t expert_bytes = experts * stream.expert_stride_bytes;
        MEGALITH_RETURN_IF_ERROR(
            CheckBase(whose + " expert base", visit.expert_base[worker], expert_bytes, arena));
        weights[worker].Add(visit.expert_base[worker], visit.expert_base[worker] + expert_bytes,
                            what + " experts");
      }
      MEGALITH_RETURN_IF_ERROR(CheckState(visit, segment, i, states));
    }
    MEGALITH_RETURN_IF_ERROR(vectors.CheckDisjoint("vector arena"));
    for (std::size_t worker = 0; worker < weights.size(); ++worker) {
      MEGALITH_RETURN_IF_ERROR(
          weights[worker].CheckDisjoint(fmt::format("weight arena of worker {}", worker)));
    }
    return {};
  }

  /// A visit may bind the weights of the visit before it again, if both are of one segment and it
  /// has no state.
  Status CheckShared(std::size_t index, const std::string& what) const {
    const Visit& visit = program_.visits[index];
    if (index == 0 || program_.visits[index - 1].segment != visit.segment ||
        program_.visits[index - 1].weight_base != visit.weight_base ||
        program_.visits[index - 1].expert_base != visit.expert_base ||
        program_.visits[index - 1].vector_base != visit.vector_base || visit.state_index != -1) {
      return Violation("V1", "{}: does not share the weights of the visit before it", what);
    }
    return {};
  }

  Status CheckBase(const std::string& what, std::int64_t base, std::int64_t bytes,
                   std::int64_t arena) const {
    MEGALITH_RETURN_IF_ERROR(InRange(what, base, 0, arena - bytes));
    if (base % kAlignment != 0) {
      return Violation("V1", "{}: {} is not a multiple of {}", what, base, kAlignment);
    }
    return {};
  }

  /// Each layer has its own state: no two visits of a step bind the same index of a kind.
  Status CheckState(const Visit& visit, const Segment& segment, std::size_t index,
                    std::map<std::pair<BufferKind, std::int32_t>, std::size_t>& states) const {
    std::map<BufferKind, bool> used;
    for (const Stream& stream : segment.streams) {
      for (const Instruction& instruction : stream.instructions) {
        for (const Operand& operand : instruction.operands) {
          if (operand.buffer == kNone) continue;
          const BufferKind kind = program_.buffers[operand.buffer].kind;
          if (IsLayerState(kind)) used[kind] = true;
        }
      }
    }
    for (const auto& [kind, unused] : used) {
      const std::int32_t layers = kind == BufferKind::kMlaCache ? program_.state.num_mla_layers
                                                                : program_.state.num_kda_layers;
      MEGALITH_RETURN_IF_ERROR(
          InRange(fmt::format("visit {} state index", index), visit.state_index, 0, layers - 1));
      const auto [other, is_new] = states.insert({{kind, visit.state_index}, index});
      if (!is_new) {
        return Violation("V1", "visits {} and {} both bind state {}", other->second, index,
                         visit.state_index);
      }
    }
    return {};
  }

  template <typename T>
  static std::int64_t Size(const std::vector<T>& values) {
    return static_cast<std::int64_t>(values.size());
  }

  const Program& program_;
};

}  // namespace

Status ProveWellFormed(const Program& program) { return WellFormed(program).Run(); }

}  // namespace megalith::program
