#include "exec/cpu/scratch.h"

#include <algorithm>

#include "base/align.h"
#include "exec/draft_instructions.h"
#include "kernels/kernel_table.h"
#include "kernels/mla_expanded_scratch.h"

namespace megalith::exec::cpu {
namespace {

using program::Instruction;
using program::Opcode;
using program::Program;
using program::Stream;

/// Floats of kernel scratch that one instruction needs.
std::int64_t KernelFloats(const Program& program, const Stream& stream,
                          const Instruction& instruction) {
  const auto columns = [&](std::size_t index) {
    return instruction.operands[index].end - instruction.operands[index].begin;
  };
  const std::int64_t heads = std::max<std::int64_t>(instruction.imm[1] - instruction.imm[0], 1);
  switch (instruction.opcode) {
    case Opcode::kMatmul:
    case Opcode::kExpertGateUp:
    case Opcode::kExpertDown:
      return kernels::MatmulScratchFloats(stream.tiles[instruction.tile].num_inputs);
    case Opcode::kAttnResNorm:
      // All blocks that the operand can hold, and the prefix.
      return kernels::AttnResScratchFloats(columns(1) / columns(0) + 1);
    case Opcode::kKda:
      return instruction.imm[2] == 1 ? std::max(kernels::KdaScratchFloats(columns(0) / heads),
                                                kernels::KdaChunkScratchFloats(columns(0) / heads))
                                     : kernels::KdaScratchFloats(columns(0) / heads);
    case Opcode::kMlaExpanded: {
      const std::int64_t rank = instruction.imm[2];
      const std::int64_t extra = columns(3) - rank;
      return kernels::MlaExpandedScratch(program.max_rows, columns(0) / heads - extra, extra, rank,
                                         columns(5) / heads, program::kAttentionSplit)
          .floats;
    }
    case Opcode::kMlaAttention:
    case Opcode::kMlaPartial: {
      const std::int64_t rank = columns(1) / heads;
      const std::int64_t extra = columns(2) - rank;
      return instruction.opcode == Opcode::kMlaPartial
                 ? kernels::MlaPartialScratchFloats(heads, rank, extra, program::kAttentionSplit)
                 : kernels::MlaScratchFloats(heads, rank, extra, program::kAttentionSplit);
    }
    case Opcode::kMlaMerge: {
      // A pointer for every chunk.
      const auto chunks =
          CeilDiv<std::int64_t>(program.state.max_positions, program::kAttentionChunk);
      return chunks * std::int64_t{sizeof(const float*) / sizeof(float)};
    }
    case Opcode::kRouterTopK:
      return kernels::RouterScratchFloats(columns(0), instruction.imm[3]);
    default:
      return DraftScratchFloats(program, instruction);
  }
}

}  // namespace

std::int64_t Scratch::GroupPanels(std::int64_t rows, std::int64_t unit) {
  const std::int64_t floats = rows > kernels::kMatmulRowBlock ? kAccFloats : kFewRowsAccFloats;
  const std::int64_t panels = floats / (rows * kernels::kPanelOutputs);
  return std::max(panels / unit, std::int64_t{1}) * unit;
}

Result<Scratch> Scratch::Allocate(const std::vector<program::VerifiedProgram>& programs,
                                  std::int32_t worker) {
  std::int64_t acc_floats = kAccFloats;
  std::int64_t sum_floats = kAccFloats;
  std::int64_t kernel_floats = 0;
  std::int64_t num_sources = 1;
  std::int32_t vocab_size = 0;
  for (const program::VerifiedProgram& verified : programs) {
    const Program& program = *verified;
    // One unit of a gate-up pair for all rows of a slab must fit whatever the budget.
    const std::int64_t slab_rows = std::min<std::int64_t>(program.max_rows, kSlabRows);
    acc_floats = std::max(acc_floats, slab_rows * 2 * std::int64_t{kernels::kPanelOutputs});
    const std::int64_t group_floats = std::max(kAccFloats, slab_rows * kernels::kPanelOutputs);
    sum_floats =
        std::max(sum_floats, CeilDiv<std::int64_t>(program.max_rows, slab_rows) * group_floats);
    for (const program::Segment& segment : program.segments) {
      const Stream& stream = segment.streams[static_cast<std::size_t>(worker)];
      for (const Instruction& instruction : stream.instructions) {
        kernel_floats = std::max(kernel_floats, KernelFloats(program, stream, instruction));
        if (ChoosesTokens(instruction.opcode)) vocab_size = program.vocab_size;
      }
    }
    for (const program::Visit& visit : program.visits) {
      num_sources = std::max<std::int64_t>(num_sources, visit.num_blocks + 2);
    }
  }
  constexpr std::int64_t kAlignment = 64;
  const auto floats_bytes = [](std::int64_t floats) {
    return RoundUp(floats * std::int64_t{sizeof(float)}, kAlignment);
  };
  const std::int64_t acc_bytes = floats_bytes(acc_floats);
  const std::int64_t sum_bytes = floats_bytes(sum_floats);
  const std::int64_t kernel_bytes = floats_bytes(kernel_floats);
  const std::int64_t source_bytes = num_sources * std::int64_t{sizeof(void*)};
  Scratch scratch;
  MEGALITH_ASSIGN_OR_RETURN(
      scratch.arena_,
      Arena::Allocate(static_cast<std::size_t>(acc_bytes + sum_bytes + kernel_bytes + source_bytes),
                      HugePages::kOff));
  if (vocab_size > 0) scratch.sampling_ = std::make_unique<kernels::SamplingScratch>(vocab_size);
  std::byte* position = scratch.arena_.data();
  scratch.acc_ = reinterpret_cast<float*>(position);
  scratch.sum_ = reinterpret_cast<float*>(position + acc_bytes);
  scratch.kernel_ = reinterpret_cast<float*>(position + acc_bytes + sum_bytes);
  scratch.sources_ = position + acc_bytes + sum_bytes + kernel_bytes;
  return scratch;
}

}  // namespace megalith::exec::cpu
