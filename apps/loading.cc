#include "loading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "base/units.h"
#include "progress_bar.h"
#include "rank_job.h"

namespace megalith::apps {
void AddLoadOptions(CLI::App& command, LoadOptions& options) {
  command
      .add_option("--lora-norm-eps", options.lora_norm_eps,
                  "eps of the q_a and kv_a norms: 1e-6 as the released code, or rms: rms_norm_eps "
                  "as most other engines")
      ->check(CLI::IsMember({"1e-6", "rms"}))
      ->capture_default_str();
  command
      .add_option("--huge-pages", options.huge_pages,
                  "Pages of the weights: off, madvise, reserved (vm.nr_hugepages)")
      ->check(CLI::IsMember({"off", "madvise", "reserved"}))
      ->capture_default_str();
  AddDenseOption(command, options.dense);
  command
      .add_option("--packed-cache", options.packed_cache,
                  "Folder that keeps packed weights for the next start; as large as the model")
      ->type_name("DIR");
  command
      .add_option("--packed-cache-use", options.packed_cache_use,
                  "map: use the file where it lies, in ordinary pages; copy: read it into memory "
                  "placed as packing would, with --huge-pages")
      ->check(CLI::IsMember({"map", "copy"}))
      ->capture_default_str();
  command
      .add_option("--ranks", options.ranks,
                  "Run the model on so many ranks of this process, each with its part of the "
                  "cores; under mpirun as many as it starts")
      ->type_name("N")
      ->check(CLI::Range(1, kMaxRanks));
  command
      .add_option("--tp", options.tensor_parallel,
                  "Ranks that share each matrix; default: chosen by cost")
      ->type_name("N")
      ->check(CLI::Range(1, kMaxRanks));
  command
      .add_option("--ep", options.expert_parallel,
                  "Groups of ranks that share the experts; default: chosen by cost")
      ->type_name("N")
      ->check(CLI::Range(1, kMaxRanks));
}

void AddPrefillOption(CLI::App& command, std::string& prefill) {
  command
      .add_option(
          "--prefill", prefill,
          "exact: the bits do not depend on how a prompt is cut into steps; fast: much less "
          "work on prompts of many thousand tokens, logits that differ slightly, best with "
          "--rows-per-step 1024 or more")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->capture_default_str();
}

Status ApplyLoadOptions(const LoadOptions& load, const Cli& cli, engine::EngineOptions* options) {
  options->lora_norm_uses_rms_eps = load.lora_norm_eps == "rms";
  MEGALITH_ASSIGN_OR_RETURN(options->huge_pages, ParseHugePages(load.huge_pages));
  MEGALITH_ASSIGN_OR_RETURN(options->dense, program::ParseDenseFormats(load.dense));
  options->packed_cache = load.packed_cache;
  options->fast_prefill = load.prefill == "fast";
  MEGALITH_ASSIGN_OR_RETURN(options->packed_cache_use, exec::ParseCacheUse(load.packed_cache_use));
  options->tensor_parallel = load.tensor_parallel;
  options->expert_parallel = load.expert_parallel;
  // A layout says how many ranks it takes.
  const int of_layout = std::max(load.tensor_parallel, 1) * std::max(load.expert_parallel, 1);
  const bool is_said = load.ranks > 0 || cli.ranks->IsLaunched();
  MEGALITH_ASSIGN_OR_RETURN(options->leader, cli.ranks->Lead(is_said ? load.ranks : of_layout));
  return {};
}

std::uint64_t PeakResidentBytes() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;  // the system counts in KiB
}

namespace {

/// One line on what loading did and which memory it got.
void ReportWeights(const engine::Engine& engine) {
  const exec::PackedWeights& weights = engine.weights();
  const auto bytes = static_cast<double>(weights.arena_bytes());
  std::string huge = "pages not known";
  if (const auto pages = weights.Pages(); pages && pages->mapped_bytes > 0) {
    huge = fmt::format("{:.0f} % on huge pages", 100.0 * static_cast<double>(pages->huge_bytes) /
                                                     static_cast<double>(pages->mapped_bytes));
  }
  LogFormat(LogLevel::kInfo, "weights {}, {} in {:.2f} s ({:.2f} GB/s), {}; peak memory {}",
            FormatBytes(static_cast<std::uint64_t>(weights.arena_bytes())),
            exec::WeightOriginName(weights.origin()), weights.fill_seconds(),
            weights.fill_seconds() > 0.0 ? bytes * 1e-9 / weights.fill_seconds() : 0.0, huge,
            FormatBytes(PeakResidentBytes()));
}

}  // namespace

void AddDenseOption(CLI::App& command, std::string& dense) {
  command
      .add_option("--dense", dense,
                  "Packed format of dense matrices: bf16, or int8 (made of bf16 while loading; the "
                  "router stays bf16), then overrides for attention, mlp, latent, router, head: "
                  "int8,head=bf16")
      ->capture_default_str();
}

Result<std::unique_ptr<engine::Engine>> LoadEngine(const std::string& directory, const Cli& cli,
                                                   const LoadOptions& load,
                                                   engine::EngineOptions options) {
  ProgressBar bar(cli.common.quiet);
  options.num_workers = cli.common.workers;
  MEGALITH_RETURN_IF_ERROR(ApplyLoadOptions(load, cli, &options));
  // Without a wish, bf16 gets the best path and fp32 the only one it has.
  const bool has_wish = !cli.common.isa.empty() || std::getenv("MEGALITH_FORCE_ISA") != nullptr;
  const bool is_float = options.activation_dtype == DType::kF32;
  if (has_wish || !is_float) {
    MEGALITH_ASSIGN_OR_RETURN(options.isa, ChooseIsa(cli.common));
  }
  const bool runs_kernels = options.executor == engine::ExecutorKind::kCpu;
  if (is_float && runs_kernels &&
      options.isa.value_or(kernels::Isa::kPortable) != kernels::Isa::kPortable) {
    return Fail(ErrorCode::kUsage,
                "fp32 activations run on the portable path only, {} is asked for (--isa or "
                "MEGALITH_FORCE_ISA)",
                kernels::IsaName(*options.isa));
  }
  options.progress = [&bar, also = std::move(options.progress)](const Progress& progress) {
    bar.Update(progress);
    if (also) also(progress);
  };
  options.cancel = cli.cancel;
  MEGALITH_ASSIGN_OR_RETURN(std::unique_ptr<engine::Engine> engine,
                            engine::Engine::Load(directory, options));
  bar.Clear();
  ReportWeights(*engine);
  if (options.fast_prefill) LogFormat(LogLevel::kInfo, "{}", engine->Describe());
  return engine;
}

Result<std::vector<std::int32_t>> ParseIds(const std::string& text) {
  constexpr std::string_view kSeparators = ", \t\r\n";
  std::vector<std::int32_t> ids;
  for (std::size_t begin = text.find_first_not_of(kSeparators); begin != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    const std::string_view piece(text.data() + begin, end - begin);
    std::int32_t id = 0;
    const auto [rest, error] = std::from_chars(piece.data(), piece.data() + piece.size(), id);
    if (error != std::errc() || rest != piece.data() + piece.size() || id < 0) {
      return Fail(ErrorCode::kUsage, "token id {}: a number from 0 to {} expected, '{}' found",
                  ids.size() + 1, std::numeric_limits<std::int32_t>::max(), piece);
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kSeparators, end);
  }
  return ids;
}

Status CheckIds(const std::vector<std::int32_t>& ids, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      return Fail(ErrorCode::kOutOfRange, "token id {}: below {} expected, {} found", i + 1,
                  vocab_size, ids[i]);
    }
  }
  return {};
}

std::string FormatIds(const std::vector<std::int32_t>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

Result<std::string> ReadText(const std::string& path) {
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return Fail(ErrorCode::kNotFound, "{}: cannot be opened: {}", path, std::strerror(errno));
  }
  std::string text;
  char chunk[1 << 16];
  std::size_t size = 0;
  while ((size = std::fread(chunk, 1, sizeof chunk, file)) > 0) text.append(chunk, size);
  const int error = std::ferror(file) != 0 ? errno : 0;
  if (file != stdin) std::fclose(file);
  if (error != 0) {
    return Fail(error == EISDIR ? ErrorCode::kBadFile : ErrorCode::kIo, "{}: cannot be read: {}",
                path, std::strerror(error));
  }
  return text;
}

}  // namespace megalith::apps
