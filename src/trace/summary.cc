#include "trace/summary.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace megalith::trace {
namespace {

using BubbleKey = std::tuple<BubbleKind, std::string, std::string, std::string>;
struct BubbleSum {
  Bubble bubble;
  std::map<std::size_t, std::int64_t> signallers;  // worker -> how often it was the last
};
using Bubbles = std::map<BubbleKey, BubbleSum>;

class Summing {
 public:
  explicit Summing(const TraceReader& reader) : reader_(reader) {
    for (const Op& op : reader.ops().ops()) {
      summary_.ops.push_back({.name = op.name, .group = op.group});
    }
    summary_.workers.resize(static_cast<std::size_t>(reader.program().num_workers));
  }

  void Add(const Timeline& timeline) {
    for (std::size_t worker = 0; worker < timeline.workers.size(); ++worker) {
      AddWorker(timeline, worker);
    }
    for (const PathStretch& stretch : reader_.CriticalPath(timeline)) {
      const std::int64_t ns = stretch.end - stretch.begin;
      OpTotal& op = summary_.ops[timeline.workers[stretch.worker][stretch.event].op];
      switch (stretch.part) {
        case PathPart::kWork:
          op.path_ns += ns;
          break;
        case PathPart::kHandOver:
          op.path_hand_over_ns += ns;
          break;
        case PathPart::kStepBegin:
          summary_.path_start_ns += ns;
          break;
        case PathPart::kStepEnd:
          summary_.path_finish_ns += ns;
          break;
      }
    }
    ++summary_.steps;
    summary_.step_ns += timeline.duration;
  }

  Summary Take() {
    std::erase_if(summary_.ops, [](const OpTotal& op) {
      return op.work_ns + op.wait_ns + op.prefetched_bytes == 0;
    });
    std::stable_sort(summary_.ops.begin(), summary_.ops.end(),
                     [](const OpTotal& a, const OpTotal& b) { return a.work_ns > b.work_ns; });
    for (auto& [key, sum] : bubbles_) {
      std::int64_t most = 0;
      for (const auto& [worker, count] : sum.signallers) {
        if (count <= most) continue;
        most = count;
        sum.bubble.worker = static_cast<std::int32_t>(worker);
      }
      if (sum.bubble.ns > 0) summary_.bubbles.push_back(std::move(sum.bubble));
    }
    std::stable_sort(summary_.bubbles.begin(), summary_.bubbles.end(),
                     [](const Bubble& a, const Bubble& b) { return a.ns > b.ns; });
    return std::move(summary_);
  }

 private:
  void AddWorker(const Timeline& timeline, std::size_t worker) {
    const std::vector<Event>& events = timeline.workers[worker];
    WorkerTotal& total = summary_.workers[worker];
    if (events.empty()) {
      total.start_ns += timeline.duration;
      return;
    }
    for (std::size_t i = 0; i < events.size(); ++i) {
      const Event& event = events[i];
      OpTotal& op = summary_.ops[event.op];
      ++op.calls;
      op.work_ns += event.work();
      op.wait_ns += event.wait();
      op.most_work_ns = std::max(op.most_work_ns, event.work());
      op.bytes.weights += event.bytes.weights;
      op.bytes.state += event.bytes.state;
      op.prefetched_bytes += event.prefetched_bytes;
      total.bytes.weights += event.bytes.weights;
      total.bytes.state += event.bytes.state;
      total.wait_ns += event.wait();
      const bool reads = event.bytes.Total() > 0;
      (reads ? total.reading_ns : total.other_ns) += event.work();
      if (event.wait() > 0) AddWait(timeline, worker, i);
      if (!reads && event.is_timed) {
        BubbleSum& sum = Find(BubbleKind::kNoMemory, op.name, "", "");
        ++sum.bubble.calls;
        sum.bubble.ns += event.work();
        if (event.wait() == 0) sum.bubble.prefetched_bytes += event.prefetched_bytes;
      }
    }
    const std::int64_t start = events.front().begin;
    const std::int64_t finish = timeline.duration - events.back().end;
    total.start_ns += start;
    total.finish_ns += finish;
    for (const auto& [kind, ns] :
         {std::pair(BubbleKind::kStepStart, start), std::pair(BubbleKind::kStepFinish, finish)}) {
      BubbleSum& sum = Find(kind, "", "", "");
      ++sum.bubble.calls;
      sum.bubble.ns += ns;
    }
  }

  void AddWait(const Timeline& timeline, std::size_t worker, std::size_t index) {
    const Event& event = timeline.workers[worker][index];
    std::optional<Signaller> last = reader_.LastSignaller(timeline, event);
    if (last) last = reader_.WorkBehind(timeline, *last);
    const Event& held_up = timeline.workers[worker][reader_.WorkHeldUp(timeline, worker, index)];
    const std::vector<Op>& ops = reader_.ops().ops();
    const std::string counter = reader_.WaitsFor(event);
    BubbleSum& sum =
        Find(BubbleKind::kWait, ops[held_up.op].name, counter,
             last ? ops[timeline.workers[last->worker][last->event].op].name : std::string());
    ++sum.bubble.calls;
    sum.bubble.ns += event.wait();
    sum.bubble.prefetched_bytes += event.prefetched_bytes;
    if (last) ++sum.signallers[last->worker];
  }

  BubbleSum& Find(BubbleKind kind, const std::string& op, const std::string& counter,
                  const std::string& signaller) {
    BubbleSum& sum = bubbles_[{kind, op, counter, signaller}];
    sum.bubble.kind = kind;
    sum.bubble.op = op;
    sum.bubble.counter = counter;
    sum.bubble.signaller = signaller;
    return sum;
  }

  const TraceReader& reader_;
  Summary summary_;
  Bubbles bubbles_;
};

/// Indices by duration, shortest first.
std::vector<std::size_t> ByDuration(std::span<const Timeline> timelines) {
  std::vector<std::size_t> order(timelines.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return timelines[a].duration < timelines[b].duration;
  });
  return order;
}

}  // namespace

std::string_view BubbleKindName(BubbleKind kind) {
  switch (kind) {
    case BubbleKind::kWait:
      return "wait";
    case BubbleKind::kNoMemory:
      return "no memory";
    case BubbleKind::kStepStart:
      return "step start";
    case BubbleKind::kStepFinish:
      return "step finish";
  }
  return "?";
}

std::int64_t Summary::ReadTotal() const {
  std::int64_t bytes = 0;
  for (const WorkerTotal& worker : workers) bytes += worker.bytes.Total();
  return bytes;
}

std::size_t MedianStep(std::span<const Timeline> timelines) {
  return ByDuration(timelines)[(timelines.size() - 1) / 2];
}

Summary Summarize(const TraceReader& reader, std::span<const Timeline> timelines) {
  Summing summing(reader);
  for (const Timeline& timeline : timelines) summing.Add(timeline);
  Summary summary = summing.Take();
  const std::vector<std::size_t> order = ByDuration(timelines);
  summary.shortest_ns = timelines[order.front()].duration;
  summary.median_ns = timelines[MedianStep(timelines)].duration;
  summary.longest_ns = timelines[order.back()].duration;
  return summary;
}

}  // namespace megalith::trace
