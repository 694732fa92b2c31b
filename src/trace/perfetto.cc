#include "trace/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trace/escape.h"

namespace megalith::trace {
namespace {

constexpr int kHostTrack = 0;
constexpr int kPathTrack = 1;
constexpr int kFirstWorkerTrack = 2;

class Writer {
 public:
  explicit Writer(std::span<const TracedSteps> all) {
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::size_t num_workers = 0;
    for (const TracedSteps& steps : all) {
      for (const Timeline& timeline : steps.timelines) {
        first = std::min(first, timeline.start);
        num_workers = std::max(num_workers, timeline.workers.size());
      }
    }
    const std::string model = all.empty() ? "" : all.front().reader->program().model_name;
    Name("process_name", kHostTrack, "megalith " + model);
    NameTrack(kHostTrack, "steps");
    NameTrack(kPathTrack, "critical path");
    for (std::size_t worker = 0; worker < num_workers; ++worker) {
      NameTrack(Track(worker), fmt::format("worker {}", worker));
    }
    for (const TracedSteps& steps : all) {
      for (const Timeline& timeline : steps.timelines) {
        base_ = timeline.start - first;
        WriteStep(*steps.reader, timeline);
      }
    }
  }

  std::string Take() { return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + out_ + "\n]}\n"; }

 private:
  static int Track(std::size_t worker) { return kFirstWorkerTrack + static_cast<int>(worker); }

  void Next() {
    if (!out_.empty()) out_ += ",\n";
  }
  void Name(std::string_view what, int track, std::string_view name) {
    Next();
    out_ += fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"{}","args":{{"name":"{}"}}}})",
                        track, what, EscapeJson(name));
  }
  void NameTrack(int track, std::string_view name) {
    Name("thread_name", track, name);
    Next();
    out_ += fmt::format(
        R"({{"ph":"M","pid":1,"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})",
        track, track);
  }
  /// Microseconds with all nanoseconds kept.
  static std::string Us(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }
  /// `args`: members of a JSON object.
  void Slice(int track, std::string_view category, std::string_view name, std::int64_t begin,
             std::int64_t end, std::string_view args) {
    Next();
    out_ += fmt::format(
        R"({{"ph":"X","pid":1,"tid":{},"ts":{},"dur":{},"cat":"{}","name":"{}","args":{{{}}}}})",
        track, Us(base_ + begin), Us(end - begin), category, EscapeJson(name), args);
  }
  void Counter(std::size_t worker, std::int64_t at, double gb_per_s) {
    Next();
    out_ += fmt::format(
        R"({{"ph":"C","pid":1,"ts":{},"name":"GB/s worker {}","args":{{"GB/s":{:.3f}}}}})",
        Us(base_ + at), worker, gb_per_s);
  }

  void WriteStep(const TraceReader& reader, const Timeline& timeline) {
    Slice(kHostTrack, "step", fmt::format("step {}", timeline.step), 0, timeline.duration,
          fmt::format(R"("rows":{},"positions":{})", timeline.rows, timeline.context_rows));
    const std::vector<Op>& ops = reader.ops().ops();
    for (const PathStretch& stretch : reader.CriticalPath(timeline)) {
      const Event& event = timeline.workers[stretch.worker][stretch.event];
      std::string name = ops[event.op].name;
      if (stretch.part == PathPart::kHandOver) name = "hand-over to " + name;
      if (stretch.part == PathPart::kStepBegin) name = "host to workers";
      if (stretch.part == PathPart::kStepEnd) name = "workers to host";
      Slice(kPathTrack, "path", name, stretch.begin, stretch.end,
            fmt::format(R"("worker":{})", stretch.worker));
    }
    for (std::size_t worker = 0; worker < timeline.workers.size(); ++worker) {
      WriteWorker(reader, timeline, worker);
    }
  }

  void WriteWorker(const TraceReader& reader, const Timeline& timeline, std::size_t worker) {
    const std::vector<Event>& events = timeline.workers[worker];
    const program::Program& program = reader.program();
    for (std::size_t first = 0; first < events.size();) {
      std::size_t last = first;
      while (last + 1 < events.size() && events[last + 1].visit == events[first].visit) ++last;
      const program::Visit& visit = program.visits[events[first].visit];
      const std::string& segment = program.segments[visit.segment].name;
      Slice(Track(worker), "layer",
            visit.layer < 0 ? segment : fmt::format("layer {} {}", visit.layer, segment),
            events[first].begin, events[last].end,
            fmt::format(R"("visit":{})", events[first].visit));
      for (std::size_t i = first; i <= last; ++i) WriteEvent(reader, timeline, worker, events[i]);
      first = last + 1;
    }
  }

  void WriteEvent(const TraceReader& reader, const Timeline& timeline, std::size_t worker,
                  const Event& event) {
    const std::vector<Op>& ops = reader.ops().ops();
    if (event.wait() > 0) {
      const std::string counter = reader.WaitsFor(event);
      std::string args =
          fmt::format(R"("for":"{}","op":"{}","prefetched_bytes":{})", EscapeJson(counter),
                      EscapeJson(ops[event.op].name), event.prefetched_bytes);
      if (auto last = reader.LastSignaller(timeline, event)) {
        last = reader.WorkBehind(timeline, *last);
        const Event& signal = timeline.workers[last->worker][last->event];
        args += fmt::format(R"(,"last_from_worker":{},"last_from_op":"{}")", last->worker,
                            EscapeJson(ops[signal.op].name));
      }
      Slice(Track(worker), "wait", "wait " + counter, event.begin, event.ready, args);
    }
    if (event.work() == 0) return;
    const double rate =
        static_cast<double>(event.bytes.Total()) / static_cast<double>(event.work());
    Slice(Track(worker), "work", ops[event.op].name, event.ready, event.end,
          fmt::format(R"("instruction":{},"rows":{},"weight_bytes":{},"state_bytes":{},)"
                      R"("GB/s":{:.3f})",
                      event.instruction, event.rows, event.bytes.weights, event.bytes.state, rate));
    if (event.bytes.Total() == 0) return;
    Counter(worker, event.ready, rate);
    Counter(worker, event.end, 0.0);
  }

  std::string out_;
  std::int64_t base_ = 0;
};

}  // namespace

std::string PerfettoJson(std::span<const TracedSteps> steps) { return Writer(steps).Take(); }

}  // namespace megalith::trace
