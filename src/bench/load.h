#pragma once

#include <cstdint>
#include <string>

#include "bench/process_memory.h"
#include "bench/rounds.h"
#include "engine/engine.h"

namespace megalith::bench {

struct LoadResult {
  Series series;  ///< amount: bytes packed; items: loads; yardstick: the read rate of the workers
  std::string yardstick;
  std::int32_t workers = 0;
  std::string isa;
  std::string program_hash;
  Summary compile_seconds;        ///< part of a load: Programs and their proofs
  std::int64_t packed_bytes = 0;  ///< of weights, without gaps
  std::int64_t arena_bytes = 0;   ///< of weights, gaps included
  std::int64_t state_bytes = 0;   ///< activations, state and cache as planned
  PageReport pages{};             ///< of the weight arenas
  ProcessMemory memory;  ///< what a load added to the process; the peak is that of the worst
};

/// Loads the model `rounds` times, one after the other, with the checkpoint as cached by the system
/// as it happens to be; with `drop_cache` its files are dropped from the page cache before each
/// load. Errors: those of Engine::Load.
Result<LoadResult> MeasureLoad(const std::string& directory, const engine::EngineOptions& options,
                               int rounds, bool drop_cache, std::size_t probe_bytes);

}  // namespace megalith::bench
