#include "tools/fake_checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "model/config.h"
#include "model/tensors.h"

namespace megalith::tools {
namespace {

std::uint64_t ByteCount(const FakeTensor& tensor) {
  auto bytes = static_cast<std::uint64_t>(DTypeBytes(tensor.dtype));
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::uint64_t>(extent);
  return bytes;
}

void AppendNumber(std::uint64_t value, std::string* out) {
  char digits[24];
  out->append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

std::string ShardName(std::uint32_t shard, std::uint32_t num_shards) {
  return fmt::format("model-{:05}-of-{:06}.safetensors", shard + 1, num_shards);
}

Status WriteAll(int descriptor, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0) return Fail(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

/// `text`, then a hole up to `file_bytes`.
Status WriteSparse(const std::string& path, std::string_view text, std::uint64_t file_bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return Fail(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  Status status = WriteAll(descriptor, text, path);
  if (status && ::ftruncate(descriptor, static_cast<off_t>(file_bytes)) != 0) {
    status = Fail(ErrorCode::kIo, "{}: {} bytes: {}", path, file_bytes, std::strerror(errno));
  }
  ::close(descriptor);
  return status;
}

class TensorLister {
 public:
  TensorLister(const FakeLayout& layout, std::vector<FakeTensor>* out)
      : layout_(layout), out_(out) {}

  void Add(const model::TensorRule& rule, std::uint32_t shard, std::string_view name) {
    using model::TensorKind;
    const bool head = name.starts_with("lm_head");
    std::string full = layout_.nested_names ? (head ? "language_model." : "language_model.model.")
                                            : (head ? "" : "model.");
    full += name;
    const auto& shape = rule.shape;
    if (rule.kind == TensorKind::kMatrix) {
      if (rule.part == model::Part::kExperts && layout_.mxfp4_experts) {
        out_->push_back({full + ".weight_packed", DType::kU8, {shape[0], shape[1] / 2}, shard});
        out_->push_back({full + ".weight_scale", DType::kU8, {shape[0], shape[1] / 32}, shard});
      } else {
        out_->push_back({full + ".weight", DType::kBf16, shape, shard});
      }
    } else if (rule.kind == TensorKind::kConvTaps && layout_.conv_rank_2) {
      out_->push_back({full, rule.dtype, {shape[0], shape[2]}, shard});
    } else if (rule.kind == TensorKind::kPerHead) {
      out_->push_back({full, rule.dtype, {rule.stored_length}, shard});
    } else {
      out_->push_back({full, rule.dtype, shape, shard});
    }
  }

 private:
  FakeLayout layout_;
  std::vector<FakeTensor>* out_;
};

}  // namespace

std::vector<FakeTensor> ListFakeTensors(const model::Model& model, const FakeLayout& layout) {
  const model::TensorRules rules = model::MakeTensorRules(model);
  std::vector<FakeTensor> tensors;
  TensorLister lister(layout, &tensors);
  const auto num_layers = static_cast<std::uint32_t>(model.layers.size());
  model::ForEachTensor(rules, [&](const model::TensorRule& rule, std::int64_t layer, std::int64_t,
                                  std::string_view name) {
    lister.Add(rule, layer < 0 ? num_layers : static_cast<std::uint32_t>(layer), name);
  });
  return tensors;
}

std::vector<FakeTensor> ListFakeVisionTensors(std::string_view config_json,
                                              std::uint32_t first_shard) {
  const nlohmann::json root = nlohmann::json::parse(config_json, nullptr, false);
  std::vector<FakeTensor> tensors;
  if (!root.is_object() || !root.contains("vision_config")) return tensors;
  const nlohmann::json& vision = root["vision_config"];
  std::vector<std::int64_t> values;
  for (const char* key : {"vt_hidden_size", "vt_num_hidden_layers", "vt_intermediate_size",
                          "qkv_hidden_size", "patch_size", "text_hidden_size"}) {
    if (!vision.contains(key) || !vision[key].is_number_integer()) return tensors;
    values.push_back(vision[key].get<std::int64_t>());
  }
  if (!vision.contains("merge_kernel_size")) return tensors;
  const std::int64_t hidden = values[0];
  const std::int64_t intermediate = values[2];
  const std::int64_t qkv = values[3];
  const std::int64_t merged = hidden * vision["merge_kernel_size"][0].get<std::int64_t>() *
                              vision["merge_kernel_size"][1].get<std::int64_t>();
  const auto add = [&](std::uint32_t shard, std::string name, std::vector<std::int64_t> shape) {
    tensors.push_back({std::move(name), DType::kBf16, std::move(shape), shard});
  };
  add(first_shard, "mm_projector.proj.0.weight", {merged, merged});
  add(first_shard, "mm_projector.proj.2.weight", {values[5], merged});
  add(first_shard, "mm_projector.post_norm.weight", {values[5]});
  const std::uint32_t tower = first_shard + 1;
  add(tower, "vision_tower.patch_embed.proj.weight", {hidden, 3, values[4], values[4]});
  add(tower, "vision_tower.patch_embed.pos_emb.weight", {64, 64, hidden});
  for (std::int64_t l = 0; l < values[1]; ++l) {
    const std::string block = fmt::format("vision_tower.encoder.blocks.{}.", l);
    add(tower, block + "norm0.weight", {hidden});
    add(tower, block + "norm1.weight", {hidden});
    add(tower, block + "wqkv.weight", {3 * qkv, hidden});
    add(tower, block + "wo.weight", {hidden, qkv});
    add(tower, block + "mlp.fc0.weight", {intermediate, hidden});
    add(tower, block + "mlp.fc1.weight", {hidden, intermediate});
  }
  add(tower, "vision_tower.encoder.final_layernorm.weight", {hidden});
  return tensors;
}

Status WriteFakeCheckpoint(const std::string& directory, std::string_view config_json,
                           const std::vector<FakeTensor>& tensors) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Fail(ErrorCode::kIo, "{}: {}", directory, error.message());
  const std::filesystem::path root(directory);
  MEGALITH_RETURN_IF_ERROR(
      WriteSparse((root / "config.json").string(), config_json, config_json.size()));

  std::uint32_t num_shards = 0;
  for (const FakeTensor& tensor : tensors) num_shards = std::max(num_shards, tensor.shard + 1);
  std::vector<std::string> headers(num_shards, R"({"__metadata__":{"format":"pt"})");
  std::vector<std::uint64_t> offsets(num_shards, 0);
  std::string map;
  std::uint64_t total = 0;
  for (const FakeTensor& tensor : tensors) {
    std::string& header = headers[tensor.shard];
    header += ",\"";
    header += tensor.name;
    header += "\":{\"dtype\":\"";
    header += DTypeName(tensor.dtype);
    header += "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i > 0) header += ',';
      AppendNumber(static_cast<std::uint64_t>(tensor.shape[i]), &header);
    }
    header += "],\"data_offsets\":[";
    AppendNumber(offsets[tensor.shard], &header);
    const std::uint64_t bytes = ByteCount(tensor);
    offsets[tensor.shard] += bytes;
    total += bytes;
    header += ',';
    AppendNumber(offsets[tensor.shard], &header);
    header += "]}";

    map += map.empty() ? "\"" : ",\n\"";
    map += tensor.name;
    map += "\":\"";
    map += ShardName(tensor.shard, num_shards);
    map += '"';
  }
  for (std::uint32_t shard = 0; shard < num_shards; ++shard) {
    std::string& header = headers[shard];
    header += '}';
    header.append((8 - header.size() % 8) % 8, ' ');
    const std::uint64_t header_bytes = header.size();
    header.insert(0, reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
    MEGALITH_RETURN_IF_ERROR(WriteSparse((root / ShardName(shard, num_shards)).string(), header,
                                         header.size() + offsets[shard]));
    std::string().swap(header);
  }
  const std::string index =
      fmt::format("{{\"metadata\":{{\"total_size\":{}}},\"weight_map\":{{{}}}}}\n", total, map);
  return WriteSparse((root / "model.safetensors.index.json").string(), index, index.size());
}

Status MakeFakeCheckpoint(const std::string& directory, std::string_view config_json) {
  MEGALITH_ASSIGN_OR_RETURN(const model::Config config, model::ParseConfig(config_json));
  FakeLayout layout;
  layout.mxfp4_experts = config.model.declares_mxfp4_experts;
  std::vector<FakeTensor> tensors = ListFakeTensors(config.model, layout);
  const auto first_vision_shard = static_cast<std::uint32_t>(config.model.layers.size()) + 1;
  for (FakeTensor& tensor : ListFakeVisionTensors(config_json, first_vision_shard)) {
    tensors.push_back(std::move(tensor));
  }
  return WriteFakeCheckpoint(directory, config_json, tensors);
}

}  // namespace megalith::tools
