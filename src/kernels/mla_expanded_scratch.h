#pragma once

// Scratch memory of MlaExpandedArgs.

#include <cstdint>

#include "base/align.h"
#include "kernels/kernel_table.h"

namespace megalith::kernels {

/// Rows whose scores of a part are held at once, and positions expanded at once: what they take
/// stays in the L2 beside a part's keys and values. Bits do not depend on it.
inline constexpr std::int64_t kMlaExpandedTile = 64;
/// Where the parts of the scratch lie, in floats.
struct MlaExpandedScratch {
  MlaExpandedScratch(std::int64_t rows, std::int64_t nope, std::int64_t extra, std::int64_t rank,
                     std::int64_t value_dim, std::int64_t split) {
    constexpr std::int64_t kFloatsPerBf16 = 2;
    const auto panels = [](std::int64_t outputs) {
      return CeilDiv<std::int64_t>(outputs, kPanelOutputs);
    };
    const auto panel_floats = [&](std::int64_t outputs, std::int64_t inputs) {
      return panels(outputs) * kPanelOutputs * PaddedInputs(inputs) / kFloatsPerBf16;
    };
    std::int64_t end = 0;
    const auto add = [&end](std::int64_t count) {
      const std::int64_t begin = end;
      end += RoundUp<std::int64_t>(count, kLanes);
      return begin;
    };
    const std::int64_t widest = nope > value_dim ? nope : value_dim;
    const std::int64_t acc = panels(widest) * kPanelOutputs;
    const std::int64_t padded_split = RoundUp<std::int64_t>(split, kBlockInputs);
    const std::int64_t key_width = nope + extra;
    std::int64_t inputs = padded_split > rank ? padded_split : rank;
    inputs = key_width > inputs ? key_width : inputs;
    key_expansion = add(panel_floats(nope, rank));
    key_panels = add(panel_floats(split, key_width));
    value_panels = add(panel_floats(value_dim, split));
    keys = add(split * key_width / kFloatsPerBf16 + 1);
    values = add(split * value_dim / kFloatsPerBf16 + 1);
    cache_rows = add(split);
    products = add(2 * kMlaExpandedTile * acc);
    scores = add(kMlaExpandedTile * padded_split);
    high = add(kMlaExpandedTile * padded_split / kFloatsPerBf16);
    low = add(kMlaExpandedTile * padded_split / kFloatsPerBf16);
    sums = add(rows * acc);
    maxima = add(rows);
    totals = add(rows);
    matmul = add(MatmulScratchFloats(inputs));
    floats = end;
  }
  std::int64_t key_expansion;  ///< kv_b's key rows as panels over the latent
  std::int64_t key_panels;     ///< of a part: positions as outputs
  std::int64_t value_panels;   ///< of a part: positions as inputs
  std::int64_t keys;           ///< [split][nope + extra] bf16
  std::int64_t values;         ///< [split][value_dim] bf16
  std::int64_t cache_rows;     ///< [split] i32
  std::int64_t products;       ///< [2][tile][padded nope or value_dim]
  std::int64_t scores;         ///< [tile][padded split]
  std::int64_t high;           ///< [tile][padded split] bf16
  std::int64_t low;
  std::int64_t sums;  ///< [rows][padded nope or value_dim]
  std::int64_t maxima;
  std::int64_t totals;
  std::int64_t matmul;
  std::int64_t floats;
};

}  // namespace megalith::kernels
