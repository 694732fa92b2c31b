#include "engine/rank_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <string>
#include <string_view>

#include "fabric/agreement.h"

namespace megalith::engine {
namespace {

/// Lines: host, group of the quota, CPUs. None of them holds a line's end.
std::string ToText(const RankHost& host) {
  return fmt::format("{}\n{}\n{}", host.host, host.quota_group, fmt::join(host.cpus, ","));
}

Result<RankHost> FromText(std::string_view text) {
  RankHost host;
  for (std::string* line : {&host.host, &host.quota_group}) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return Fail(ErrorCode::kInternal, "a rank's host is cut");
    *line = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  while (!text.empty()) {
    int cpu = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), cpu);
    if (error != std::errc()) return Fail(ErrorCode::kInternal, "a rank's CPUs: '{}'", text);
    host.cpus.push_back(cpu);
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
    if (!text.empty()) text.remove_prefix(1);
  }
  return host;
}

Result<Topology> DetectHere(RankHost* host) {
  MEGALITH_ASSIGN_OR_RETURN(Topology topology, DetectTopology());
  MEGALITH_ASSIGN_OR_RETURN(*host, DescribeHost(topology));
  return topology;
}

}  // namespace

Result<RankPlace> FindRankPlace(fabric::Fabric& fabric, const std::string& build) {
  MEGALITH_RETURN_IF_ERROR(fabric::CheckAgreement(fabric, {{"build", build}}));
  RankHost host;
  const auto topology = DetectHere(&host);
  MEGALITH_RETURN_IF_ERROR(
      fabric.AllOrNone(topology ? Status() : tl::unexpected(topology.error())));
  const std::string mine = ToText(host);
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<fabric::Bytes> all,
                            fabric.AllGather(std::as_bytes(std::span(mine))));
  std::vector<RankHost> hosts;
  for (const fabric::Bytes& bytes : all) {
    MEGALITH_ASSIGN_OR_RETURN(
        RankHost each, FromText({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    hosts.push_back(std::move(each));
  }
  RankPlace place{&fabric, DivideCores(*topology, hosts, fabric.rank())};
  fabric.SetSharesCpus(place.cores.shares_cpus);
  return place;
}

Status AllOrNone(const RankPlace* place, const Status& mine) {
  return place == nullptr ? mine : place->fabric->AllOrNone(mine);
}

}  // namespace megalith::engine
