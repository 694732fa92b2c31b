#include "synth/plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "model/config.h"
#include "model/drafter_tensors.h"
#include "model/dspark.h"
#include "model/tensors.h"
#include "synth/random_bits.h"

namespace megalith::synth {
namespace {

constexpr std::int64_t kMxfp4Group = 32;

struct NamedTensor {
  std::string name;  ///< as in the file
  DType dtype = DType::kBf16;
  std::vector<std::int64_t> shape;
  Distribution distribution;
};

std::uint64_t NumElements(const NamedTensor& tensor) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : tensor.shape) count *= static_cast<std::uint64_t>(extent);
  return count;
}

std::uint64_t NumBytes(const NamedTensor& tensor) {
  return NumElements(tensor) * static_cast<std::uint64_t>(DTypeBytes(tensor.dtype));
}

/// The tensors of one rule's tensor, as the published files name and store them.
void AppendTensors(const model::Model& model, const model::TensorRule& rule, std::string_view name,
                   std::vector<NamedTensor>* out) {
  std::string full(name.starts_with("lm_head") ? "language_model." : "language_model.model.");
  full += name;
  const Distribution distribution = DistributionOf(model, rule);
  if (rule.kind != model::TensorKind::kMatrix) {
    std::vector<std::int64_t> shape = rule.shape;
    if (rule.kind == model::TensorKind::kPerHead) shape = {rule.stored_length};
    out->push_back({std::move(full), rule.dtype, std::move(shape), distribution});
    return;
  }
  if (rule.part != model::Part::kExperts || !model.declares_mxfp4_experts) {
    out->push_back({full + ".weight", rule.dtype, rule.shape, distribution});
    return;
  }
  Distribution codes = distribution;
  codes.kind = Distribution::Kind::kMxfp4Codes;
  Distribution scales = distribution;
  scales.kind = Distribution::Kind::kMxfp4Scales;
  const std::int64_t rows = rule.shape[0];
  const std::int64_t columns = rule.shape[1];
  out->push_back({full + ".weight_packed", DType::kU8, {rows, columns / 2}, codes});
  out->push_back({full + ".weight_scale", DType::kU8, {rows, columns / kMxfp4Group}, scales});
}

void AppendNumber(std::uint64_t value, std::string* out) {
  char digits[24];
  out->append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

/// The header and offsets of a shard with these tensors, in this order.
PlannedShard MakeShard(const std::vector<NamedTensor>& tensors, std::uint64_t seed) {
  PlannedShard shard;
  std::string json = R"({"__metadata__":{"format":"pt"})";
  for (const NamedTensor& tensor : tensors) {
    json += ",\"";
    json += tensor.name;
    json += "\":{\"dtype\":\"";
    json += DTypeName(tensor.dtype);
    json += "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i > 0) json += ',';
      AppendNumber(static_cast<std::uint64_t>(tensor.shape[i]), &json);
    }
    json += "],\"data_offsets\":[";
    const std::uint64_t begin = shard.data_bytes;
    AppendNumber(begin, &json);
    shard.data_bytes += NumBytes(tensor);
    json += ',';
    AppendNumber(shard.data_bytes, &json);
    json += "]}";
    shard.tensors.push_back(
        {begin, shard.data_bytes,
         TensorFill(tensor.distribution, tensor.dtype, StreamKey(seed, tensor.name))});
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  const std::uint64_t length = json.size();
  for (int i = 0; i < 8; ++i) shard.header += static_cast<char>((length >> (8 * i)) & 0xffu);
  shard.header += json;
  return shard;
}

/// Tensors in file order, cut into shards.
class ShardCutter {
 public:
  ShardCutter(const PlanOptions& options, CheckpointPlan* plan) : options_(options), plan_(plan) {}

  /// One layer, or the tensors outside layers.
  void Add(std::vector<NamedTensor> group) {
    // Wide elements first, so that every tensor is aligned to its elements.
    std::stable_sort(group.begin(), group.end(), [](const NamedTensor& a, const NamedTensor& b) {
      return DTypeBytes(a.dtype) > DTypeBytes(b.dtype);
    });
    for (NamedTensor& tensor : group) {
      const std::uint64_t bytes = NumBytes(tensor);
      if (options_.shard_bytes > 0 && !pending_.empty() &&
          pending_bytes_ + bytes > options_.shard_bytes) {
        Cut();
      }
      plan_->num_tensors += 1;
      plan_->tensor_bytes += bytes;
      pending_bytes_ += bytes;
      pending_.push_back(std::move(tensor));
    }
    if (options_.shard_bytes == 0) Cut();
  }

  /// A single shard is called model.safetensors and has no index.
  void FinishAsOneFile() {
    Cut();
    if (plan_->shards.size() != 1) return Finish();
    PlannedShard& shard = plan_->shards.front();
    shard.file_name = "model.safetensors";
    plan_->file_bytes = shard.header.size() + shard.data_bytes;
  }

  void Finish() {
    Cut();
    std::string map;
    for (std::size_t i = 0; i < plan_->shards.size(); ++i) {
      PlannedShard& shard = plan_->shards[i];
      shard.file_name =
          fmt::format("model-{:05}-of-{:06}.safetensors", i + 1, plan_->shards.size());
      plan_->file_bytes += shard.header.size() + shard.data_bytes;
      for (const std::string& name : names_[i]) {
        map += map.empty() ? "\n    \"" : ",\n    \"";
        map += name;
        map += "\": \"";
        map += shard.file_name;
        map += '"';
      }
    }
    plan_->index_json = fmt::format(
        "{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n",
        plan_->tensor_bytes, map);
  }

 private:
  void Cut() {
    if (pending_.empty()) return;
    plan_->shards.push_back(MakeShard(pending_, options_.seed));
    std::vector<std::string>& names = names_.emplace_back();
    for (NamedTensor& tensor : pending_) names.push_back(std::move(tensor.name));
    pending_.clear();
    pending_bytes_ = 0;
  }

  PlanOptions options_;
  CheckpointPlan* plan_;
  std::vector<NamedTensor> pending_;
  std::uint64_t pending_bytes_ = 0;
  std::vector<std::vector<std::string>> names_;  ///< [shards], until the shards have names
};

}  // namespace

Result<CheckpointPlan> PlanCheckpoint(std::string_view config_json, const PlanOptions& options) {
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ParseConfig(config_json));
  const model::Model& model = config.model;
  const model::TensorRules rules = model::MakeTensorRules(model);
  CheckpointPlan plan;
  plan.config_json = config_json;
  plan.num_parameters =
      model::Total(model::CountTensors(rules, model.declares_mxfp4_experts)).num_parameters;

  ShardCutter cutter(options, &plan);
  std::vector<NamedTensor> model_level;
  std::vector<NamedTensor> layer_tensors;
  std::int64_t current = -1;
  model::ForEachTensor(rules, [&](const model::TensorRule& rule, std::int64_t layer, std::int64_t,
                                  std::string_view name) {
    if (layer != current && !layer_tensors.empty()) cutter.Add(std::exchange(layer_tensors, {}));
    current = layer;
    AppendTensors(model, rule, name, layer < 0 ? &model_level : &layer_tensors);
  });
  if (!layer_tensors.empty()) cutter.Add(std::move(layer_tensors));
  cutter.Add(std::move(model_level));
  cutter.Finish();
  return plan;
}

Result<CheckpointPlan> PlanDrafter(std::string_view config_json, const model::Model& target,
                                   const PlanOptions& options) {
  MEGALITH_ASSIGN_OR_RETURN(const model::DrafterConfig config,
                            model::ParseDrafterConfig(config_json, target));
  const model::Drafter& drafter = config.drafter;
  const model::TensorRules rules = model::MakeDrafterTensorRules(drafter);
  CheckpointPlan plan;
  plan.config_json = config_json;
  plan.num_parameters = model::Total(model::CountTensors(rules, false)).num_parameters;
  std::vector<NamedTensor> tensors;
  model::ForEachTensor(
      rules, [&](const model::TensorRule& rule, std::int64_t, std::int64_t, std::string_view name) {
        std::string full(name);
        if (rule.kind == model::TensorKind::kMatrix) full += ".weight";
        tensors.push_back({std::move(full), rule.dtype, rule.shape, DistributionOf(drafter, rule)});
      });
  ShardCutter cutter(options, &plan);
  cutter.Add(std::move(tensors));
  cutter.FinishAsOneFile();
  return plan;
}

}  // namespace megalith::synth
