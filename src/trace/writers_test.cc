// What the files look like to the programs that read them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "trace/perfetto.h"
#include "trace/svg.h"
#include "trace/testing/nano_trace.h"

namespace megalith::trace {
namespace {

using testing::NanoSpec;
using testing::SimulateStep;

/// A step with made-up times of k3-nano under a hostile name.
struct Made {
  Made() : program(*exec::testing::MakePrograms(NanoSpec()).value().front()) {
    program.model_name = "a<b>&\"c\"\\\n\xff";
    reader = std::make_unique<TraceReader>(program);
    timeline = reader->Read(SimulateStep(program, {300, 500})).value();
  }
  program::Program program;
  std::unique_ptr<TraceReader> reader;
  Timeline timeline;
};

/// Empty, or what is wrong with the XML: elements closed in order, attributes quoted, entities
/// known, one root.
std::string XmlProblem(std::string_view xml) {
  std::vector<std::string> open;
  std::size_t roots = 0;
  const auto bad_entity = [](std::string_view text) {
    for (std::size_t at = text.find('&'); at != text.npos; at = text.find('&', at + 1)) {
      bool known = false;
      for (const char* entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"}) {
        known = known || text.substr(at).starts_with(entity);
      }
      if (!known) return true;
    }
    return false;
  };
  while (!xml.empty()) {
    const std::size_t begin = std::min(xml.find('<'), xml.size());
    const std::string_view text = xml.substr(0, begin);
    if (bad_entity(text)) return "entity in text: " + std::string(text);
    if (open.empty() && text.find_first_not_of(" \n") != text.npos) return "text outside the root";
    xml.remove_prefix(begin);
    if (xml.empty()) break;
    const std::size_t end = xml.find('>');
    if (end == xml.npos) return "tag without end";
    std::string_view tag = xml.substr(1, end - 1);
    xml.remove_prefix(end + 1);
    if (tag.find('<') != tag.npos) return "< in a tag: " + std::string(tag);
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "closes " + std::string(tag);
      open.pop_back();
      continue;
    }
    const bool closed = tag.ends_with('/');
    if (closed) tag.remove_suffix(1);
    const std::size_t name_end = std::min(tag.find(' '), tag.size());
    const std::string name(tag.substr(0, name_end));
    tag.remove_prefix(name_end);
    while (tag.find_first_not_of(' ') != tag.npos) {
      tag.remove_prefix(tag.find_first_not_of(' '));
      const std::size_t quote = tag.find("=\"");
      if (quote == tag.npos || quote == 0) return "attribute of " + name;
      const std::size_t close = tag.find('"', quote + 2);
      if (close == tag.npos) return "attribute of " + name;
      if (bad_entity(tag.substr(quote + 2, close - quote - 2))) return "entity in " + name;
      tag.remove_prefix(close + 1);
    }
    if (open.empty()) ++roots;
    if (!closed) open.push_back(name);
  }
  if (!open.empty()) return "not closed: " + open.back();
  return roots == 1 ? "" : "not one root";
}

TEST(TimelineSvg, IsWellFormedAndAlwaysTheSame) {
  const Made made;
  const std::string svg = TimelineSvg(*made.reader, made.timeline);
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_EQ(svg, TimelineSvg(*made.reader, made.timeline));
  EXPECT_EQ(svg.find("<script"), svg.npos);
  for (const char* part : {"a&lt;b&gt;&amp;", "worker 0", "worker 1", "critical path", "kda_moe",
                           "routed experts", "waits for", "lm_head"}) {
    EXPECT_NE(svg.find(part), svg.npos) << part;
  }
}

TEST(TimelineSvg, CheckerFindsProblems) {
  EXPECT_EQ(XmlProblem("<a b=\"c\"><d/></a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a b=c/>", "<a>&x</a>", "<a/><b/>", "<a b=\"&\"/>"}) {
    EXPECT_NE(XmlProblem(bad), "") << bad;
  }
}

TEST(PerfettoJson, ParsesAndSlicesNest) {
  const Made made;
  const std::vector<Timeline> timelines(2, made.timeline);
  const TracedSteps steps{made.reader.get(), timelines};
  const std::string text = PerfettoJson({&steps, 1});
  EXPECT_EQ(text, PerfettoJson({&steps, 1}));
  const auto json = nlohmann::json::parse(text);
  // Track -> slices in nanoseconds.
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> tracks;
  std::map<std::string, int> phases;
  std::map<std::string, int> categories;
  for (const auto& event : json["traceEvents"]) {
    ++phases[event["ph"]];
    EXPECT_FALSE(event["name"].get<std::string>().empty());
    if (event["ph"] != "X") continue;
    ++categories[event["cat"]];
    const std::int64_t begin = std::llround(event["ts"].get<double>() * 1e3);
    const std::int64_t ns = std::llround(event["dur"].get<double>() * 1e3);
    EXPECT_GE(begin, 0);
    EXPECT_GE(ns, 0);
    // The same step twice, one upon the other: take the first of each slice.
    auto& slices = tracks[event["tid"]];
    const std::pair slice(begin, begin + ns);
    if (event["cat"] == "step" || std::find(slices.begin(), slices.end(), slice) == slices.end()) {
      slices.push_back(slice);
    }
  }
  EXPECT_EQ(tracks.size(), 4U);  // steps, critical path, two workers
  EXPECT_EQ(categories["step"], 2);
  EXPECT_GT(categories["work"], 100);
  EXPECT_GT(categories["wait"], 10);
  EXPECT_GT(categories["path"], 100);
  EXPECT_EQ(categories["layer"], 2 * 2 * static_cast<int>(made.program.visits.size()));
  EXPECT_GT(phases["C"], 100);
  EXPECT_GE(phases["M"], 4);
  for (auto& [track, slices] : tracks) {
    // Longer ones first among those that begin together; then each must end within the open one.
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.first, -a.second) < std::tuple(b.first, -b.second);
    });
    std::vector<std::int64_t> ends;
    for (const auto& [begin, end] : slices) {
      while (!ends.empty() && ends.back() <= begin) ends.pop_back();
      if (!ends.empty()) {
        EXPECT_LE(end, ends.back()) << "track " << track << " at " << begin;
      }
      ends.push_back(end);
    }
  }
}

}  // namespace
}  // namespace megalith::trace
