#include "program/compile/rank_layout.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/align.h"
#include "kernels/layout.h"

namespace megalith::program {
namespace {

/// Something that is shared out whole.
struct Shared {
  std::string what;
  std::int64_t count;
};

std::int64_t Panels(std::int64_t outputs) {
  return CeilDiv<std::int64_t>(outputs, kernels::kPanelOutputs);
}

/// Shared out over all ranks.
std::vector<Shared> OverRanks(const model::Model& model) {
  std::vector<Shared> shared;
  if (model.CountLayers(model::Mixer::kKda) > 0) {
    shared.push_back({"heads of KDA layers", model.kda.num_heads});
  }
  if (model.CountLayers(model::Mixer::kMla) > 0) {
    shared.push_back({"heads of MLA layers", model.mla.num_attention_heads});
  }
  shared.push_back({"panels of 16 of the hidden size", Panels(model.hidden_size)});
  shared.push_back({"panels of 16 of the vocabulary", Panels(model.vocab_size)});
  return shared;
}

std::int64_t MostOf(const std::vector<Shared>& shared) {
  std::int64_t most = INT32_MAX;
  for (const Shared& item : shared) most = std::min(most, item.count);
  return most;
}

/// Shared out over the ranks of a group.
std::vector<Shared> OverTensorParallel(const model::Model& model) {
  if (model.CountLayers(model::FeedForward::kMoe) == 0) return {};
  return {{"panels of 16 of an expert's width", Panels(model.moe.moe_intermediate_size)},
          {"panels of 16 of the experts' input", Panels(model.ExpertWidth())}};
}

std::int64_t MostGroups(const model::Model& model) {
  return model.CountLayers(model::FeedForward::kMoe) == 0 ? 1 : model.moe.num_experts;
}

}  // namespace

Status CheckRankLayout(const model::Model& model, const RankLayout& layout) {
  if (layout.tensor_parallel < 1 || layout.expert_parallel < 1 ||
      layout.tensor_parallel > INT32_MAX / layout.expert_parallel) {
    return Fail(ErrorCode::kUsage,
                "ranks: tensor parallel {} x expert parallel {}, both at least 1",
                layout.tensor_parallel, layout.expert_parallel);
  }
  const std::int32_t num_ranks = layout.NumRanks();
  const std::vector<Shared> over_ranks = OverRanks(model);
  const std::vector<Shared> over_group = OverTensorParallel(model);
  const std::int64_t groups = MostGroups(model);
  std::string problems;
  const auto add = [&problems](const std::string& problem) {
    problems += (problems.empty() ? "" : "; ") + problem;
  };
  for (const Shared& item : over_ranks) {
    if (num_ranks > item.count) {
      add(fmt::format("{} {} for {} ranks", item.count, item.what, num_ranks));
    }
  }
  for (const Shared& item : over_group) {
    if (layout.tensor_parallel > item.count) {
      add(fmt::format("{} {} for tensor parallel {}", item.count, item.what,
                      layout.tensor_parallel));
    }
  }
  if (layout.expert_parallel > groups) {
    add(fmt::format("{} experts for expert parallel {}",
                    model.CountLayers(model::FeedForward::kMoe) == 0 ? 0 : groups,
                    layout.expert_parallel));
  }
  if (problems.empty()) return {};
  return Fail(ErrorCode::kUsage,
              "tensor parallel {} x expert parallel {} does not divide this model: {}. Possible: 1 "
              "to {} ranks in all, of them tensor parallel up to {}, expert parallel up to {}",
              layout.tensor_parallel, layout.expert_parallel, problems, MostRanks(model),
              std::min(MostOf(over_ranks), MostOf(over_group)),
              std::min(MostOf(over_ranks), groups));
}

std::int32_t MostRanks(const model::Model& model) {
  // With expert parallelism as well: the rest is divided over groups.
  return static_cast<std::int32_t>(
      std::min(MostOf(OverRanks(model)), MostOf(OverTensorParallel(model)) * MostGroups(model)));
}

}  // namespace megalith::program
