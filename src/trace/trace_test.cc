// Records of real steps against the Program, and the sums made of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trace/report.h"
#include "trace/summary.h"
#include "trace/testing/nano_trace.h"
#include "trace/timeline.h"

namespace megalith::trace {
namespace {

using exec::testing::MakeExecutor;
using program::Opcode;
using program::Program;
using program::TraceStep;
using testing::NanoSpec;
using testing::RunStep;
using testing::SimulateStep;

/// Six steps of one row and one of eight.
class NanoTrace : public ::testing::Test {
 protected:
  void SetUp() override {
    executor_ = MakeExecutor(NanoSpec()).value();
    executor_->TraceEveryStep();
    for (std::int32_t i = 0; i < 6; ++i) RunStep(*executor_, i, 1);
    RunStep(*executor_, 6, 8);
    trace_ = executor_->ReadTrace();
    ASSERT_EQ(trace_.steps.size(), 7U);
  }
  const Program& ProgramOf(const TraceStep& step) const {
    return *executor_->memory().program(static_cast<std::size_t>(step.info.program));
  }

  std::unique_ptr<exec::Executor> executor_;
  program::Trace trace_;
};

TEST_F(NanoTrace, EveryInstructionAppearsOncePerWorkerInOrder) {
  for (const TraceStep& step : trace_.steps) {
    const Program& program = ProgramOf(step);
    ASSERT_EQ(step.workers.size(), 2U);
    for (std::size_t worker = 0; worker < 2; ++worker) {
      std::size_t next = 0;
      std::int64_t last = step.info.begin;
      for (std::uint32_t visit = 0; visit < program.visits.size(); ++visit) {
        const auto& instructions =
            program.segments[program.visits[visit].segment].streams[worker].instructions;
        for (std::uint32_t i = 0; i < instructions.size(); ++i, ++next) {
          ASSERT_LT(next, step.workers[worker].size());
          const program::TraceRecord& record = step.workers[worker][next];
          EXPECT_EQ(record.visit, visit);
          EXPECT_EQ(record.instruction, i);
          EXPECT_GE(record.begin, last);
          EXPECT_GE(record.ready, record.begin);
          EXPECT_GE(record.end, record.ready);
          if (instructions[i].wait_counter == program::kNone) {
            EXPECT_EQ(record.ready, record.begin);
          }
          last = record.end;
        }
      }
      EXPECT_EQ(next, step.workers[worker].size());
      EXPECT_GE(step.info.end, last);
    }
  }
}

TEST_F(NanoTrace, StepsSayWhatTheyRan) {
  for (std::size_t i = 0; i < 7; ++i) {
    const program::TraceStepInfo& info = trace_.steps[i].info;
    EXPECT_EQ(info.step, static_cast<std::int64_t>(i));
    EXPECT_EQ(info.rows, i < 6 ? 1 : 8);
    EXPECT_EQ(info.program, i < 6 ? 0 : 1);
    EXPECT_EQ(info.runs, 1);
    EXPECT_EQ(info.logit_rows, 1);
    EXPECT_EQ(info.context_rows, i < 6 ? static_cast<std::int64_t>(i) + 1 : 14);
  }
}

TEST_F(NanoTrace, TripsAreTheRegisters) {
  for (const TraceStep& step : trace_.steps) {
    const Program& program = ProgramOf(step);
    std::size_t experts = 0;
    for (std::size_t worker = 0; worker < 2; ++worker) {
      for (const program::TraceRecord& record : step.workers[worker]) {
        const program::Instruction& instruction =
            program.segments[program.visits[record.visit].segment]
                .streams[worker]
                .instructions[record.instruction];
        if (instruction.opcode == Opcode::kMatmul && instruction.trip == program::Register::kRows) {
          EXPECT_EQ(record.trip, static_cast<std::uint32_t>(step.info.rows));
        }
        if (instruction.opcode != Opcode::kExpertGateUp) continue;
        ++experts;
        EXPECT_GE(record.trip, 4U);  // experts a row chooses
        EXPECT_LE(record.trip,
                  std::min<std::uint32_t>(16, 4U * static_cast<std::uint32_t>(step.info.rows)));
      }
    }
    EXPECT_GT(experts, 0U);
  }
}

TEST_F(NanoTrace, WorkersAndPathAddUpToTheStep) {
  const TraceReader reader(*executor_->memory().program(0));
  std::vector<Timeline> timelines;
  for (std::size_t i = 0; i < 6; ++i) {
    timelines.push_back(reader.Read(trace_.steps[i]).value());
    std::int64_t now = 0;
    for (const PathStretch& stretch : reader.CriticalPath(timelines.back())) {
      EXPECT_EQ(stretch.begin, now);
      EXPECT_LT(stretch.begin, stretch.end);
      now = stretch.end;
    }
    EXPECT_EQ(now, timelines.back().duration);
  }
  const Summary summary = Summarize(reader, timelines);
  EXPECT_EQ(summary.steps, 6);
  std::int64_t work = 0;
  std::int64_t wait = 0;
  for (const WorkerTotal& worker : summary.workers) {
    EXPECT_EQ(worker.Sum(), summary.step_ns);
    EXPECT_GT(worker.reading_ns, 0);
    work += worker.reading_ns + worker.other_ns;
    wait += worker.wait_ns;
  }
  std::int64_t op_work = 0;
  std::int64_t op_wait = 0;
  std::int64_t path = summary.path_start_ns + summary.path_finish_ns;
  for (const OpTotal& op : summary.ops) {
    op_work += op.work_ns;
    op_wait += op.wait_ns;
    path += op.path_ns + op.path_hand_over_ns;
  }
  EXPECT_EQ(op_work, work);
  EXPECT_EQ(op_wait, wait);
  EXPECT_EQ(path, summary.step_ns);
  std::int64_t bubbles = 0;
  for (const Bubble& bubble : summary.bubbles) bubbles += bubble.ns;
  std::int64_t not_reading = 0;
  for (const WorkerTotal& worker : summary.workers) not_reading += worker.Sum() - worker.reading_ns;
  EXPECT_EQ(bubbles, not_reading);
  EXPECT_LE(summary.shortest_ns, summary.median_ns);
  EXPECT_LE(summary.median_ns, summary.longest_ns);
}

TEST_F(NanoTrace, WeightBytesAreThoseOfTheProgram) {
  const Program& program = *executor_->memory().program(0);
  const TraceReader reader(program);
  const Timeline timeline = reader.Read(trace_.steps[3]).value();
  const Summary summary = Summarize(reader, {&timeline, 1});
  std::int64_t weights = 0;
  std::int64_t state = 0;
  for (const OpTotal& op : summary.ops) {
    weights += op.bytes.weights;
    state += op.bytes.state;
  }
  // One row chooses 4 experts a layer.
  std::int64_t vectors = 0;
  for (const program::Visit& visit : program.visits) {
    vectors += program.segments[visit.segment].vector_bytes;
  }
  EXPECT_EQ(weights, program::CountStepBytes(program, 1, 4).packed - vectors);
  // Every layer's KDA state and history once, and every MLA cache row once for each worker.
  std::int64_t want = 0;
  for (const program::Buffer& buffer : program.buffers) {
    const std::int64_t bytes = buffer.columns * DTypeBytes(buffer.dtype);
    if (buffer.kind == program::BufferKind::kMlaCache) {
      want += 2 * program.state.num_mla_layers * bytes * timeline.context_rows;
    } else if (program::IsState(buffer.kind)) {
      want += program.state.num_kda_layers * bytes;
    }
  }
  EXPECT_EQ(state, want);
}

TEST_F(NanoTrace, RecordsOfAnotherProgramOrOrderAreRefused) {
  const TraceReader reader(*executor_->memory().program(0));
  ASSERT_TRUE(reader.Read(trace_.steps[0]).has_value());
  TraceStep missing = trace_.steps[0];
  missing.workers[1].pop_back();
  EXPECT_FALSE(reader.Read(missing).has_value());
  TraceStep swapped = trace_.steps[0];
  std::swap(swapped.workers[0][4], swapped.workers[0][5]);
  EXPECT_FALSE(reader.Read(swapped).has_value());
  TraceStep workers = trace_.steps[0];
  workers.workers.pop_back();
  EXPECT_FALSE(reader.Read(workers).has_value());
  TraceStep backwards = trace_.steps[0];
  backwards.workers[0][7].ready = backwards.workers[0][7].begin - 1;
  const auto failed = reader.Read(backwards);
  ASSERT_FALSE(failed.has_value());
  EXPECT_NE(failed.error().message.find("worker 0, record 7"), std::string::npos)
      << failed.error().message;
}

TEST_F(NanoTrace, JsonHasTheSameSums) {
  const TraceReader reader(*executor_->memory().program(1));
  const Timeline timeline = reader.Read(trace_.steps[6]).value();
  const Summary summary = Summarize(reader, {&timeline, 1});
  const nlohmann::json json = nlohmann::json::parse(ReportJson(summary));
  EXPECT_EQ(json["step_ns"], timeline.duration);
  EXPECT_EQ(json["ops"].size(), summary.ops.size());
  std::int64_t path =
      json["path_start_ns"].get<std::int64_t>() + json["path_finish_ns"].get<std::int64_t>();
  for (const auto& op : json["ops"]) {
    path += op["path_ns"].get<std::int64_t>() + op["path_hand_over_ns"].get<std::int64_t>();
  }
  EXPECT_EQ(path, timeline.duration);
  const std::string text = ReportText(summary);
  for (const char* part : {"matmul q_proj", "critical path", "no reading", "expert_gate_up"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
}

TEST(EngineTrace, RingsKeepTheLatestSteps) {
  exec::testing::ExecutorSpec spec = NanoSpec();
  spec.row_buckets = {1};
  spec.trace_records = 1;  // room for two steps all the same
  const auto executor = MakeExecutor(spec).value();
  executor->TraceEveryStep();
  for (std::int32_t i = 0; i < 9; ++i) RunStep(*executor, i, 1);
  const program::Trace trace = executor->ReadTrace();
  ASSERT_GE(trace.steps.size(), 2U);
  ASSERT_LT(trace.steps.size(), 9U);
  EXPECT_EQ(trace.steps.back().info.step, 8);
  const TraceReader reader(*executor->memory().program(0));
  for (std::size_t i = 0; i < trace.steps.size(); ++i) {
    EXPECT_EQ(trace.steps[i].info.step, static_cast<std::int64_t>(9 - trace.steps.size() + i));
    EXPECT_TRUE(reader.Read(trace.steps[i]).has_value());
  }
}

TEST(EngineTrace, CanBeOff) {
  exec::testing::ExecutorSpec spec = NanoSpec();
  spec.trace_records = 0;
  const auto executor = MakeExecutor(spec).value();
  executor->TraceEveryStep();
  RunStep(*executor, 0, 1);
  EXPECT_TRUE(executor->ReadTrace().steps.empty());
}

TEST(EngineTrace, InterpreterKeepsNone) {
  exec::testing::ExecutorSpec spec = NanoSpec();
  spec.reference = true;
  const auto executor = MakeExecutor(spec).value();
  executor->TraceEveryStep();
  RunStep(*executor, 0, 1);
  EXPECT_TRUE(executor->ReadTrace().steps.empty());
}

TEST(CriticalPath, LiesOnTheSlowWorker) {
  const auto programs = exec::testing::MakePrograms(NanoSpec()).value();
  const TraceReader reader(*programs.front());
  const Timeline timeline = reader.Read(SimulateStep(*programs.front(), {100, 1000})).value();
  std::int64_t slow = 0;
  std::int64_t all = 0;
  for (const PathStretch& stretch : reader.CriticalPath(timeline)) {
    const std::int64_t ns = stretch.end - stretch.begin;
    all += ns;
    if (stretch.part == PathPart::kWork && stretch.worker == 1) slow += ns;
    if (stretch.part == PathPart::kHandOver) {
      EXPECT_EQ(ns, testing::kHandOverNs);
    }
  }
  EXPECT_EQ(all, timeline.duration);
  // The fast worker alone does the router and the plan.
  EXPECT_GT(slow, all * 8 / 10);
}

TEST(LastSignaller, IsTheLatestOfThoseThatSignal) {
  const auto programs = exec::testing::MakePrograms(NanoSpec()).value();
  const Program& program = *programs.front();
  const TraceReader reader(program);
  const Timeline timeline = reader.Read(SimulateStep(program, {700, 300})).value();
  std::size_t found = 0;
  for (const auto& events : timeline.workers) {
    for (const Event& event : events) {
      const auto last = reader.LastSignaller(timeline, event);
      if (event.wait() == 0 || !last) continue;
      ++found;
      const Event& signal = timeline.workers[last->worker][last->event];
      EXPECT_EQ(signal.end + testing::kHandOverNs, event.ready);
      // What is named as the cause has done some work, on the same worker.
      const Signaller cause = reader.WorkBehind(timeline, *last);
      EXPECT_EQ(cause.worker, last->worker);
      EXPECT_GT(timeline.workers[cause.worker][cause.event].work(), 0);
      EXPECT_LE(timeline.workers[cause.worker][cause.event].end, signal.end);
    }
  }
  EXPECT_GT(found, 20U);
}

TEST(MedianStep, IsTheLowerOfTwo) {
  std::vector<Timeline> timelines(4);
  for (std::size_t i = 0; i < 4; ++i) timelines[i].duration = std::vector{40, 10, 30, 20}[i];
  EXPECT_EQ(MedianStep(timelines), 3U);
}

}  // namespace
}  // namespace megalith::trace
