// V8: every weight is read exactly once per visit, every output is written exactly once, and
// nothing is read that the step has not written.

#include <algorithm>
#include <map>

#include "program/dump.h"
#include "program/effects.h"
#include "program/proofs.h"

namespace megalith::program {
namespace {

struct Rectangle {
  std::int64_t row_begin, row_end, column_begin, column_end;
};

bool Overlap(const Rectangle& a, const Rectangle& b) {
  return a.row_begin < b.row_end && b.row_begin < a.row_end && a.column_begin < b.column_end &&
         b.column_begin < a.column_end;
}

/// The stored elements that a tile holds.
Rectangle StoredPart(const Tile& tile) {
  const Rectangle plain{tile.first_output, tile.first_output + tile.num_outputs, tile.first_input,
                        tile.first_input + tile.num_inputs};
  if (!tile.transposed) return plain;
  return {plain.column_begin, plain.column_end, plain.row_begin, plain.row_end};
}

/// Stored elements and the instruction that reads them.
struct Part {
  Rectangle elements;
  const Instruction* reader;
};

/// What is read of a tensor, and by which segments.
struct Reading {
  std::string segments;
  std::vector<Part> parts;
};
using Readings = std::map<std::uint32_t, Reading>;  // by tensor

std::int64_t Area(const std::vector<Part>& parts) {
  std::int64_t area = 0;
  for (const auto& [elements, reader] : parts) {
    area += (elements.row_end - elements.row_begin) * (elements.column_end - elements.column_begin);
  }
  return area;
}

std::int64_t NumElements(const Tensor& tensor) { return tensor.num_rows * tensor.inputs; }

/// The parts are this rank's rows of the tensor: all of them, without overlap.
Status CheckReadOnce(const Tensor& tensor, const Reading& reading) {
  const std::vector<Part>& parts = reading.parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Rectangle& a = parts[i].elements;
    if (a.row_begin < tensor.first_row || a.row_end > tensor.first_row + tensor.num_rows) {
      return Fail(ErrorCode::kBadProgram, "V8: segment {}: rows [{}, {}) of {} are another rank's",
                  reading.segments, a.row_begin, a.row_end, tensor.name);
    }
    for (std::size_t j = i + 1; j < parts.size(); ++j) {
      if (Overlap(a, parts[j].elements)) {
        return Fail(ErrorCode::kBadProgram,
                    "V8: segment {}: two tiles of {} share stored rows from {} and {}",
                    reading.segments, tensor.name, a.row_begin, parts[j].elements.row_begin);
      }
    }
  }
  if (Area(parts) != NumElements(tensor)) {
    return Fail(ErrorCode::kBadProgram, "V8: segment {}: {} of {} elements of {} are read",
                reading.segments, Area(parts), NumElements(tensor), tensor.name);
  }
  return {};
}

/// Whether the parts hold every row of this rank exactly once.
bool HoldRowsOnce(const Tensor& tensor, std::vector<Part> parts) {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.elements.row_begin < b.elements.row_begin;
  });
  std::int64_t row = tensor.first_row;
  for (const Part& part : parts) {
    if (part.elements.row_begin != row) return false;
    row = part.elements.row_end;
  }
  return row == tensor.first_row + tensor.num_rows;
}

/// A tensor that segments share out is cut between its inputs, so each has a part of every sum: one
/// stores it and the other adds just that.
Status CheckAddedUp(const Tensor& tensor, const Reading& reading) {
  std::vector<Part> stored;
  std::vector<Part> added;
  for (const Part& part : reading.parts) {
    (part.reader->epilogue == Epilogue::kAddDraftBase ? added : stored).push_back(part);
  }
  bool added_up = HoldRowsOnce(tensor, stored) && HoldRowsOnce(tensor, added);
  for (const auto& [rows, reader] : added) {
    const Operand& base = reader->operands[2];
    std::int64_t found = 0;
    for (const auto& [stored_rows, storing] : stored) {
      const Operand& out = storing->operands[1];
      if (out.buffer != base.buffer ||
          out.begin - stored_rows.row_begin != base.begin - rows.row_begin) {
        continue;
      }
      found += std::max<std::int64_t>(0, std::min(rows.row_end, stored_rows.row_end) -
                                             std::max(rows.row_begin, stored_rows.row_begin));
    }
    added_up = added_up && found == rows.row_end - rows.row_begin;
  }
  if (added_up) return {};
  return Fail(ErrorCode::kBadProgram, "V8: segment {}: their products with {} are not added up",
              reading.segments, tensor.name);
}

/// A segment reads a tensor whole. Of one that belongs to no layer, and so is the same for all
/// visits, it may read a part, which is added to `shared`.
Status CheckWeights(const Program& program, const Segment& segment, Readings* shared) {
  Readings readings;
  for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
    const Stream& stream = segment.streams[worker];
    std::vector<std::vector<const Instruction*>> readers(stream.tiles.size());
    for (const Instruction& instruction : stream.instructions) {
      if (instruction.tile != kNone && instruction.opcode != Opcode::kFetch) {
        readers[instruction.tile].push_back(&instruction);
      }
    }
    for (std::size_t i = 0; i < stream.tiles.size(); ++i) {
      const Tile& tile = stream.tiles[i];
      if (readers[i].size() != 1) {
        return Fail(ErrorCode::kBadProgram,
                    "V8: segment {} worker {} tile {} ({}): read {} times, once expected",
                    segment.name, worker, i, program.tensors[tile.tensor].name, readers[i].size());
      }
      const Part part{StoredPart(tile), readers[i].front()};
      readings[tile.tensor].parts.push_back(part);
      if (tile.pair_tensor != kNone) readings[tile.pair_tensor].parts.push_back(part);
    }
  }
  for (auto& [index, reading] : readings) {
    const Tensor& tensor = program.tensors[index];
    reading.segments = segment.name;
    const bool has_layer = tensor.name.find("{layer}") != std::string::npos;
    if (has_layer || Area(reading.parts) == NumElements(tensor)) {
      MEGALITH_RETURN_IF_ERROR(CheckReadOnce(tensor, reading));
      continue;
    }
    Reading& all = (*shared)[index];
    all.segments += (all.segments.empty() ? "" : ", ") + segment.name;
    all.parts.insert(all.parts.end(), reading.parts.begin(), reading.parts.end());
  }
  return {};
}

/// Columns of a buffer that hold a value, as disjoint sorted intervals.
class Columns {
 public:
  void Add(std::int64_t begin, std::int64_t end) {
    intervals_.push_back({begin, end});
    std::sort(intervals_.begin(), intervals_.end());
    std::vector<std::pair<std::int64_t, std::int64_t>> merged;
    for (const auto& interval : intervals_) {
      if (!merged.empty() && interval.first <= merged.back().second) {
        merged.back().second = std::max(merged.back().second, interval.second);
      } else {
        merged.push_back(interval);
      }
    }
    intervals_ = std::move(merged);
  }
  bool Contains(std::int64_t begin, std::int64_t end) const {
    return std::any_of(intervals_.begin(), intervals_.end(), [&](const auto& interval) {
      return interval.first <= begin && end <= interval.second;
    });
  }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> intervals_;
};

struct Write {
  Effect effect;
  std::size_t worker;
};
using Writes = std::map<std::uint32_t, std::vector<Write>>;

/// What a segment's instructions give values to, without state (whose rows persist), host input and
/// mailboxes (V6). Whoever updates in place needs a value to be there, so it does not count: V5
/// orders it.
Writes CollectWrites(const Program& program, const Segment& segment) {
  Writes writes;
  for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
    for (const Instruction& instruction : segment.streams[worker].instructions) {
      for (const Effect& effect : Effects(program, instruction)) {
        const BufferKind kind = program.buffers[effect.buffer].kind;
        if (effect.writes && !effect.reads && !IsState(kind) && kind != BufferKind::kMailbox) {
          writes[effect.buffer].push_back({effect, worker});
        }
      }
    }
  }
  return writes;
}

Status CheckWrites(const Program& program, const Segment& segment, const Writes& writes) {
  for (const auto& [index, list] : writes) {
    const std::string& name = program.buffers[index].name;
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (std::size_t j = i + 1; j < list.size(); ++j) {
        if (Conflict(list[i].effect, list[j].effect)) {
          return Fail(ErrorCode::kBadProgram,
                      "V8: segment {}: columns from {} of {} are written by worker {} and again by "
                      "worker {}",
                      segment.name, std::max(list[i].effect.begin, list[j].effect.begin), name,
                      list[i].worker, list[j].worker);
        }
      }
    }
    // Row shares must make up all rows: with no two in conflict, as many shares as the step.
    for (const Write& write : list) {
      if (!write.effect.own_rows) continue;
      const auto shares = std::count_if(list.begin(), list.end(), [&write](const Write& other) {
        return other.effect.own_rows && other.effect.begin == write.effect.begin &&
               other.effect.end == write.effect.end &&
               other.effect.first_expert == write.effect.first_expert;
      });
      if (shares != write.effect.rows.step) {
        return Fail(ErrorCode::kBadProgram, "V8: segment {}: {} of {} row shares of {} are written",
                    segment.name, shares, write.effect.rows.step, name);
      }
    }
  }
  return {};
}

/// State is written for all rows and all of its columns, too.
Status CheckStateWrites(const Program& program, const Segment& segment) {
  std::map<std::uint32_t, std::vector<Effect>> writes;
  for (const Stream& stream : segment.streams) {
    for (const Instruction& instruction : stream.instructions) {
      for (const Effect& effect : Effects(program, instruction)) {
        if (effect.writes && IsState(program.buffers[effect.buffer].kind)) {
          writes[effect.buffer].push_back(effect);
        }
      }
    }
  }
  for (const auto& [index, list] : writes) {
    const Buffer& buffer = program.buffers[index];
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::int64_t width = list[i].end - list[i].begin;
      covered += list[i].own_rows ? (list[i].rows.first == 0 ? width : 0) : width;
      const auto shares = std::count_if(list.begin(), list.end(),
                                        [](const Effect& other) { return other.own_rows; });
      if (list[i].own_rows && shares != list[i].rows.step) {
        return Fail(ErrorCode::kBadProgram, "V8: segment {}: {} of {} row shares of {} are written",
                    segment.name, shares, list[i].rows.step, buffer.name);
      }
      for (std::size_t j = i + 1; j < list.size(); ++j) {
        if (Conflict(list[i], list[j])) {
          return Fail(ErrorCode::kBadProgram, "V8: segment {}: {} is written twice from column {}",
                      segment.name, buffer.name, std::max(list[i].begin, list[j].begin));
        }
      }
    }
    if (covered != buffer.columns) {
      return Fail(ErrorCode::kBadProgram, "V8: segment {}: {} of {} columns of {} are written",
                  segment.name, covered, buffer.columns, buffer.name);
    }
  }
  return {};
}

/// Walks the step: what a visit reads, it or an earlier visit has written.
Status CheckReads(const Program& program) {
  std::map<std::uint32_t, Columns> written;
  std::vector<bool> seen(program.segments.size(), false);
  for (const Visit& visit : program.visits) {
    // What is written only grows, so a segment's first visit is the hardest.
    if (seen[visit.segment]) continue;
    seen[visit.segment] = true;
    const Segment& segment = program.segments[visit.segment];
    for (const auto& [index, list] : CollectWrites(program, segment)) {
      for (const Write& write : list) written[index].Add(write.effect.begin, write.effect.end);
    }
    for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
      for (const Instruction& instruction : segment.streams[worker].instructions) {
        for (const Effect& effect : Effects(program, instruction)) {
          const Buffer& buffer = program.buffers[effect.buffer];
          if (!effect.reads || IsState(buffer.kind) || buffer.kind == BufferKind::kStepInput ||
              buffer.kind == BufferKind::kMailbox) {
            continue;
          }
          if (!written[effect.buffer].Contains(effect.begin, effect.end)) {
            return Fail(ErrorCode::kBadProgram,
                        "V8: segment {} worker {}: {} reads columns [{}, {}) of {}, which nothing "
                        "has written",
                        segment.name, worker, Info(instruction.opcode).name, effect.begin,
                        effect.end, buffer.name);
          }
        }
      }
    }
  }
  return {};
}

}  // namespace

Status ProveUse(const Program& program) {
  std::vector<bool> used(program.tensors.size(), false);
  Readings shared;
  for (const Segment& segment : program.segments) {
    MEGALITH_RETURN_IF_ERROR(CheckWeights(program, segment, &shared));
    MEGALITH_RETURN_IF_ERROR(CheckWrites(program, segment, CollectWrites(program, segment)));
    MEGALITH_RETURN_IF_ERROR(CheckStateWrites(program, segment));
    for (const Stream& stream : segment.streams) {
      for (const Tile& tile : stream.tiles) {
        used[tile.tensor] = true;
        if (tile.pair_tensor != kNone) used[tile.pair_tensor] = true;
      }
    }
  }
  for (const auto& [index, reading] : shared) {
    MEGALITH_RETURN_IF_ERROR(CheckReadOnce(program.tensors[index], reading));
    MEGALITH_RETURN_IF_ERROR(CheckAddedUp(program.tensors[index], reading));
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    const bool has_part =
        program.tensors[i].num_rows > 0;  // of a small matrix some ranks have none
    if (!used[i] && has_part) {
      return Fail(ErrorCode::kBadProgram, "V8: no tile reads tensor {}", program.tensors[i].name);
    }
  }
  return CheckReads(program);
}

}  // namespace megalith::program
