#pragma once

// Where every weight of a Program lies in the packed arenas. Programs of one model may share one
// set of packed weights: those of other row buckets have the same layout, those that draft begin
// with the layout of those that do not.

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "program/program.h"
#include "weights/packing.h"

namespace megalith::exec {

/// One tile in one visit. For expert tiles the job's names still hold `{expert}`; expert
/// first_expert + e lies at offset + e * expert_stride_bytes.
struct TilePlacement {
  weights::PanelJob job;
  std::int32_t worker = 0;
  std::int64_t first_expert = 0;
  std::int64_t num_experts = 0;  ///< that this rank has; 0: not an expert tile
  std::int64_t offset = 0;       ///< bytes into the worker's arena
  std::int64_t expert_stride_bytes = 0;
  std::int64_t bytes = 0;  ///< of one expert

  friend bool operator==(const TilePlacement&, const TilePlacement&) = default;
};

struct VectorPlacement {
  weights::VectorJob job;
  std::int64_t offset = 0;  ///< bytes into the vector arena

  friend bool operator==(const VectorPlacement&, const VectorPlacement&) = default;
};

struct WeightLayout {
  std::vector<std::int64_t> worker_bytes;  ///< size of each worker's arena
  std::int64_t vector_bytes = 0;
  std::vector<program::Table> tables;  ///< read in place
  std::int32_t rank = 0;               ///< of num_ranks, which share out the checking of tables
  std::int32_t num_ranks = 1;
  std::vector<TilePlacement> tiles;  ///< in visit order, then worker, then tile order
  std::vector<VectorPlacement> vectors;

  /// Bytes packing writes, without gaps.
  std::int64_t PackedBytes() const;
};

/// kBadProgram if a tile or vector does not lie inside its arena or packs to another size than the
/// Program says.
Result<WeightLayout> MakeWeightLayout(const program::Program& program);

/// Whether all of `needed` is the beginning of `packed`. kUsage naming the first difference:
/// worker, tile and values.
Status CheckLayoutFits(const WeightLayout& packed, const WeightLayout& needed);

kernels::PanelFormat PanelFormatOf(program::WeightFormat format);

/// `layers.{layer}.mlp` with 3 for {layer}: "layers.3.mlp". Names without the word stay as they
/// are.
std::string FillName(std::string_view name, std::string_view word, std::int64_t value);

}  // namespace megalith::exec
