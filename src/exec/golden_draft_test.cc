// The drafter against an independent implementation, in fp32: its input from the target, its
// context, every layer's keys, the block's hidden rows, logits, tokens and confidences.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/npy.h"
#include "exec/device_memory.h"
#include "exec/testing/golden.h"

namespace megalith::exec::testing {
namespace {

constexpr char kTarget[] = MEGALITH_TEST_DATA "/golden/k3-tiny";
constexpr char kDrafter[] = MEGALITH_TEST_DATA "/golden/k3-tiny-dspark";
constexpr double kLimit = 2e-4;  // tests/data/golden/README.md
constexpr std::int32_t kNumDrafts = 8;
constexpr std::int32_t kRowsPerStep = 64;

struct DraftCase {
  std::string tag;
  std::vector<std::int32_t> prompt;
  std::int32_t anchor;
  std::vector<std::int32_t> drafts;
  std::vector<double> margins;

  std::string Path(const std::string& what) const {
    return std::string(kDrafter) + "/golden/" + tag + "_" + what + ".npy";
  }
};

std::vector<DraftCase> LoadCases() {
  const auto prompts = LoadGoldenCases(kTarget).value();
  const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(std::string(kDrafter) + "/golden/cases.json"));
  std::vector<DraftCase> cases;
  for (const nlohmann::json& item : json["cases"]) {
    DraftCase draft{item["tag"], {}, item["anchor_token"], item["draft_tokens"], item["margins"]};
    for (const GoldenCase& prompt : prompts) {
      if (prompt.tag == draft.tag) draft.prompt = prompt.prompt;
    }
    cases.push_back(std::move(draft));
  }
  return cases;
}

/// What the drafter has made of a prompt.
struct Drafted {
  std::int32_t anchor;
  std::vector<std::int32_t> drafts;
  std::vector<float> confidence;
  std::int32_t last_rows;  ///< of the prompt, in its last step
};

Drafted Draft(Executor& executor, const DraftCase& draft) {
  const auto length = static_cast<std::int32_t>(draft.prompt.size());
  for (std::int32_t done = 0;; done += kRowsPerStep) {
    Run run{0, done, std::min(kRowsPerStep, length - done)};
    const bool is_last = done + run.count == length;
    run.wants_token = is_last;
    run.next_drafts = is_last ? kNumDrafts : 0;
    const std::span<const std::int32_t> tokens =
        std::span(draft.prompt)
            .subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(run.count));
    const auto step = executor.Step({{&run, 1}, tokens, {}});
    if (!step) {
      ADD_FAILURE() << step.error().message;
      return {};
    }
    if (!is_last) continue;
    const RunOutput& output = step->runs().front();
    return {output.tokens[0],
            {output.drafts.begin(), output.drafts.end()},
            {output.confidence.begin(), output.confidence.end()},
            run.count};
  }
}

/// Two files or buffers of the same numbers, the golden one's last rows if it has more.
void ExpectNear(const DraftCase& draft, const std::string& file, LogitRows have) {
  LogitRows want = LoadRows(draft.Path(file)).value();
  ASSERT_GE(want.size(), have.size()) << draft.tag << " " << file;
  want.erase(want.begin(), want.end() - static_cast<std::ptrdiff_t>(have.size()));
  const Distance distance = Compare(want, have);
  EXPECT_LT(distance.max_abs, kLimit) << draft.tag << " " << file;
}

class GoldenDraft : public ::testing::TestWithParam<bool> {};

TEST_P(GoldenDraft, EveryStageMatches) {
  ExecutorSpec spec;
  spec.directory = kTarget;
  spec.drafter = kDrafter;
  spec.reference = GetParam();
  spec.activation_dtype = DType::kF32;
  spec.num_workers = 3;
  spec.row_buckets = {kRowsPerStep};
  spec.max_drafts = 7;
  spec.draft_runs = 1;
  spec.num_drafts = kNumDrafts;
  const auto executor = MakeExecutor(spec).value();
  for (const DraftCase& draft : LoadCases()) {
    const Drafted drafted = Draft(*executor, draft);
    EXPECT_EQ(drafted.anchor, draft.anchor) << draft.tag;
    const ProgramMemory& memory = executor->memory().program_memory(0);
    ExpectNear(draft, "aux", ReadBuffer(memory, "draft_captured", drafted.last_rows));
    ExpectNear(draft, "context", ReadBuffer(memory, "draft_context", drafted.last_rows));
    ExpectNear(draft, "hidden", ReadBuffer(memory, "draft_hidden", kNumDrafts));
    ExpectNear(draft, "base_logits", ReadBuffer(memory, "draft_base_logits", kNumDrafts));
    ASSERT_EQ(drafted.drafts.size(), draft.drafts.size());
    for (std::size_t i = 0; i < draft.drafts.size(); ++i) {
      ASSERT_GT(draft.margins[i], 10 * kLimit) << "the golden margin is too small to judge";
      EXPECT_EQ(drafted.drafts[i], draft.drafts[i]) << draft.tag << " draft " << i;
    }
    const LogitRows confidence = LoadRows(draft.Path("confidence_logits")).value();
    for (std::size_t i = 0; i < drafted.confidence.size(); ++i) {
      const float want = confidence.size() == 1 ? confidence[0][i] : confidence[i][0];
      EXPECT_NEAR(drafted.confidence[i], want, kLimit) << draft.tag << " confidence " << i;
    }
    ASSERT_TRUE(executor->ReleaseSlot(0));
  }
}

INSTANTIATE_TEST_SUITE_P(Executors, GoldenDraft, ::testing::Bool(), [](const auto& executor) {
  return std::string(executor.param ? "Reference" : "Engine");
});

}  // namespace
}  // namespace megalith::exec::testing
