#include "bench/rounds.h"

#include <algorithm>
#include <utility>

namespace megalith::bench {
namespace {

template <typename Value>
Summary SummaryOf(const std::vector<Sample>& samples, Value value) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Sample& sample : samples) values.push_back(value(sample));
  return Summarize(std::move(values));
}

}  // namespace

Summary Series::ItemsPerSecond() const {
  return SummaryOf(kept, [](const Sample& s) { return s.ItemRate(); });
}
Summary Series::SecondsPerItem() const {
  return SummaryOf(kept, [](const Sample& s) { return s.work.seconds / s.work.items; });
}
Summary Series::Rate() const {
  return SummaryOf(kept, [](const Sample& s) { return s.Rate(); });
}
Summary Series::Probe() const {
  return SummaryOf(kept, [](const Sample& s) { return s.Probe(); });
}
Summary Series::Ratio() const {
  return SummaryOf(kept, [](const Sample& s) { return s.Ratio(); });
}

Summary Series::SpeedOver(const Series& base) const {
  std::vector<double> speeds;
  auto other = base.kept.begin();
  for (const Sample& sample : kept) {
    while (other != base.kept.end() && other->round < sample.round) ++other;
    if (other == base.kept.end()) break;
    if (other->round > sample.round) continue;
    speeds.push_back(sample.ItemRate() / other->ItemRate());
  }
  return Summarize(std::move(speeds));
}

Result<std::vector<Series>> RunRounds(const std::vector<Contestant>& contestants,
                                      const RoundsOptions& options) {
  std::vector<Series> all(contestants.size());
  const auto wanted = static_cast<std::size_t>(std::max(options.num_rounds, 0));
  const std::uint64_t total = contestants.size() * wanted;
  const auto report = [&] {
    if (!options.progress) return;
    std::uint64_t done = 0;
    for (const Series& series : all) done += series.kept.size();
    options.progress({options.stage, done, total, false});
  };
  report();
  if (total == 0) return all;
  const Yardstick* last_yardstick = nullptr;
  double last_probe = 0.0;
  for (int round = 0; round < options.max_rounds; ++round) {
    bool all_done = true;
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      Series& series = all[i];
      if (series.kept.size() >= wanted) continue;
      all_done = false;
      MEGALITH_RETURN_IF_ERROR(CheckCancelled(options.cancel, options.stage));
      const Yardstick& yardstick = *contestants[i].yardstick;
      if (last_yardstick != &yardstick) {
        // Other CPUs than before: what else runs on the machine has to move first.
        if (last_yardstick != nullptr) MEGALITH_RETURN_IF_ERROR(yardstick());
        MEGALITH_ASSIGN_OR_RETURN(last_probe, yardstick());
        last_yardstick = &yardstick;
      }
      Sample sample;
      sample.round = round;
      sample.probe_before = last_probe;
      MEGALITH_ASSIGN_OR_RETURN(sample.work, contestants[i].turn());
      MEGALITH_ASSIGN_OR_RETURN(last_probe, yardstick());
      sample.probe_after = last_probe;
      if (IsSteady(sample.probe_before, sample.probe_after)) {
        series.kept.push_back(sample);
      } else {
        ++series.num_dropped;
      }
      report();
    }
    if (all_done) break;
  }
  if (options.progress) options.progress({options.stage, total, total, false});
  return all;
}

}  // namespace megalith::bench
