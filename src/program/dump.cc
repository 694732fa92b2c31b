#include "program/dump.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "program/fields.h"
#include "program/serialize.h"

namespace megalith::program {
namespace {

using Json = nlohmann::ordered_json;

std::string_view EnumName(Opcode value) { return Info(value).name; }
std::string_view EnumName(DType value) { return DTypeName(value); }
std::string_view EnumName(WeightFormat value) { return WeightFormatName(value); }
std::string_view EnumName(Register value) { return RegisterName(value); }
std::string_view EnumName(Activation value) { return value == Activation::kSitu ? "situ" : "silu"; }
std::string_view EnumName(Epilogue value) {
  switch (value) {
    case Epilogue::kStore:
      return "store";
    case Epilogue::kGatedPair:
      return "gated_pair";
    case Epilogue::kAddResidual:
      return "add_residual";
    case Epilogue::kAddSharedResidual:
      return "add_shared_residual";
    case Epilogue::kSigmoidGate:
      return "sigmoid_gate";
    case Epilogue::kAddDraftBase:
      return "add_draft_base";
  }
  return "?";
}
std::string_view EnumName(BufferKind value) {
  switch (value) {
    case BufferKind::kRows:
      return "rows";
    case BufferKind::kLogitRows:
      return "logit_rows";
    case BufferKind::kPairs:
      return "pairs";
    case BufferKind::kDraftRuns:
      return "draft_runs";
    case BufferKind::kDraftRows:
      return "draft_rows";
    case BufferKind::kSingle:
      return "single";
    case BufferKind::kKdaState:
      return "kda_state";
    case BufferKind::kConvState:
      return "conv_state";
    case BufferKind::kMlaCache:
      return "mla_cache";
    case BufferKind::kDraftCache:
      return "draft_cache";
    case BufferKind::kStepInput:
      return "step_input";
    case BufferKind::kMailbox:
      return "mailbox";
  }
  return "?";
}
std::string_view EnumName(CounterScope value) {
  switch (value) {
    case CounterScope::kSegment:
      return "segment";
    case CounterScope::kProgram:
      return "program";
    case CounterScope::kHost:
      return "host";
    case CounterScope::kDone:
      return "done";
  }
  return "?";
}
std::string_view EnumName(VectorLayout value) {
  switch (value) {
    case VectorLayout::kAsStored:
      return "as_stored";
    case VectorLayout::kFold:
      return "fold";
    case VectorLayout::kTransposed:
      return "transposed";
  }
  return "?";
}

/// Builds the JSON form of a structure from its fields. kNone becomes null.
class JsonArchive {
 public:
  template <typename T>
  void operator()(const char* name, T& value) {
    object_[name] = Convert(value);
  }
  Json Take() { return std::move(object_); }

 private:
  static Json Convert(std::uint32_t& value) { return value == kNone ? Json() : Json(value); }
  static Json Convert(std::string& value) { return value; }
  template <typename T>
  requires std::is_arithmetic_v<T>
  static Json Convert(T& value) { return value; }
  template <typename T>
  requires std::is_enum_v<T>
  static Json Convert(T& value) { return std::string(EnumName(value)); }
  template <typename T>
  static Json Convert(std::vector<T>& values) {
    Json array = Json::array();
    for (T& value : values) array.push_back(Convert(value));
    return array;
  }
  template <typename T, std::size_t kSize>
  static Json Convert(std::array<T, kSize>& values) {
    Json array = Json::array();
    for (T& value : values) array.push_back(Convert(value));
    return array;
  }
  template <typename T>
  requires std::is_class_v<T>
  static Json Convert(T& value) {
    JsonArchive archive;
    Fields(archive, value);
    return archive.Take();
  }

  Json object_;
};

using Out = std::back_insert_iterator<std::string>;

void DumpOperands(Out out, const Program& program, const Instruction& instruction) {
  const OpcodeInfo& info = Info(instruction.opcode);
  for (std::size_t i = 0; i < info.operand_names.size(); ++i) {
    const Operand& operand = instruction.operands[i];
    if (operand.buffer == kNone) continue;
    const bool known = operand.buffer < program.buffers.size();
    fmt::format_to(
        out, " {}={}[{}:{}]", info.operand_names[i],
        known ? program.buffers[operand.buffer].name : fmt::format("#{}", operand.buffer),
        operand.begin, operand.end);
  }
}

std::string CounterName(const Program& program, std::uint32_t counter) {
  return counter < program.counters.size() ? program.counters[counter].name
                                           : fmt::format("#{}", counter);
}

void DumpSegment(Out out, const Program& program, const Segment& segment) {
  fmt::format_to(out, "\nsegment {} ({} vectors, {} bytes)\n", segment.name, segment.vectors.size(),
                 segment.vector_bytes);
  for (std::size_t i = 0; i < segment.vectors.size(); ++i) {
    const Vector& vector = segment.vectors[i];
    fmt::format_to(out, "  vector {} {}{}{} {} {}[{}] at {}\n", i, vector.name,
                   vector.second_name.empty() ? "" : " * ", vector.second_name,
                   EnumName(vector.layout), DTypeName(vector.dtype), vector.count, vector.offset);
  }
  for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
    const Stream& stream = segment.streams[worker];
    fmt::format_to(out, "  worker {}: {} instructions, {} weight bytes, {} bytes per expert\n",
                   worker, stream.instructions.size(), stream.weight_bytes,
                   stream.expert_stride_bytes);
    for (std::size_t i = 0; i < stream.instructions.size(); ++i) {
      fmt::format_to(out, "    {:3} {}\n", i,
                     Describe(program, segment, stream, stream.instructions[i]));
    }
  }
}

}  // namespace

std::string Describe(const Program& program, const Segment& segment, const Stream& stream,
                     const Instruction& instruction) {
  std::string text(Info(instruction.opcode).name);
  const Out out = std::back_inserter(text);
  if (instruction.opcode == Opcode::kMatmul) {
    fmt::format_to(out, ".{}", EnumName(instruction.epilogue));
  }
  if (instruction.tile < stream.tiles.size()) {
    const Tile& tile = stream.tiles[instruction.tile];
    const bool known = tile.tensor < program.tensors.size();
    fmt::format_to(out, " {}{}[{}:{}, {}:{}]", known ? program.tensors[tile.tensor].name : "?",
                   tile.transposed ? "^T" : "", tile.first_output,
                   tile.first_output + tile.num_outputs, tile.first_input,
                   tile.first_input + tile.num_inputs);
  }
  if (instruction.slot != kNone) fmt::format_to(out, " slot {}", instruction.slot);
  if (instruction.releases_slot) fmt::format_to(out, " (released)");
  if (instruction.opcode == Opcode::kFetchNext) fmt::format_to(out, " {}", instruction.imm[0]);
  DumpOperands(out, program, instruction);
  if (Info(instruction.opcode).scope == RowScope::kOwnRows) {
    fmt::format_to(out, " rows {}+{}k", instruction.rows.first, instruction.rows.step);
  }
  for (std::uint32_t vector : instruction.vectors) {
    if (vector < segment.vectors.size()) fmt::format_to(out, " v{}", vector);
  }
  if (instruction.trip != Register::kOne) {
    fmt::format_to(out, " trip {}", RegisterName(instruction.trip));
  }
  if (instruction.wait_counter != kNone) {
    fmt::format_to(out, " | wait {} {}", CounterName(program, instruction.wait_counter),
                   instruction.wait_amount);
  }
  if (instruction.signal_counter != kNone) {
    fmt::format_to(out, " | signal {} {}", CounterName(program, instruction.signal_counter),
                   instruction.signal_amount);
  }
  return text;
}

std::string DumpText(const Program& program) {
  std::string text;
  const Out out = std::back_inserter(text);
  fmt::format_to(out, "program {} hash {}\n", program.model_name, ContentHash(program));
  fmt::format_to(out, "{} workers, rows <= {}, logit rows <= {}, {} activations\n",
                 program.num_workers, program.max_rows, program.max_logit_rows,
                 DTypeName(program.activation_dtype));
  fmt::format_to(out, "store: {} slots of {} bytes per worker\n", program.store.num_slots,
                 program.store.slot_bytes);
  fmt::format_to(out, "\nbuffers ({} bytes)\n", program.activation_arena_bytes);
  for (const Buffer& buffer : program.buffers) {
    fmt::format_to(out, "  {:18} {:10} {} [{}, {}] stride {} at {}\n", buffer.name,
                   EnumName(buffer.kind), DTypeName(buffer.dtype), buffer.rows, buffer.columns,
                   buffer.row_stride, buffer.offset);
  }
  fmt::format_to(out, "\ncounters\n");
  for (const Counter& counter : program.counters) {
    fmt::format_to(out, "  {:32} {} {} signals per visit\n", counter.name, EnumName(counter.scope),
                   counter.signals_per_visit);
  }
  for (const Segment& segment : program.segments) DumpSegment(out, program, segment);
  fmt::format_to(out, "\nvisits\n");
  for (std::size_t i = 0; i < program.visits.size(); ++i) {
    const Visit& visit = program.visits[i];
    fmt::format_to(out, "  {:3} {} layer {} state {} blocks {}{} vectors at {}", i,
                   program.segments[visit.segment].name, visit.layer, visit.state_index,
                   visit.num_blocks, visit.pushes_block ? "+1" : "", visit.vector_base);
    if (visit.capture_index >= 0) fmt::format_to(out, " captures {}", visit.capture_index);
    if (visit.draft_slot >= 0) fmt::format_to(out, " draft slot {}", visit.draft_slot);
    fmt::format_to(out, "\n");
  }
  return text;
}

std::string DumpJson(const Program& program) {
  JsonArchive archive;
  // Fields takes a mutable reference because the reader shares it; nothing is changed here.
  Fields(archive, const_cast<Program&>(program));
  Json json = archive.Take();
  json["hash"] = ContentHash(program);
  return json.dump(1);
}

}  // namespace megalith::program
