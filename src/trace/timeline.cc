#include "trace/timeline.h"

#include <algorithm>

namespace megalith::trace {

using program::CounterScope;
using program::Instruction;
using program::kNone;
using program::Opcode;
using program::Program;
using program::Stream;
using program::TraceRecord;
using program::TraceStep;
using program::Visit;

namespace {

/// As engines time them: see TraceRecord::end.
bool IsTimed(Opcode opcode) {
  return opcode != Opcode::kFetch && opcode != Opcode::kFetchNext && opcode != Opcode::kWait;
}

}  // namespace

TraceReader::TraceReader(const Program& program) : program_(program), ops_(program) {
  for (const program::Segment& segment : program.segments) {
    auto& of_counter = sources_.emplace_back(program.counters.size());
    for (std::size_t worker = 0; worker < segment.streams.size(); ++worker) {
      const auto& instructions = segment.streams[worker].instructions;
      for (std::size_t i = 0; i < instructions.size(); ++i) {
        const std::uint32_t counter = instructions[i].signal_counter;
        if (counter != kNone) of_counter[counter].push_back({worker, i});
      }
    }
  }
  for (std::size_t worker = 0; worker < static_cast<std::size_t>(program.num_workers); ++worker) {
    std::vector<std::size_t>& first = first_event_.emplace_back(1, 0);
    for (const Visit& visit : program.visits) {
      const Stream& stream = program.segments[visit.segment].streams[worker];
      first.push_back(first.back() + stream.instructions.size());
    }
  }
}

Result<Timeline> TraceReader::Read(const TraceStep& step) const {
  Timeline timeline;
  timeline.step = step.info.step;
  timeline.start = step.info.begin;
  timeline.duration = step.info.end - step.info.begin;
  timeline.rows = step.info.rows;
  timeline.context_rows = step.info.context_rows;
  if (step.workers.size() != first_event_.size()) {
    return Fail(ErrorCode::kBadFile, "trace of step {}: {} workers expected, {} found",
                step.info.step, first_event_.size(), step.workers.size());
  }
  for (std::size_t worker = 0; worker < step.workers.size(); ++worker) {
    const std::vector<TraceRecord>& records = step.workers[worker];
    if (records.size() != first_event_[worker].back()) {
      return Fail(ErrorCode::kBadFile, "trace of step {}, worker {}: {} records expected, {} found",
                  step.info.step, worker, first_event_[worker].back(), records.size());
    }
    std::vector<Event>& events = timeline.workers.emplace_back();
    events.reserve(records.size());
    std::int64_t last = step.info.begin;
    for (std::size_t v = 0; v < program_.visits.size(); ++v) {
      const Visit& visit = program_.visits[v];
      const Stream& stream = program_.segments[visit.segment].streams[worker];
      for (std::size_t i = 0; i < stream.instructions.size(); ++i) {
        const TraceRecord& record = records[events.size()];
        if (record.visit != v || record.instruction != i || record.begin < last ||
            record.ready < record.begin || record.end < record.ready ||
            record.end > step.info.end) {
          return Fail(ErrorCode::kBadFile,
                      "trace of step {}, worker {}, record {}: visit {} instruction {} after {} ns "
                      "expected, visit {} instruction {} at {}, {}, {} ns found",
                      step.info.step, worker, events.size(), v, i, last - step.info.begin,
                      record.visit, record.instruction, record.begin - step.info.begin,
                      record.ready - step.info.begin, record.end - step.info.begin);
        }
        const Instruction& instruction = stream.instructions[i];
        Event event;
        event.begin = record.begin - step.info.begin;
        event.ready = record.ready - step.info.begin;
        event.end = record.end - step.info.begin;
        event.op = ops_.OpOf(visit.segment, worker, i);
        event.visit = record.visit;
        event.instruction = record.instruction;
        event.layer = visit.layer;
        event.wait_counter = instruction.wait_counter;
        if (instruction.opcode == Opcode::kExchangeReceive) event.wait_rank = instruction.imm[2];
        event.is_timed = IsTimed(instruction.opcode);
        event.rows = CountRows(instruction, record);
        event.bytes = CountReadBytes(program_, stream, instruction, record, step.info);
        event.prefetched_bytes =
            static_cast<std::int64_t>(record.prefetched_lines) * program::kTraceLineBytes;
        events.push_back(event);
        last = record.end;
      }
    }
  }
  return timeline;
}

std::string TraceReader::WaitsFor(const Event& event) const {
  if (event.wait_rank >= 0) return fmt::format("rank {}", event.wait_rank);
  return event.wait_counter == kNone ? std::string() : program_.counters[event.wait_counter].name;
}

std::optional<Signaller> TraceReader::LastSignaller(const Timeline& timeline,
                                                    const Event& event) const {
  if (event.wait_counter == kNone || event.wait_rank >= 0) return std::nullopt;
  std::size_t visit = event.visit;
  switch (program_.counters[event.wait_counter].scope) {
    case CounterScope::kSegment:
      break;
    case CounterScope::kProgram:  // of the visit before
      if (visit == 0) return std::nullopt;
      --visit;
      break;
    case CounterScope::kHost:
    case CounterScope::kDone:
      return std::nullopt;
  }
  std::optional<Signaller> last;
  std::int64_t latest = -1;
  for (const Source& source : sources_[program_.visits[visit].segment][event.wait_counter]) {
    const std::size_t index = first_event_[source.worker][visit] + source.instruction;
    const Event& signal = timeline.workers[source.worker][index];
    if (signal.ready > event.ready || signal.end <= latest) continue;
    latest = signal.end;
    last = Signaller{source.worker, index};
  }
  return last;
}

Signaller TraceReader::WorkBehind(const Timeline& timeline, Signaller signaller) const {
  const std::vector<Event>& events = timeline.workers[signaller.worker];
  for (std::size_t i = signaller.event + 1; i-- > 0;) {
    if (events[i].is_timed) return {signaller.worker, i};
  }
  return signaller;
}

std::size_t TraceReader::WorkHeldUp(const Timeline& timeline, std::size_t worker,
                                    std::size_t event) const {
  const std::vector<Event>& events = timeline.workers[worker];
  for (std::size_t i = event; i < events.size(); ++i) {
    if (events[i].is_timed) return i;
  }
  return event;
}

std::vector<PathStretch> TraceReader::CriticalPath(const Timeline& timeline) const {
  std::vector<PathStretch> path;  // backwards
  std::size_t worker = 0;
  for (std::size_t i = 0; i < timeline.workers.size(); ++i) {
    if (timeline.workers[i].empty()) return path;
    if (timeline.workers[i].back().end > timeline.workers[worker].back().end) worker = i;
  }
  if (timeline.workers.empty()) return path;
  std::size_t index = timeline.workers[worker].size() - 1;
  std::int64_t now = timeline.duration;
  const auto add = [&](PathPart part, std::int64_t begin) {
    if (begin < now) path.push_back({part, begin, now, worker, index});
    now = std::min(now, begin);
  };
  add(PathPart::kStepEnd, timeline.workers[worker][index].end);
  while (true) {
    const Event& event = timeline.workers[worker][index];
    add(PathPart::kWork, event.ready);
    if (event.wait() > 0) {
      const std::optional<Signaller> signaller = LastSignaller(timeline, event);
      if (!signaller) {
        // The host, at the step's begin.
        const bool is_host = event.wait_counter != kNone &&
                             program_.counters[event.wait_counter].scope == CounterScope::kHost;
        if (is_host) break;
        add(PathPart::kHandOver, event.begin);
      } else {
        const Event& signal = timeline.workers[signaller->worker][signaller->event];
        // Signalled before the wait began: only the look at the counter took time.
        const bool was_there = signal.end <= event.begin || signaller->worker == worker;
        add(PathPart::kHandOver, was_there ? event.begin : std::min(signal.end, event.ready));
        if (!was_there) {
          worker = signaller->worker;
          index = signaller->event;
          continue;
        }
      }
    }
    if (index == 0) break;
    --index;
  }
  if (now > 0) path.push_back({PathPart::kStepBegin, 0, now, worker, index});
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace megalith::trace
