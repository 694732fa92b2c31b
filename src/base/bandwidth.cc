#include "base/bandwidth.h"

#include <algorithm>

#include "base/read_probe.h"

namespace megalith {

Result<BandwidthResult> MeasureReadBandwidth(const BandwidthOptions& options) {
  if (options.num_passes < 1) {
    return Fail(ErrorCode::kUsage, "bandwidth: at least 1 pass expected, {} given",
                options.num_passes);
  }
  ReadProbeOptions probe_options;
  probe_options.num_threads = options.num_threads;
  probe_options.cpus = options.cpus;
  probe_options.total_bytes = options.total_bytes;
  probe_options.huge_pages = PreferredHugePages();
  MEGALITH_ASSIGN_OR_RETURN(const std::unique_ptr<ReadProbe> probe,
                            ReadProbe::Start(probe_options));
  BandwidthResult result{};
  result.total_bytes = probe->total_bytes();
  for (const int streams : {1, 4, 8}) {
    MEGALITH_RETURN_IF_ERROR(CheckCancelled(options.cancel, "bandwidth"));
    MEGALITH_ASSIGN_OR_RETURN(std::vector<double> rates,
                              probe->Read(ReadMethod{streams, 0}, options.num_passes));
    std::sort(rates.begin(), rates.end());
    const double best = rates.back() * 1e-9;
    if (best <= result.best_gb_per_s) continue;
    result.best_gb_per_s = best;
    result.median_gb_per_s = rates[(rates.size() - 1) / 2] * 1e-9;
    result.num_streams = streams;
  }
  if (const auto report = probe->Pages()) {
    result.huge_pages = report->huge_bytes * 2 > report->resident_bytes;
  }
  return result;
}

}  // namespace megalith
