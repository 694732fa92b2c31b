#include "bench/load.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "base/topology.h"
#include "bench/yardstick.h"
#include "exec/device_memory.h"

namespace megalith::bench {
namespace {

/// Asks the system to forget what it has cached of the folder's files.
Status DropCache(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (!entry.is_regular_file()) continue;
    const int descriptor = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) continue;
    fdatasync(descriptor);  // pages not yet written stay otherwise
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    close(descriptor);
  }
  if (error) return Fail(ErrorCode::kIo, "{}: {}", directory, error.message());
  return {};
}

}  // namespace

Result<LoadResult> MeasureLoad(const std::string& directory, const engine::EngineOptions& options,
                               int rounds, bool drop_cache, std::size_t probe_bytes) {
  MEGALITH_ASSIGN_OR_RETURN(const Topology topology, DetectTopology());
  const std::int32_t workers =
      options.num_workers > 0 ? options.num_workers : DefaultWorkers(topology);
  MEGALITH_ASSIGN_OR_RETURN(
      const MemoryYardstick yardstick,
      StartMemoryYardstick(workers, PlaceWorkers(topology, workers).cpus, PreferredHugePages(),
                           probe_bytes > 0 ? probe_bytes : kYardstickBytes));
  LoadResult result;
  result.workers = workers;
  result.yardstick = Describe(yardstick.method);
  std::vector<double> compile_seconds;
  std::uint64_t peak = 0;
  const Turn turn = [&]() -> Result<Work> {
    if (drop_cache) MEGALITH_RETURN_IF_ERROR(DropCache(directory));
    static_cast<void>(ResetPeakMemory());  // without it the peak is that of the process so far
    MEGALITH_ASSIGN_OR_RETURN(const ProcessMemory before, ReadProcessMemory());
    Work work;
    const std::int64_t start = NowNs();
    MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                              engine::Engine::Load(directory, options));
    work.seconds = SecondsSince(start);
    result.isa = engine->isa_name();
    result.program_hash = engine->program_hash();
    result.packed_bytes = engine->weights().layout().PackedBytes();
    result.arena_bytes = engine->weights().arena_bytes();
    result.state_bytes = engine->executor().memory().sizes().Total();
    if (const auto pages = engine->weights().Pages()) result.pages = *pages;
    MEGALITH_ASSIGN_OR_RETURN(const ProcessMemory after, ReadProcessMemory());
    const auto added = [](std::uint64_t now, std::uint64_t then) {
      return now > then ? now - then : 0;
    };
    result.memory.resident_bytes = added(after.resident_bytes, before.resident_bytes);
    result.memory.anonymous_bytes = added(after.anonymous_bytes, before.anonymous_bytes);
    peak = std::max(peak, added(after.peak_bytes, before.resident_bytes));
    compile_seconds.push_back(engine->timings().compile_seconds);
    work.items = 1.0;
    work.amount = static_cast<double>(result.packed_bytes);
    return work;
  };
  RoundsOptions options_of_rounds;
  options_of_rounds.num_rounds = rounds;
  options_of_rounds.max_rounds = 2 * rounds;
  options_of_rounds.stage = "load";
  options_of_rounds.cancel = options.cancel;
  MEGALITH_ASSIGN_OR_RETURN(std::vector<Series> series,
                            RunRounds({{turn, &yardstick.measure}}, options_of_rounds));
  result.series = std::move(series.front());
  result.compile_seconds = Summarize(std::move(compile_seconds));
  result.memory.peak_bytes = peak;
  return result;
}

}  // namespace megalith::bench
