#include "bench/step_cost.h"

namespace megalith::bench {
namespace {

using program::BufferKind;
using program::Opcode;

double Flops(const program::Tile& tile) {
  const double matrices = tile.pair_tensor == program::kNone ? 1.0 : 2.0;
  return 2.0 * matrices * static_cast<double>(tile.num_outputs) *
         static_cast<double>(tile.num_inputs);
}

void AddVisit(const program::Program& program, const program::Segment& segment, std::int64_t top_k,
              StepCost* cost) {
  cost->dense_bytes += static_cast<double>(segment.vector_bytes);
  double expert_bytes = 0.0;
  for (const program::Stream& stream : segment.streams) {
    for (const program::Instruction& instruction : stream.instructions) {
      if (instruction.tile == program::kNone || instruction.opcode == Opcode::kFetch) continue;
      const program::Tile& tile = stream.tiles[instruction.tile];
      const auto bytes = static_cast<double>(tile.bytes);
      const program::Tensor& tensor = program.tensors[tile.tensor];
      if (tensor.num_experts > 0) {
        // Of experts that are dealt out to ranks, this rank has its share.
        const double own =
            static_cast<double>(tensor.own_experts) / static_cast<double>(tensor.num_experts);
        expert_bytes += own * bytes;
        cost->row_flops += own * static_cast<double>(top_k) * Flops(tile);
      } else if (instruction.trip == program::Register::kLogitRows) {
        cost->head_bytes += bytes;
        cost->logit_flops += Flops(tile);
      } else {
        cost->dense_bytes += bytes;
        // Rows of fast runs leave these products out (Opcode::kMlaExpanded).
        if (instruction.imm[1] == 0) cost->row_flops += Flops(tile);
      }
    }
  }
  if (expert_bytes > 0.0) {
    ++cost->num_moe_layers;
    cost->expert_bytes = expert_bytes;  // the same in every layer: one config for all
  }
}

}  // namespace

StepCost CostOf(const program::Program& program, std::int64_t top_k) {
  StepCost cost;
  for (const program::Visit& visit : program.visits) {
    AddVisit(program, program.segments[visit.segment], top_k, &cost);
  }
  const double ranks = program.sharding.num_ranks;
  for (double* part : {&cost.dense_bytes, &cost.head_bytes, &cost.expert_bytes, &cost.row_flops,
                       &cost.logit_flops}) {
    *part *= ranks;
  }
  cost.row_bytes = ranks * static_cast<double>(program.hidden_size * DTypeBytes(DType::kBf16));
  for (const program::Buffer& buffer : program.buffers) {
    const auto bytes = ranks * static_cast<double>(buffer.columns * DTypeBytes(buffer.dtype));
    switch (buffer.kind) {
      case BufferKind::kKdaState:
      case BufferKind::kConvState:
        cost.state_bytes += 2.0 * bytes * program.state.num_kda_layers;
        break;
      case BufferKind::kMlaCache:
        cost.cache_bytes += bytes * program.state.num_mla_layers;
        break;
      default:
        break;
    }
  }
  return cost;
}

}  // namespace megalith::bench
