#include "exec/cpu/worker.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "exec/testing/executors.h"
#include "kernels/flush_denormals.h"

namespace megalith::exec::cpu {
namespace {

/// What CpuEngine builds, in the open: two workers on a golden model.
class Workers {
 public:
  explicit Workers(const kernels::KernelTable<Bf16>& table) : table_(table) {
    testing::ExecutorSpec spec;
    spec.directory = std::string(MEGALITH_TEST_DATA) + "/golden/k3-unit";
    spec.num_workers = 2;
    auto programs = testing::MakePrograms(spec).value();
    shared_.weights = testing::Pack(spec).value();
    device_ = DeviceMemory::Create(programs, HugePages::kOff).value();
    state_ = std::make_unique<ProgramState>(device_->program_memory(0));
    shared_.device = device_.get();
    shared_.kernels = &table_;
    shared_.failure = &failure_;
    shared_.abandon = &abandon_;
    shared_.max_spins = 0;
    shared_.prefetch = true;
    shared_.before_instruction = &no_hook_;
    for (std::int32_t i = 0; i < 2; ++i) {
      workers_.push_back(
          std::make_unique<Worker<Bf16>>(i, shared_, Scratch::Allocate(programs, i).value()));
    }
  }

  /// One step of one row. Every worker must come to its end.
  Status Step() {
    const Run run{0, 0, 1};
    const std::int32_t token = 1;
    const std::int32_t logit_row = 0;
    EXPECT_TRUE(device_->BeginStep({{&run, 1}, {&token, 1}, {&logit_row, 1}}).has_value());
    for (const std::uint32_t counter : state_->targets.host_counters()) {
      state_->counters.Signal(counter, 1);
    }
    std::vector<std::thread> threads;
    for (auto& worker : workers_) {
      threads.emplace_back([&worker, this] {
        const kernels::ScopedFlushDenormals flush;
        EXPECT_TRUE(worker->RunStep(*state_));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(state_->counters.Load(state_->targets.done_counter()),
              state_->targets.Done(state_->epoch));
    ++state_->epoch;
    Status status = failure_.Take(state_->program);
    device_->FinishStep(0, status.has_value());
    return status;
  }

  std::vector<float> LastLogits() const {
    const std::span<const float> row = device_->Output(0).Row(0);
    return {row.begin(), row.end()};
  }
  std::int32_t Length() const { return device_->sequences().Length(0); }

 private:
  const kernels::KernelTable<Bf16>& table_;
  WorkerShared<Bf16> shared_{};
  std::unique_ptr<DeviceMemory> device_;
  std::unique_ptr<ProgramState> state_;
  StepFailure failure_;
  std::atomic<bool> abandon_{false};
  std::function<void(std::int32_t, std::int64_t, std::int64_t)> no_hook_;
  std::vector<std::unique_ptr<Worker<Bf16>>> workers_;
};

TEST(Workers, FailureInOneWorkerEndsTheStepForAllAndIsNamed) {
  kernels::KernelTable<Bf16> table = kernels::Bf16Kernels(kernels::Isa::kPortable);
  static bool broken;
  broken = false;
  table.router_top_k = [](const kernels::RouterTopKArgs& args) {
    kernels::Bf16Kernels(kernels::Isa::kPortable).router_top_k(args);
    if (broken) args.ids[1] = static_cast<std::int32_t>(args.num_experts);
  };
  Workers workers(table);
  ASSERT_TRUE(workers.Step().has_value());
  const std::vector<float> want = workers.LastLogits();

  broken = true;
  const Status failed = workers.Step();
  broken = false;
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(ErrorCodeName(failed.error().code), ErrorCodeName(ErrorCode::kInternal));
  for (const char* part : {"route_plan", "worker 0", "expert"}) {
    EXPECT_NE(failed.error().message.find(part), std::string::npos) << failed.error().message;
  }
  EXPECT_EQ(workers.Length(), 0);  // the sequence is lost

  // The counters have stayed in step: the next one runs as if nothing had happened.
  ASSERT_TRUE(workers.Step().has_value());
  EXPECT_EQ(workers.LastLogits(), want);
}

TEST(StepFailure, FirstOneWins) {
  testing::ExecutorSpec spec;
  spec.directory = std::string(MEGALITH_TEST_DATA) + "/golden/k3-unit";
  const auto programs = testing::MakePrograms(spec).value();
  StepFailure failure;
  EXPECT_TRUE(failure.Take(*programs.front()).has_value());
  failure.Set("the first", 0, 1, 2);
  failure.Set("the second", 0, 0, 0);
  const Status status = failure.Take(*programs.front());
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("the first"), std::string::npos);
  EXPECT_NE(status.error().message.find("visit 1"), std::string::npos) << status.error().message;
  EXPECT_TRUE(failure.Take(*programs.front()).has_value());
}

}  // namespace
}  // namespace megalith::exec::cpu
