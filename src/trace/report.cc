#include "trace/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace megalith::trace {
namespace {

using Json = nlohmann::ordered_json;

/// Rows of bubbles printed; the rest is one line. JSON has all.
constexpr std::size_t kPrintedBubbles = 20;

class Text {
 public:
  explicit Text(const Summary& summary) : summary_(summary) {
    for (const OpTotal& op : summary.ops) name_width_ = std::max(name_width_, op.name.size());
  }

  std::string Write() {
    WriteSteps();
    WriteWorkers();
    WriteOps();
    WritePath();
    WriteBubbles();
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Line(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
    out_ += '\n';
  }
  double Us(std::int64_t ns) const {
    return static_cast<double>(ns) * 1e-3 / static_cast<double>(summary_.steps);
  }
  double Mb(std::int64_t bytes) const {
    return static_cast<double>(bytes) * 1e-6 / static_cast<double>(summary_.steps);
  }
  double Calls(std::int64_t calls) const {
    return static_cast<double>(calls) / static_cast<double>(summary_.steps);
  }
  /// Of the time of the given number of workers.
  double Share(std::int64_t ns, std::size_t workers) const {
    const double all = static_cast<double>(summary_.step_ns) * static_cast<double>(workers);
    return all > 0 ? 100.0 * static_cast<double>(ns) / all : 0.0;
  }
  /// "-" where nothing is read: 0.0 would look measured.
  static std::string Rate(std::int64_t bytes, std::int64_t ns) {
    if (bytes == 0 || ns == 0) return "-";
    return fmt::format("{:.2f}", static_cast<double>(bytes) / static_cast<double>(ns));
  }

  void WriteSteps() {
    Line("{} step{}: median {:.1f} us, {:.1f} to {:.1f}; {:.3f} MB read a step, {} GB/s",
         summary_.steps, summary_.steps == 1 ? "" : "s",
         static_cast<double>(summary_.median_ns) * 1e-3,
         static_cast<double>(summary_.shortest_ns) * 1e-3,
         static_cast<double>(summary_.longest_ns) * 1e-3, Mb(summary_.ReadTotal()),
         Rate(summary_.ReadTotal(), summary_.step_ns));
  }

  void WriteWorkers() {
    Line("");
    Line(
        "worker     start us   reading us     other us   waiting us    finish us      step us  "
        "       MB   GB/s reading");
    for (std::size_t i = 0; i < summary_.workers.size(); ++i) {
      const WorkerTotal& worker = summary_.workers[i];
      Line("{:<6} {:>12.1f} {:>12.1f} {:>12.1f} {:>12.1f} {:>12.1f} {:>12.1f} {:>10.3f} {:>14}", i,
           Us(worker.start_ns), Us(worker.reading_ns), Us(worker.other_ns), Us(worker.wait_ns),
           Us(worker.finish_ns), Us(worker.Sum()), Mb(worker.bytes.Total()),
           Rate(worker.bytes.Total(), worker.reading_ns));
    }
  }

  void WriteOps() {
    const std::size_t workers = summary_.workers.size();
    Line("");
    Line("{:<{}}   calls      work us   share  longest us         MB    GB/s     wait us", "op",
         name_width_);
    OpTotal all{.name = "all"};
    for (const OpTotal& op : summary_.ops) {
      WriteOp(op, workers);
      all.calls += op.calls;
      all.work_ns += op.work_ns;
      all.wait_ns += op.wait_ns;
      all.most_work_ns = std::max(all.most_work_ns, op.most_work_ns);
      all.bytes.weights += op.bytes.weights;
      all.bytes.state += op.bytes.state;
    }
    WriteOp(all, workers);
  }

  void WriteOp(const OpTotal& op, std::size_t workers) {
    Line("{:<{}} {:>7.4g} {:>12.1f} {:>6.1f}% {:>11.1f} {:>10.3f} {:>7} {:>11.1f}", op.name,
         name_width_, Calls(op.calls), Us(op.work_ns), Share(op.work_ns, workers),
         static_cast<double>(op.most_work_ns) * 1e-3, Mb(op.bytes.Total()),
         Rate(op.bytes.Total(), op.work_ns), Us(op.wait_ns));
  }

  void WritePath() {
    std::vector<const OpTotal*> ops;
    for (const OpTotal& op : summary_.ops) {
      if (op.path_ns + op.path_hand_over_ns > 0) ops.push_back(&op);
    }
    std::stable_sort(ops.begin(), ops.end(), [](const OpTotal* a, const OpTotal* b) {
      return a->path_ns + a->path_hand_over_ns > b->path_ns + b->path_hand_over_ns;
    });
    Line("");
    Line("{:<{}}      work us   share  hand-over us   share", "critical path", name_width_);
    std::int64_t work = 0;
    std::int64_t hand_over = 0;
    const auto row = [&](std::string_view name, std::int64_t work_ns, std::int64_t hand_over_ns) {
      Line("{:<{}} {:>12.1f} {:>6.1f}% {:>13.1f} {:>6.1f}%", name, name_width_, Us(work_ns),
           Share(work_ns, 1), Us(hand_over_ns), Share(hand_over_ns, 1));
      work += work_ns;
      hand_over += hand_over_ns;
    };
    for (const OpTotal* op : ops) row(op->name, op->path_ns, op->path_hand_over_ns);
    row("(host to workers)", 0, summary_.path_start_ns);
    row("(workers to host)", 0, summary_.path_finish_ns);
    row("all", work, hand_over);
  }

  void WriteBubbles() {
    const std::size_t workers = summary_.workers.size();
    Line("");
    Line("{:<12}   calls           us   share  prefetched MB  cause", "no reading");
    std::int64_t rest = 0;
    std::int64_t all = 0;
    for (std::size_t i = 0; i < summary_.bubbles.size(); ++i) {
      const Bubble& bubble = summary_.bubbles[i];
      all += bubble.ns;
      if (i >= kPrintedBubbles) {
        rest += bubble.ns;
        continue;
      }
      Line("{:<12} {:>7.4g} {:>12.1f} {:>6.1f}% {:>14.3f}  {}", BubbleKindName(bubble.kind),
           Calls(bubble.calls), Us(bubble.ns), Share(bubble.ns, workers),
           Mb(bubble.prefetched_bytes), Cause(bubble));
    }
    if (rest > 0) {
      Line("{:<12} {:>7} {:>12.1f} {:>6.1f}%", "others", "", Us(rest), Share(rest, workers));
    }
    Line("{:<12} {:>7} {:>12.1f} {:>6.1f}%", "all", "", Us(all), Share(all, workers));
  }

  static std::string Cause(const Bubble& bubble) {
    switch (bubble.kind) {
      case BubbleKind::kWait:
        if (bubble.signaller.empty()) {
          return fmt::format("{} waits for {}", bubble.op, bubble.counter);
        }
        return fmt::format("{} waits for {}, last from {} (worker {})", bubble.op, bubble.counter,
                           bubble.signaller, bubble.worker);
      case BubbleKind::kNoMemory:
        return bubble.op;
      case BubbleKind::kStepStart:
        return "the host has begun the step, the worker has not";
      case BubbleKind::kStepFinish:
        return "the worker has finished, the host has not seen all workers finish";
    }
    return "";
  }

  const Summary& summary_;
  std::size_t name_width_ = 20;
  std::string out_;
};

}  // namespace

std::string ReportText(const Summary& summary) { return Text(summary).Write(); }

std::string ReportJson(const Summary& summary) {
  Json workers = Json::array();
  for (const WorkerTotal& worker : summary.workers) {
    workers.push_back({{"start_ns", worker.start_ns},
                       {"reading_ns", worker.reading_ns},
                       {"other_ns", worker.other_ns},
                       {"wait_ns", worker.wait_ns},
                       {"finish_ns", worker.finish_ns},
                       {"weight_bytes", worker.bytes.weights},
                       {"state_bytes", worker.bytes.state}});
  }
  Json ops = Json::array();
  for (const OpTotal& op : summary.ops) {
    ops.push_back({{"name", op.name},
                   {"group", OpGroupName(op.group)},
                   {"calls", op.calls},
                   {"work_ns", op.work_ns},
                   {"wait_ns", op.wait_ns},
                   {"longest_ns", op.most_work_ns},
                   {"weight_bytes", op.bytes.weights},
                   {"state_bytes", op.bytes.state},
                   {"prefetched_bytes", op.prefetched_bytes},
                   {"path_ns", op.path_ns},
                   {"path_hand_over_ns", op.path_hand_over_ns}});
  }
  Json bubbles = Json::array();
  for (const Bubble& bubble : summary.bubbles) {
    bubbles.push_back({{"kind", BubbleKindName(bubble.kind)},
                       {"op", bubble.op},
                       {"counter", bubble.counter},
                       {"signaller", bubble.signaller},
                       {"signalling_worker", bubble.worker},
                       {"calls", bubble.calls},
                       {"ns", bubble.ns},
                       {"prefetched_bytes", bubble.prefetched_bytes}});
  }
  const Json json = {{"steps", summary.steps},
                     {"step_ns", summary.step_ns},
                     {"shortest_ns", summary.shortest_ns},
                     {"median_ns", summary.median_ns},
                     {"longest_ns", summary.longest_ns},
                     {"read_bytes", summary.ReadTotal()},
                     {"path_start_ns", summary.path_start_ns},
                     {"path_finish_ns", summary.path_finish_ns},
                     {"workers", std::move(workers)},
                     {"ops", std::move(ops)},
                     {"bubbles", std::move(bubbles)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace megalith::trace
