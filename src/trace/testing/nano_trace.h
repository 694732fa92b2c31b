#pragma once

// Steps of k3-nano for tests: really run, or with times made up.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "exec/device_memory.h"
#include "exec/testing/executors.h"
#include "program/trace.h"
#include "trace/timeline.h"

namespace megalith::trace::testing {

/// Two workers, buckets of 1 and 8 rows.
inline exec::testing::ExecutorSpec NanoSpec() {
  exec::testing::ExecutorSpec spec;
  spec.directory = std::string(MEGALITH_SOURCE_DIR) + "/models/k3-nano";
  spec.num_workers = 2;
  spec.row_buckets = {1, 8};
  return spec;
}

/// One step of `count` rows for the sequence in slot 0.
inline void RunStep(exec::Executor& executor, std::int32_t first_position, std::int32_t count) {
  const exec::Run run{0, first_position, count};
  const std::vector<std::int32_t> tokens =
      exec::testing::RandomTokens(static_cast<std::size_t>(count), 4096, 7);
  const std::int32_t logit_row = 0;
  ASSERT_TRUE(executor.Step({{&run, 1}, tokens, {&logit_row, 1}}).has_value());
}

/// A step whose times follow from the Program alone: an instruction of worker w takes
/// work_ns[w], a signal takes kHandOverNs, requests take nothing. The host begins at 1000.
inline constexpr std::int64_t kHandOverNs = 10;
program::TraceStep SimulateStep(const program::Program& program,
                                const std::vector<std::int64_t>& work_ns);

}  // namespace megalith::trace::testing
