#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace megalith::apps {

/// Ranks of one process; a launcher may start more.
inline constexpr int kMaxRanks = 64;

/// Options of every command that loads a model.
struct LoadOptions {
  std::string lora_norm_eps = "1e-6";
  std::string huge_pages = "madvise";
  std::string dense = "bf16";
  std::string packed_cache;  ///< folder; empty: none
  std::string packed_cache_use = "map";
  int ranks = 0;  ///< 0: as the launcher says, else one
  int tensor_parallel = 0;
  int expert_parallel = 0;
  std::string prefill = "exact";  ///< or fast
};

/// Adds --lora-norm-eps, --huge-pages, --dense, --packed-cache, --packed-cache-use, --ranks, --tp
/// and --ep.
void AddLoadOptions(CLI::App& command, LoadOptions& options);

/// Adds --prefill, for commands that run prompts.
void AddPrefillOption(CLI::App& command, std::string& prefill);

/// What they say, into the engine's options. Starts the ranks, if there are to be several. kUsage,
/// and errors of starting.
Status ApplyLoadOptions(const LoadOptions& load, const Cli& cli, engine::EngineOptions* options);

/// Adds --dense alone, for commands that compile without loading.
void AddDenseOption(CLI::App& command, std::string& dense);

/// Loads with the common options and `load` applied, and a progress bar beside
/// EngineOptions::progress.
Result<std::unique_ptr<engine::Engine>> LoadEngine(const std::string& directory, const Cli& cli,
                                                   const LoadOptions& load,
                                                   engine::EngineOptions options);

/// The most memory of this process that was resident at once, mapped files included; 0 if the
/// system does not say.
std::uint64_t PeakResidentBytes();

/// "1,2,3" or "1 2 3", also over lines -> {1, 2, 3}; nothing -> {}. kUsage naming the piece that is
/// no token id and which one it is.
Result<std::vector<std::int32_t>> ParseIds(const std::string& text);

/// {1, 2, 3} -> "1,2,3".
std::string FormatIds(const std::vector<std::int32_t>& ids);

/// kOutOfRange naming the first id that is no token of a vocabulary of that size.
Status CheckIds(const std::vector<std::int32_t>& ids, std::int64_t vocab_size);

/// The whole file, or standard input for "-". kNotFound, kBadFile (a directory), kIo.
Result<std::string> ReadText(const std::string& path);

}  // namespace megalith::apps
