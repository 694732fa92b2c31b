#include "program/compile/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace megalith::program {

std::vector<Range> SplitEvenly(std::int64_t total, std::int32_t parts) {
  return SplitEvenly(Range{0, total}, parts);
}

std::vector<Range> SplitEvenly(Range range, std::int32_t parts) {
  std::vector<Range> ranges(static_cast<std::size_t>(parts));
  for (std::int32_t part = 0; part < parts; ++part) {
    ranges[static_cast<std::size_t>(part)] = {range.begin + range.size() * part / parts,
                                              range.begin + range.size() * (part + 1) / parts};
  }
  return ranges;
}

std::vector<Range> LoadLeveler::Split(std::int64_t units, std::int64_t unit_bytes) {
  const double cost = static_cast<double>(unit_bytes);
  const double total = static_cast<double>(units) * cost;
  const double level = (std::accumulate(load_.begin(), load_.end(), 0.0) + total) /
                       static_cast<double>(load_.size());
  double room = 0.0;
  for (double load : load_) room += std::max(0.0, level - load);
  std::vector<Range> ranges(load_.size());
  double filled = 0.0;
  std::int64_t begin = 0;
  for (std::size_t worker = 0; worker < load_.size(); ++worker) {
    filled += std::max(0.0, level - load_[worker]);
    const std::int64_t end =
        worker + 1 == load_.size()
            ? units
            : std::clamp<std::int64_t>(std::llround(filled / room * static_cast<double>(units)),
                                       begin, units);
    ranges[worker] = {begin, end};
    load_[worker] += static_cast<double>(end - begin) * cost;
    begin = end;
  }
  return ranges;
}

}  // namespace megalith::program
