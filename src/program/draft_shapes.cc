#include "program/draft_shapes.h"

#include <fmt/format.h>

#include <algorithm>

namespace megalith::program {
namespace {

using Fault = std::optional<std::string>;

class DraftCheck {
 public:
  DraftCheck(const Program& program, const Segment& segment, const Instruction& instruction)
      : program_(program), segment_(segment), instruction_(instruction) {}

  Fault Run() const {
    switch (instruction_.opcode) {
      case Opcode::kCaptureResidual:
        return Capture();
      case Opcode::kSample:
        return Sample();
      case Opcode::kDraftAppend:
        return Append();
      case Opcode::kDraftEmbed:
        return Embed();
      case Opcode::kDraftAttention:
        return Attention();
      case Opcode::kMarkovEmbed:
        return MarkovEmbed();
      case Opcode::kDraftChoose:
        return Choose();
      case Opcode::kMarkovGate:
        return MarkovGate();
      case Opcode::kMarkovRnn:
        return MarkovRnn();
      default:
        return "no instruction of drafting";
    }
  }

 private:
  bool Has(std::size_t operand) const { return instruction_.operands[operand].buffer != kNone; }
  std::int64_t Columns(std::size_t operand) const {
    return instruction_.operands[operand].end - instruction_.operands[operand].begin;
  }
  const Buffer& BufferOf(std::size_t operand) const {
    return program_.buffers[instruction_.operands[operand].buffer];
  }

  Fault Expect(std::size_t operand, BufferKind kind, DType dtype, std::int64_t columns) const {
    const Buffer& buffer = BufferOf(operand);
    const std::string_view name = Info(instruction_.opcode).operand_names[operand];
    if (buffer.kind != kind || buffer.dtype != dtype) {
      return fmt::format("operand {}: buffer {} has the wrong kind or dtype {}", name, buffer.name,
                         DTypeName(buffer.dtype));
    }
    if (Columns(operand) != columns) {
      return fmt::format("operand {}: {} columns expected, {} found", name, columns,
                         Columns(operand));
    }
    return {};
  }
  Fault ExpectStepInput(std::size_t operand) const {
    return Expect(operand, BufferKind::kStepInput, DType::kI32, 1);
  }
  Fault ExpectTokens(std::size_t operand) const {
    return Expect(operand, BufferKind::kLogitRows, DType::kI32, 1);
  }
  Fault ExpectVector(std::size_t slot, std::int64_t count) const {
    const std::uint32_t index = instruction_.vectors[slot];
    if (index == kNone) return fmt::format("vector {} is missing", slot);
    const Vector& vector = segment_.vectors[index];
    if (vector.dtype == DType::kBf16 && vector.count == count) return {};
    return fmt::format("vector {}: {} bf16 expected, {} {} found", vector.name, count, vector.count,
                       DTypeName(vector.dtype));
  }
  /// imm[0] names a table with rows for every token.
  Fault ExpectTable(std::int64_t columns) const {
    const std::int64_t index = instruction_.imm[0];
    if (index < 0 || index >= static_cast<std::int64_t>(program_.tables.size())) {
      return fmt::format("table {} does not exist", index);
    }
    const Table& table = program_.tables[static_cast<std::size_t>(index)];
    if (table.columns == columns && table.rows == program_.vocab_size) return {};
    return fmt::format("table {}: [{}, {}] expected, [{}, {}] found", table.name,
                       program_.vocab_size, columns, table.rows, table.columns);
  }
  Fault ExpectTrip(Register trip) const {
    if (instruction_.trip == trip) return {};
    return fmt::format("trip count {} expected, {} found", RegisterName(trip),
                       RegisterName(instruction_.trip));
  }
  Fault ExpectDrafting() const {
    if (program_.draft.max_runs > 0) return {};
    return "no run of this Program drafts";
  }

  static Fault First(std::initializer_list<Fault> faults) {
    for (const Fault& fault : faults) {
      if (fault) return fault;
    }
    return {};
  }

  Fault Capture() const {
    return First({ExpectTrip(Register::kRows),
                  Expect(0, BufferKind::kRows, program_.activation_dtype, program_.hidden_size),
                  Expect(1, BufferKind::kRows, program_.activation_dtype,
                         program_.draft.num_captures * program_.hidden_size)});
  }

  Fault Sample() const {
    return First({ExpectTrip(Register::kLogitRows),
                  Expect(0, BufferKind::kLogitRows, DType::kF32, program_.vocab_size),
                  ExpectTokens(1), ExpectStepInput(2)});
  }

  Fault Append() const {
    const std::int64_t heads = instruction_.imm[0];
    const std::int64_t width = Columns(0);
    if (program_.state.draft_positions < 1) return "the Program keeps no draft context";
    if (heads < 1 || width % heads != 0 || width / heads % 2 != 0) {
      return fmt::format("{} columns are not {} heads that can be rotated", width, heads);
    }
    return First({ExpectTrip(Register::kRows),
                  Expect(0, BufferKind::kRows, program_.activation_dtype, width),
                  Expect(1, BufferKind::kRows, program_.activation_dtype, width),
                  Expect(2, BufferKind::kDraftCache, program_.activation_dtype, 2 * width),
                  ExpectWholeCache(2), ExpectVector(0, width / heads), ExpectStepInput(3)});
  }

  Fault ExpectWholeCache(std::size_t operand) const {
    const Buffer& cache = BufferOf(operand);
    if (instruction_.operands[operand].begin == 0 && cache.columns == Columns(operand)) return {};
    return fmt::format("cache {} is not used as whole rows", cache.name);
  }

  Fault Embed() const {
    const std::int64_t mask = program_.draft.mask_token;
    if (mask < 0 || mask >= program_.vocab_size) {
      return fmt::format("mask token {} is outside the vocabulary of {}", mask,
                         program_.vocab_size);
    }
    return First({ExpectDrafting(), ExpectTrip(Register::kDraftRows), ExpectTokens(0),
                  Expect(1, BufferKind::kDraftRows, program_.activation_dtype, Columns(1)),
                  ExpectTable(Columns(1)), ExpectStepInput(2)});
  }

  Fault Attention() const {
    const std::int64_t first = instruction_.imm[0];
    const std::int64_t last = instruction_.imm[1];
    const std::int64_t group = instruction_.imm[2];
    const std::int64_t heads = last - first;
    if (first < 0 || heads < 1 || group < 1) {
      return fmt::format("key heads [{}, {}) with {} query heads each", first, last, group);
    }
    const std::int64_t width = Columns(1);
    if (width % heads != 0 || width / heads % 2 != 0) {
      return fmt::format("{} columns are not {} heads that can be rotated", width, heads);
    }
    const std::int64_t dim = width / heads;
    const std::int64_t all_heads = Columns(3) / (2 * dim);
    for (const std::size_t operand : {1u, 2u}) {
      if (instruction_.operands[operand].begin != first * dim) return "columns of other key heads";
    }
    for (const std::size_t operand : {0u, 5u}) {
      if (instruction_.operands[operand].begin != first * group * dim) {
        return "columns of other query heads";
      }
    }
    const std::int64_t origin = program_.sharding.first_draft_head;  // of the cache
    if (first < origin || last - origin > all_heads) {
      return fmt::format("key heads [{}, {}), but the cache has [{}, {})", first, last, origin,
                         origin + all_heads);
    }
    if (instruction_.imm[3] < 0 ||
        PositionsFor(instruction_.imm[3]) > program_.state.draft_positions) {
      return fmt::format("a window of {} needs more than the {} positions kept",
                         instruction_.imm[3], program_.state.draft_positions);
    }
    return First(
        {ExpectDrafting(), ExpectTrip(Register::kDraftRows),
         Expect(0, BufferKind::kDraftRows, program_.activation_dtype, group * width),
         Expect(1, BufferKind::kDraftRows, program_.activation_dtype, width),
         Expect(2, BufferKind::kDraftRows, program_.activation_dtype, width),
         Expect(3, BufferKind::kDraftCache, program_.activation_dtype, 2 * all_heads * dim),
         ExpectWholeCache(3), ExpectTokens(4),
         Expect(5, BufferKind::kDraftRows, program_.activation_dtype, group * width),
         ExpectStepInput(6), ExpectVector(0, dim), ExpectVector(1, dim)});
  }

  /// So many that drafts which are taken back never overwrite a position that is still seen.
  std::int64_t PositionsFor(std::int64_t window) const {
    const std::int64_t all = program_.state.max_positions;
    return window == 0 ? all : std::min(window + program_.state.states_per_slot - 1, all);
  }

  Fault MarkovEmbed() const {
    const Fault fault =
        First({ExpectDrafting(), ExpectTrip(Register::kDraftRuns), ExpectTokens(0),
               Expect(1, BufferKind::kDraftRuns, DType::kI32, program_.draft.num_drafts),
               Expect(2, BufferKind::kDraftRuns, program_.activation_dtype, Columns(2)),
               ExpectStepInput(3)});
    if (fault) return fault;
    if (!Has(4)) return ExpectTable(Columns(2));
    // The state is as wide as the row of the table.
    return First({Expect(4, BufferKind::kDraftRuns, program_.activation_dtype, Columns(2) / 2),
                  ExpectTable(Columns(2) - Columns(4))});
  }

  Fault MarkovGate() const {
    const std::int64_t rank = Columns(2);
    return First({ExpectDrafting(), ExpectTrip(Register::kDraftRuns),
                  Expect(0, BufferKind::kDraftRuns, DType::kF32, rank),
                  Expect(1, BufferKind::kDraftRuns, program_.activation_dtype, rank),
                  Expect(2, BufferKind::kDraftRuns, program_.activation_dtype, rank),
                  ExpectVector(0, rank)});
  }

  Fault MarkovRnn() const {
    const std::int64_t rank = Columns(2);
    return First({ExpectDrafting(), ExpectTrip(Register::kDraftRuns),
                  Expect(0, BufferKind::kDraftRuns, DType::kF32, 3 * rank),
                  Expect(1, BufferKind::kDraftRuns, program_.activation_dtype, 2 * rank),
                  Expect(2, BufferKind::kDraftRuns, program_.activation_dtype, rank),
                  Expect(3, BufferKind::kDraftRuns, program_.activation_dtype, rank),
                  ExpectVector(0, 3 * rank)});
  }

  Fault Choose() const {
    const BufferKind logits = Has(2) ? BufferKind::kDraftRuns : BufferKind::kDraftRows;
    const Fault needed =
        First({ExpectDrafting(), ExpectTrip(Register::kDraftRuns),
               Expect(0, logits, DType::kF32, program_.vocab_size),
               Expect(3, BufferKind::kDraftRuns, DType::kI32, program_.draft.num_drafts),
               ExpectTokens(5), ExpectStepInput(6)});
    if (needed) return needed;
    if (Has(1) != Has(4)) return "confidences need hidden rows, and hidden rows are for them";
    if (!Has(1)) return {};
    const std::int64_t embedding =
        instruction_.imm[0] == 1 && Has(2) ? Columns(2) : 0;  // confidence_with_markov
    return First(
        {Expect(1, BufferKind::kDraftRows, program_.activation_dtype, program_.hidden_size),
         Expect(4, BufferKind::kDraftRuns, DType::kF32, program_.draft.num_drafts),
         ExpectVector(0, program_.hidden_size + embedding), ExpectVector(1, 1)});
  }

  const Program& program_;
  const Segment& segment_;
  const Instruction& instruction_;
};

}  // namespace

std::optional<std::string> FindDraftFault(const Program& program, const Segment& segment,
                                          const Instruction& instruction) {
  return DraftCheck(program, segment, instruction).Run();
}

bool GathersForDraft(const Instruction& instruction, std::size_t operand, BufferKind kind) {
  switch (instruction.opcode) {
    case Opcode::kDraftEmbed:
    case Opcode::kMarkovEmbed:
      return operand == 0 && kind == BufferKind::kLogitRows;
    case Opcode::kDraftAttention:
      return operand == 4 && kind == BufferKind::kLogitRows;
    case Opcode::kMatmul:
      return instruction.epilogue == Epilogue::kAddDraftBase && operand == 2 &&
             kind == BufferKind::kDraftRows;
    case Opcode::kDraftChoose:
      return (operand < 2 && kind == BufferKind::kDraftRows) ||
             (operand == 5 && kind == BufferKind::kLogitRows);
    default:
      return false;
  }
}

bool IsOptionalOfDraftChoose(std::size_t operand) {
  return operand == 1 || operand == 2 || operand == 4;
}

}  // namespace megalith::program
