#include "trace/ops.h"

#include <algorithm>
#include <map>

#include "base/dtype.h"

namespace megalith::trace {
namespace {

using program::Instruction;
using program::kNone;
using program::Opcode;
using program::Program;
using program::Segment;
using program::Stream;
using program::Tile;

/// The last two parts of a tensor's name, without what says nothing: "layers.{layer}.self_attn.q"
/// -> "q", "layers.{layer}.mlp.shared_experts.down_proj" -> "shared_experts.down_proj".
std::string ShortName(std::string_view name) {
  std::vector<std::string_view> parts;
  while (!name.empty()) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, dot);
    if (!part.starts_with('{') && part != "layers" && part != "self_attn" && part != "model") {
      parts.push_back(part);
    }
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  std::string result;
  for (std::size_t i = parts.size() - std::min<std::size_t>(parts.size(), 2); i < parts.size();
       ++i) {
    result += result.empty() ? "" : ".";
    result += parts[i];
  }
  return result;
}

std::string NameOf(const Program& program, const Stream& stream, const Instruction& instruction) {
  const program::OpcodeInfo& info = program::Info(instruction.opcode);
  std::string name(info.name);
  if (instruction.opcode == Opcode::kMatmul) {
    const Tile& tile = stream.tiles[instruction.tile];
    name += " " + ShortName(program.tensors[tile.tensor].name);
    if (tile.pair_tensor != kNone) {
      // "shared_experts.gate_proj+up_proj"
      const std::string pair = ShortName(program.tensors[tile.pair_tensor].name);
      const std::size_t dot = pair.rfind('.');
      name += "+" + (dot == std::string::npos ? pair : pair.substr(dot + 1));
    }
    return name;
  }
  if (info.scope != program::RowScope::kOwnRows) return name;
  // Norms are told apart by what they write.
  for (std::size_t i = 0; i < info.operand_names.size(); ++i) {
    const std::uint32_t buffer = instruction.operands[i].buffer;
    if (info.operand_names[i] == "out" && buffer != kNone) {
      name += " " + program.buffers[buffer].name;
    }
  }
  return name;
}

OpGroup GroupOf(const Program& program, const Stream& stream, const Instruction& instruction,
                bool in_layer) {
  switch (instruction.opcode) {
    case Opcode::kMatmul: {
      if (!in_layer) return OpGroup::kEnds;
      const std::string& tensor = program.tensors[stream.tiles[instruction.tile].tensor].name;
      return tensor.find("self_attn") != std::string::npos ? OpGroup::kProjections
                                                           : OpGroup::kFeedForward;
    }
    case Opcode::kExpertGateUp:
    case Opcode::kExpertDown:
      return OpGroup::kExperts;
    case Opcode::kKda:
    case Opcode::kMlaAppend:
    case Opcode::kMlaAttention:
    case Opcode::kMlaPartial:
    case Opcode::kMlaMerge:
    case Opcode::kMlaExpanded:
      return OpGroup::kMixers;
    case Opcode::kAttnResNorm:
    case Opcode::kPushBlock:
    case Opcode::kRmsNorm:
      return OpGroup::kNorms;
    case Opcode::kRouterTopK:
    case Opcode::kRoutePlan:
      return OpGroup::kRouting;
    case Opcode::kEmbed:
      return OpGroup::kEnds;
    default:
      return OpGroup::kOther;
  }
}

}  // namespace

std::string_view OpGroupName(OpGroup group) {
  switch (group) {
    case OpGroup::kProjections:
      return "mixer weights";
    case OpGroup::kFeedForward:
      return "feed-forward weights";
    case OpGroup::kExperts:
      return "routed experts";
    case OpGroup::kMixers:
      return "KDA, MLA";
    case OpGroup::kNorms:
      return "norms";
    case OpGroup::kRouting:
      return "routing";
    case OpGroup::kEnds:
      return "embedding, head";
    case OpGroup::kOther:
      return "other";
  }
  return "?";
}

OpTable::OpTable(const Program& program) {
  std::vector<bool> in_layer(program.segments.size(), false);
  for (const program::Visit& visit : program.visits) {
    if (visit.layer >= 0) in_layer[visit.segment] = true;
  }
  std::map<std::string, std::size_t> known;
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    auto& workers = index_.emplace_back();
    for (const Stream& stream : program.segments[s].streams) {
      auto& instructions = workers.emplace_back();
      for (const Instruction& instruction : stream.instructions) {
        Op op{NameOf(program, stream, instruction),
              GroupOf(program, stream, instruction, in_layer[s])};
        const auto [entry, is_new] = known.emplace(op.name, ops_.size());
        if (is_new) ops_.push_back(std::move(op));
        instructions.push_back(entry->second);
      }
    }
  }
}

ReadBytes CountReadBytes(const Program& program, const Stream& stream,
                         const Instruction& instruction, const program::TraceRecord& record,
                         const program::TraceStepInfo& step) {
  ReadBytes bytes;
  const std::int64_t trip = record.trip;
  const bool is_request =
      instruction.opcode == Opcode::kFetch || instruction.opcode == Opcode::kFetchNext;
  if (instruction.tile != kNone && !is_request) {
    const Tile& tile = stream.tiles[instruction.tile];
    const bool expert = program.tensors[tile.tensor].num_experts > 0;
    bytes.weights = tile.bytes * (expert ? trip : std::min<std::int64_t>(trip, 1));
  }
  if (instruction.opcode == Opcode::kEmbed) {
    bytes.weights = CountRows(instruction, record) * program.hidden_size * DTypeBytes(DType::kBf16);
  }
  const program::OpcodeInfo& info = program::Info(instruction.opcode);
  for (std::size_t i = 0; i < info.operand_names.size(); ++i) {
    const program::Operand& operand = instruction.operands[i];
    if (operand.buffer == kNone || info.operand_access[i] == program::Access::kWrite) continue;
    const program::Buffer& buffer = program.buffers[operand.buffer];
    if (!program::IsState(buffer.kind)) continue;
    const std::int64_t row_bytes = (operand.end - operand.begin) * DTypeBytes(buffer.dtype);
    // A cache is read once by all rows of a run together; other state once per run.
    std::int64_t times = step.runs;
    if (buffer.kind == program::BufferKind::kMlaCache) times = step.context_rows;
    // Of the chunk in which one share ends and another begins, each reads all; that is left out.
    if (instruction.opcode == Opcode::kMlaPartial) times = times / instruction.imm[4];
    bytes.state += row_bytes * times;
  }
  return bytes;
}

std::int64_t CountRows(const Instruction& instruction, const program::TraceRecord& record) {
  const std::int64_t trip = record.trip;
  const program::RowScope scope = program::Info(instruction.opcode).scope;
  if (scope == program::RowScope::kOwnRows) {
    const program::RowSet& rows = instruction.rows;
    return std::max<std::int64_t>(0, (trip - rows.first + rows.step - 1) / rows.step);
  }
  const bool walks_trip = scope == program::RowScope::kAllRows ||
                          instruction.opcode == Opcode::kExpertGateUp ||
                          instruction.opcode == Opcode::kExpertDown;
  return walks_trip ? trip : 0;
}

}  // namespace megalith::trace
