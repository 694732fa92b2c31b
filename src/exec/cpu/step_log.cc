#include "exec/cpu/step_log.h"

#include <algorithm>

namespace megalith::exec::cpu {
namespace {

using program::Program;
using program::TraceRecord;
using program::TraceStep;
using program::TraceStepInfo;

namespace {

/// What one look at the clock takes, about.
double TicksPerStamp(const TickClock& clock) {
  constexpr int kLooks = 256;
  const std::int64_t begin = clock.Now();
  std::int64_t end = begin;
  for (int i = 0; i < kLooks; ++i) end = clock.Now();
  return static_cast<double>(end - begin) / kLooks;
}

}  // namespace
}  // namespace

std::size_t InstructionsInStep(const Program& program, std::size_t worker) {
  std::size_t count = 0;
  for (const program::Visit& visit : program.visits) {
    count += program.segments[visit.segment].streams[worker].instructions.size();
  }
  return count;
}

StepLog::StepLog(std::size_t num_workers)
    : ticks_per_stamp_(TicksPerStamp(clock_)),
      num_workers_(num_workers),
      steps_(num_workers == 0 ? 0 : kSteps),
      first_records_(steps_.size() * num_workers) {}

bool StepLog::Begin(std::int32_t program, std::size_t num_records, const StepInput& input,
                    const std::vector<const TraceRing*>& rings) {
  const std::int64_t number = num_begun_++;
  if (steps_.empty()) return false;
  const std::int64_t now = clock_.Now();
  const double cost = static_cast<double>(num_records) * ticks_per_stamp_;
  const bool is_time = last_begin_ == 0 || static_cast<double>(now - last_begin_) * kShare >= cost;
  if (!every_step_ && !is_time) return false;
  last_begin_ = now;
  const std::size_t slot = num_steps_ % kSteps;
  TraceStepInfo& info = steps_[slot];
  info = {};
  info.step = number;
  info.program = program;
  info.rows = static_cast<std::int32_t>(input.tokens.size());
  info.logit_rows = static_cast<std::int32_t>(input.logit_rows.size());
  info.runs = static_cast<std::int32_t>(input.runs.size());
  for (const Run& run : input.runs) info.context_rows += run.first_position + run.count;
  for (std::size_t worker = 0; worker < num_workers_; ++worker) {
    first_records_[slot * num_workers_ + worker] = rings[worker]->written();
  }
  info.begin = clock_.Now();
  return true;
}

void StepLog::End() {
  steps_[num_steps_ % kSteps].end = clock_.Now();
  ++num_steps_;
}

program::Trace StepLog::Read(const std::vector<const TraceRing*>& rings,
                             const DeviceMemory& memory) const {
  program::Trace trace;
  const std::uint64_t kept = std::min<std::uint64_t>(num_steps_, steps_.size());
  if (kept == 0) return trace;
  const TickScale::Rate rate = scale_.Measure();
  for (std::uint64_t number = num_steps_ - kept; number < num_steps_; ++number) {
    const std::size_t slot = number % kSteps;
    TraceStep step{steps_[slot], {}};
    step.info.begin = rate.ToNs(step.info.begin);
    step.info.end = rate.ToNs(step.info.end);
    const Program& program = *memory.program(static_cast<std::size_t>(step.info.program));
    for (std::size_t worker = 0; worker < num_workers_; ++worker) {
      const TraceRing& ring = *rings[worker];
      const std::uint64_t first = first_records_[slot * num_workers_ + worker];
      const std::uint64_t count = InstructionsInStep(program, worker);
      if (first < ring.first()) break;
      std::vector<TraceRecord>& records = step.workers.emplace_back();
      records.reserve(count);
      // Time stamps are not serialised, and an unpinned worker may change cores: never backwards.
      std::int64_t last = step.info.begin;
      for (std::uint64_t i = first; i < first + count; ++i) {
        TraceRecord record = ring.Record(i);
        for (std::int64_t* time : {&record.begin, &record.ready, &record.end}) {
          last = *time = std::max(last, rate.ToNs(*time));
        }
        records.push_back(record);
      }
      step.info.end = std::max(step.info.end, last);
    }
    if (step.workers.size() == num_workers_) trace.steps.push_back(std::move(step));
  }
  return trace;
}

}  // namespace megalith::exec::cpu
