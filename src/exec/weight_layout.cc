#include "exec/weight_layout.h"

#include <algorithm>
#include <functional>

namespace megalith::exec {
namespace {

using program::Program;
using program::Tensor;
using program::Tile;
using program::VectorLayout;
using program::Visit;
using program::WeightFormat;

weights::PanelJob MakeJob(const Program& program, const Tile& tile, std::int32_t layer) {
  const Tensor& tensor = program.tensors[tile.tensor];
  weights::PanelJob job;
  job.tensor = FillName(tensor.name, "{layer}", layer);
  if (tile.pair_tensor != program::kNone) {
    job.pair_tensor = FillName(program.tensors[tile.pair_tensor].name, "{layer}", layer);
  }
  job.format = PanelFormatOf(tensor.format);
  job.stored_rows = tensor.outputs;
  job.stored_columns = tensor.inputs;
  job.transposed = tile.transposed;
  job.first_output = tile.first_output;
  job.num_outputs = tile.num_outputs;
  job.first_input = tile.first_input;
  job.num_inputs = tile.num_inputs;
  return job;
}

weights::VectorJob MakeJob(const program::Vector& vector, std::int32_t layer) {
  weights::VectorJob job;
  job.name = FillName(vector.name, "{layer}", layer);
  job.second_name = FillName(vector.second_name, "{layer}", layer);
  switch (vector.layout) {
    case VectorLayout::kAsStored:
      job.form = weights::VectorForm::kAsStored;
      break;
    case VectorLayout::kFold:
      job.form = weights::VectorForm::kFold;
      break;
    case VectorLayout::kTransposed:
      job.form = weights::VectorForm::kTransposed;
      break;
  }
  job.dtype = vector.dtype;
  job.count = vector.count;
  job.stored_count = vector.stored_count;
  job.taps = vector.taps;
  return job;
}

Status CheckPlacement(const TilePlacement& tile, std::int64_t tile_bytes,
                      std::int64_t arena_bytes) {
  const std::int64_t copies = std::max<std::int64_t>(tile.num_experts, 1);
  const std::int64_t end = tile.offset + (copies - 1) * tile.expert_stride_bytes + tile.bytes;
  if (tile.offset < 0 || end > arena_bytes || tile.offset % 64 != 0 ||
      tile.expert_stride_bytes % 64 != 0) {
    return Fail(ErrorCode::kBadProgram,
                "worker {}, {}: packed bytes {}..{} do not lie inside its arena of {}", tile.worker,
                tile.job.tensor, tile.offset, end, arena_bytes);
  }
  if (tile.bytes != tile_bytes) {
    return Fail(ErrorCode::kBadProgram, "worker {}, {}: packs to {} bytes, the Program says {}",
                tile.worker, tile.job.tensor, tile.bytes, tile_bytes);
  }
  return {};
}

Status AddStream(const Program& program, const Visit& visit, std::int32_t worker,
                 WeightLayout* layout) {
  const auto w = static_cast<std::size_t>(worker);
  const program::Stream& stream = program.segments[visit.segment].streams[w];
  for (const Tile& tile : stream.tiles) {
    TilePlacement placement;
    placement.job = MakeJob(program, tile, visit.layer);
    placement.worker = worker;
    placement.first_expert = program.tensors[tile.tensor].first_expert;
    placement.num_experts = program.tensors[tile.tensor].own_experts;
    placement.bytes = weights::PackedBytes(placement.job);
    if (placement.num_experts > 0) {
      placement.offset = visit.expert_base[w] + tile.offset;
      placement.expert_stride_bytes = stream.expert_stride_bytes;
    } else {
      placement.offset = visit.weight_base[w] + tile.offset;
    }
    MEGALITH_RETURN_IF_ERROR(CheckPlacement(placement, tile.bytes, program.weight_arena_bytes[w]));
    layout->tiles.push_back(std::move(placement));
  }
  return {};
}

std::string Describe(const TilePlacement& tile) {
  return fmt::format("worker {} {}{}{} outputs {}+{} inputs {}+{} at {}", tile.worker,
                     tile.job.tensor, tile.job.pair_tensor.empty() ? "" : "/", tile.job.pair_tensor,
                     tile.job.first_output, tile.job.num_outputs, tile.job.first_input,
                     tile.job.num_inputs, tile.offset);
}

}  // namespace

kernels::PanelFormat PanelFormatOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kMxfp4:
      return kernels::PanelFormat::kMxfp4;
    case WeightFormat::kInt8:
      return kernels::PanelFormat::kInt8;
    case WeightFormat::kBf16:
      break;
  }
  return kernels::PanelFormat::kBf16;
}

std::string FillName(std::string_view name, std::string_view word, std::int64_t value) {
  const std::size_t at = name.find(word);
  if (at == std::string_view::npos) return std::string(name);
  return fmt::format("{}{}{}", name.substr(0, at), value, name.substr(at + word.size()));
}

std::int64_t WeightLayout::PackedBytes() const {
  std::int64_t bytes = 0;
  for (const TilePlacement& tile : tiles) {
    bytes += std::max<std::int64_t>(tile.num_experts, 1) * tile.bytes;
  }
  for (const VectorPlacement& vector : vectors) bytes += weights::PackedBytes(vector.job);
  return bytes;
}

Result<WeightLayout> MakeWeightLayout(const Program& program) {
  WeightLayout layout;
  layout.worker_bytes = program.weight_arena_bytes;
  layout.vector_bytes = program.vector_arena_bytes;
  layout.tables = program.tables;
  layout.rank = program.sharding.rank;
  layout.num_ranks = program.sharding.num_ranks;
  for (const Visit& visit : program.visits) {
    if (visit.shares_weights) continue;
    for (std::int32_t worker = 0; worker < program.num_workers; ++worker) {
      MEGALITH_RETURN_IF_ERROR(AddStream(program, visit, worker, &layout));
    }
    for (const program::Vector& vector : program.segments[visit.segment].vectors) {
      VectorPlacement placement{MakeJob(vector, visit.layer), visit.vector_base + vector.offset};
      const std::int64_t end = placement.offset + weights::PackedBytes(placement.job);
      if (placement.offset < 0 || placement.offset % 64 != 0 || end > layout.vector_bytes) {
        return Fail(ErrorCode::kBadProgram, "{}: bytes {}..{} do not lie inside the arena of {}",
                    placement.job.name, placement.offset, end, layout.vector_bytes);
      }
      layout.vectors.push_back(std::move(placement));
    }
  }
  return layout;
}

Status CheckLayoutFits(const WeightLayout& packed, const WeightLayout& needed) {
  const bool workers_fit = packed.worker_bytes.size() == needed.worker_bytes.size() &&
                           std::equal(needed.worker_bytes.begin(), needed.worker_bytes.end(),
                                      packed.worker_bytes.begin(), std::less_equal<>());
  if (!workers_fit) {
    return Fail(ErrorCode::kUsage,
                "weights are packed for {} workers with {} bytes, not {} with {}",
                packed.worker_bytes.size(), fmt::join(packed.worker_bytes, ", "),
                needed.worker_bytes.size(), fmt::join(needed.worker_bytes, ", "));
  }
  if (packed.tiles.size() < needed.tiles.size() || packed.vectors.size() < needed.vectors.size()) {
    return Fail(ErrorCode::kUsage, "weights are packed as {} tiles and {} vectors, not {} and {}",
                packed.tiles.size(), packed.vectors.size(), needed.tiles.size(),
                needed.vectors.size());
  }
  for (std::size_t i = 0; i < needed.tiles.size(); ++i) {
    if (packed.tiles[i] != needed.tiles[i]) {
      return Fail(ErrorCode::kUsage, "tile {} is packed as {}, not as {}", i,
                  Describe(packed.tiles[i]), Describe(needed.tiles[i]));
    }
  }
  for (std::size_t i = 0; i < needed.vectors.size(); ++i) {
    if (packed.vectors[i] != needed.vectors[i]) {
      return Fail(ErrorCode::kUsage, "vector {} is packed as {} at {}, not as {} at {}", i,
                  packed.vectors[i].job.name, packed.vectors[i].offset, needed.vectors[i].job.name,
                  needed.vectors[i].offset);
    }
  }
  for (std::size_t i = 0; i < needed.tables.size(); ++i) {
    if (i >= packed.tables.size() || packed.tables[i] != needed.tables[i]) {
      const program::Table missing;
      const program::Table& found = i < packed.tables.size() ? packed.tables[i] : missing;
      return Fail(ErrorCode::kUsage, "table {} [{}, {}] expected, {} [{}, {}] found",
                  needed.tables[i].name, needed.tables[i].rows, needed.tables[i].columns,
                  found.name, found.rows, found.columns);
    }
  }
  return {};
}

}  // namespace megalith::exec
