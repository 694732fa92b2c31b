#include "trace/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "trace/escape.h"

namespace megalith::trace {
namespace {

// Pixels.
constexpr double kLeft = 90;
constexpr double kRight = 20;
constexpr double kTop = 74;  // title, legend, names of the layers
constexpr double kLaneHeight = 44;
constexpr double kLaneGap = 10;
constexpr double kAxisHeight = 34;
constexpr double kSmallestWidth = 1400;  // of the time axis
constexpr double kWidthPerVisit = 60;    // a layer of some 20 boxes is readable
constexpr double kLetterWidth = 5.6;     // of the box labels; about
/// Narrower boxes are not drawn; neighbours of one look are joined first.
constexpr double kSmallestBox = 0.05;

constexpr std::array<const char*, kNumOpGroups> kColours = {
    "#4c78a8", "#72b7b2", "#54a24b", "#f58518", "#eeca3b", "#b279a2", "#9d755d", "#888888"};

/// A box of one lane.
struct Box {
  std::int64_t begin;
  std::int64_t end;
  int look;           // group, or one of those below
  std::string label;  // drawn if there is room
  std::string tip;
};
constexpr int kWaitLook = kNumOpGroups;
constexpr int kHandOverLook = kNumOpGroups + 1;

std::string Micros(std::int64_t ns) {
  return fmt::format("{:.2f} us", static_cast<double>(ns) * 1e-3);
}

/// 1, 2 or 5 times a power of ten, for about `count` ticks.
std::int64_t TickStep(std::int64_t duration, double count) {
  std::int64_t step = 1;
  while (true) {
    for (const std::int64_t factor : {1, 2, 5}) {
      if (static_cast<double>(duration) / static_cast<double>(step * factor) <= count) {
        return step * factor;
      }
    }
    step *= 10;
  }
}

class Drawing {
 public:
  Drawing(const TraceReader& reader, const Timeline& timeline)
      : reader_(reader), timeline_(timeline), ops_(reader.ops().ops()) {
    const std::size_t visits = reader.program().visits.size();
    axis_width_ = std::max(kSmallestWidth, kWidthPerVisit * static_cast<double>(visits));
    scale_ = axis_width_ / static_cast<double>(std::max<std::int64_t>(timeline.duration, 1));
    lanes_ = timeline.workers.size() + 1;
    bottom_ = kTop + static_cast<double>(lanes_) * (kLaneHeight + kLaneGap);
  }

  std::string Draw() {
    const double width = kLeft + axis_width_ + kRight;
    const double height = bottom_ + kAxisHeight;
    Add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{:.0f}" height="{:.0f}" )"
        R"(viewBox="0 0 {:.0f} {:.0f}" font-family="sans-serif" font-size="12">)",
        width, height, width, height);
    Add(R"(<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" )"
        R"x(patternTransform="rotate(45)"><rect width="6" height="6" fill="#f0f0f0"/>)x"
        R"(<rect width="1.5" height="6" fill="#bbbbbb"/></pattern></defs>)");
    Add("<style>");
    for (std::size_t i = 0; i < kColours.size(); ++i) Add(".g{}{{fill:{}}}", i, kColours[i]);
    Add(".g{}{{fill:url(#wait)}}", kWaitLook);
    Add(".g{}{{fill:#333333}}", kHandOverLook);
    Add(".t{{font-size:9px;fill:#000000}}.v{{stroke:#999999;stroke-width:0.6}}");
    Add("</style>");
    Add(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
    DrawTitle();
    DrawLegend();
    DrawLayers();
    for (std::size_t worker = 0; worker < timeline_.workers.size(); ++worker) {
      DrawLane(worker, fmt::format("worker {}", worker), WorkerBoxes(worker));
    }
    DrawLane(timeline_.workers.size(), "critical path", PathBoxes());
    DrawAxis();
    Add("</svg>");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
    out_ += '\n';
  }
  double X(std::int64_t ns) const { return kLeft + static_cast<double>(ns) * scale_; }
  static double LaneTop(std::size_t lane) {
    return kTop + static_cast<double>(lane) * (kLaneHeight + kLaneGap);
  }

  void DrawTitle() {
    Add(R"(<text x="{:.0f}" y="20" font-size="14">{}: step {}, {} row{}, {}</text>)", kLeft,
        EscapeXml(reader_.program().model_name), timeline_.step, timeline_.rows,
        timeline_.rows == 1 ? "" : "s", Micros(timeline_.duration));
  }

  void DrawLegend() {
    double x = kLeft;
    const auto entry = [&](int look, std::string_view name) {
      Add(R"(<rect class="g{}" x="{:.0f}" y="30" width="12" height="12"/>)"
          R"(<text x="{:.0f}" y="40">{}</text>)",
          look, x, x + 16, EscapeXml(name));
      x += 16 + 7 * static_cast<double>(name.size()) + 16;
    };
    for (int group = 0; group < kNumOpGroups; ++group) {
      entry(group, OpGroupName(static_cast<OpGroup>(group)));
    }
    entry(kWaitLook, "waiting");
    entry(kHandOverLook, "hand-over (critical path)");
  }

  /// A line where the first worker enters a visit, with the layer's number and kind.
  void DrawLayers() {
    const program::Program& program = reader_.program();
    std::vector<std::int64_t> begins(program.visits.size(), timeline_.duration);
    for (const std::vector<Event>& events : timeline_.workers) {
      for (const Event& event : events) {
        begins[event.visit] = std::min(begins[event.visit], event.begin);
      }
    }
    for (std::size_t i = 0; i < begins.size(); ++i) {
      const std::int64_t end = i + 1 < begins.size() ? begins[i + 1] : timeline_.duration;
      const double width = static_cast<double>(end - begins[i]) * scale_;
      const program::Visit& visit = program.visits[i];
      const std::string& segment = program.segments[visit.segment].name;
      const std::string full =
          visit.layer < 0 ? segment : fmt::format("{} {}", visit.layer, segment);
      const std::string number = visit.layer < 0 ? "" : fmt::format("{}", visit.layer);
      Add(R"(<line class="v" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.0f}" y2="{2:.0f}"/>)", X(begins[i]),
          kTop - 18, bottom_);
      const std::string& label = Fits(full, width) ? full : number;
      if (!label.empty() && Fits(label, width)) {
        Add(R"(<text class="t" x="{:.1f}" y="{:.0f}">{}</text>)", X(begins[i]) + 2, kTop - 8,
            EscapeXml(label));
      }
    }
  }

  static bool Fits(std::string_view label, double width) {
    return kLetterWidth * static_cast<double>(label.size()) + 4 <= width;
  }

  std::vector<Box> WorkerBoxes(std::size_t worker) const {
    std::vector<Box> boxes;
    for (const Event& event : timeline_.workers[worker]) {
      const Op& op = ops_[event.op];
      if (event.wait() > 0) {
        std::string tip = fmt::format("{} waits for {}: {}", op.name, reader_.WaitsFor(event),
                                      Micros(event.wait()));
        if (auto last = reader_.LastSignaller(timeline_, event)) {
          last = reader_.WorkBehind(timeline_, *last);
          const Event& signal = timeline_.workers[last->worker][last->event];
          tip += fmt::format(", last from worker {}, {}", last->worker, ops_[signal.op].name);
        }
        boxes.push_back({event.begin, event.ready, kWaitLook, "", std::move(tip)});
      }
      if (event.work() == 0) continue;
      std::string tip = fmt::format("{}: {}", op.name, Micros(event.work()));
      if (event.bytes.Total() > 0) {
        tip += fmt::format(
            ", {} bytes, {:.2f} GB/s", event.bytes.Total(),
            static_cast<double>(event.bytes.Total()) / static_cast<double>(event.work()));
      }
      boxes.push_back(
          {event.ready, event.end, static_cast<int>(op.group), Label(op.name), std::move(tip)});
    }
    return boxes;
  }

  std::vector<Box> PathBoxes() const {
    std::vector<Box> boxes;
    for (const PathStretch& stretch : reader_.CriticalPath(timeline_)) {
      const Op& op = ops_[timeline_.workers[stretch.worker][stretch.event].op];
      const bool works = stretch.part == PathPart::kWork;
      std::string what = op.name;
      if (stretch.part == PathPart::kHandOver) what = "signal to " + op.name;
      if (stretch.part == PathPart::kStepBegin) what = "host to workers";
      if (stretch.part == PathPart::kStepEnd) what = "workers to host";
      boxes.push_back({stretch.begin, stretch.end,
                       works ? static_cast<int>(op.group) : kHandOverLook,
                       works ? fmt::format("{}", stretch.worker) : "",
                       fmt::format("worker {}, {}: {}", stretch.worker, what,
                                   Micros(stretch.end - stretch.begin))});
    }
    return boxes;
  }

  /// "matmul self.q_proj" -> "q_proj"
  static std::string Label(const std::string& name) {
    return name.starts_with("matmul ") ? name.substr(7) : name;
  }

  void DrawLane(std::size_t lane, std::string_view name, const std::vector<Box>& boxes) {
    const double top = LaneTop(lane);
    Add(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="end">{}</text>)", kLeft - 6,
        top + kLaneHeight / 2 + 4, EscapeXml(name));
    Add(R"x(<g transform="translate(0 {:.0f})">)x", top);
    for (std::size_t i = 0; i < boxes.size();) {
      const Box& box = boxes[i];
      std::int64_t end = box.end;
      std::size_t next = i + 1;
      // What is too narrow to see goes into one box with its neighbours of the same look.
      while (next < boxes.size() && boxes[next].look == box.look && boxes[next].begin == end &&
             (Width(box) < 1 || Width(boxes[next]) < 1)) {
        end = boxes[next++].end;
      }
      const double width = static_cast<double>(end - box.begin) * scale_;
      const std::size_t joined = next - i;
      i = next;
      if (width < kSmallestBox) continue;
      Add(R"(<rect class="g{}" x="{:.2f}" width="{:.2f}" height="{:.0f}"><title>{}{}</title></rect>)",
          box.look, X(box.begin), width, kLaneHeight, EscapeXml(box.tip),
          joined > 1 ? fmt::format(" and {} more", joined - 1) : "");
      if (!box.label.empty() && Fits(box.label, width)) {
        Add(R"(<text class="t" x="{:.1f}" y="{:.0f}">{}</text>)", X(box.begin) + 2,
            kLaneHeight / 2 + 3, EscapeXml(box.label));
      }
    }
    Add("</g>");
  }
  double Width(const Box& box) const { return static_cast<double>(box.end - box.begin) * scale_; }

  void DrawAxis() {
    const std::int64_t step = TickStep(timeline_.duration, axis_width_ / 90);
    const bool in_ms = step >= 100'000;
    for (std::int64_t at = 0; at <= timeline_.duration; at += step) {
      Add(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1:.0f}" y2="{2:.0f}" stroke="#000000"/>)", X(at),
          bottom_, bottom_ + 5);
      Add(R"(<text x="{:.1f}" y="{:.0f}" text-anchor="middle">{:g} {}</text>)", X(at), bottom_ + 18,
          static_cast<double>(at) * (in_ms ? 1e-6 : 1e-3), in_ms ? "ms" : "us");
    }
    Add(R"(<line x1="{0:.0f}" x2="{1:.0f}" y1="{2:.0f}" y2="{2:.0f}" stroke="#000000"/>)", kLeft,
        kLeft + axis_width_, bottom_);
  }

  const TraceReader& reader_;
  const Timeline& timeline_;
  const std::vector<Op>& ops_;
  std::size_t lanes_ = 0;
  double axis_width_ = 0;
  double scale_ = 0;
  double bottom_ = 0;
  std::string out_;
};

}  // namespace

std::string TimelineSvg(const TraceReader& reader, const Timeline& timeline) {
  return Drawing(reader, timeline).Draw();
}

}  // namespace megalith::trace
