// Any bytes as a drafter's config.json: an error, or a drafter that fits its target and whose
// tensors can be listed.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config.h"
#include "model/drafter_tensors.h"
#include "model/dspark.h"

namespace model = megalith::model;

namespace {

const model::Model& Target() {
  static const model::Model target = [] {
    const auto config = model::ReadConfig(MEGALITH_TEST_DATA "/golden/k3-tiny");
    if (!config) std::abort();
    return config->model;
  }();
  return target;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const model::Model& target = Target();
  const auto config = model::ParseDrafterConfig(
      std::string_view(reinterpret_cast<const char*>(data), size), target, "fuzz");
  if (!config) {
    if (config.error().message.empty()) std::abort();
    return 0;
  }
  const model::Drafter& d = config->drafter;
  if (d.hidden_size != target.hidden_size || d.vocab_size != target.vocab_size) std::abort();
  if (d.num_attention_heads % d.num_key_value_heads != 0 || d.head_dim % 2 != 0) std::abort();
  if (d.MaxDrafts() < 1 || d.layers.empty() || d.aux_layers.empty()) std::abort();
  std::int64_t last = -1;
  for (const std::int64_t layer : d.aux_layers) {
    if (layer <= last || layer >= static_cast<std::int64_t>(target.layers.size())) std::abort();
    last = layer;
  }
  if (d.mask_token_id < 0 || d.mask_token_id >= d.vocab_size) std::abort();
  if (d.confidence_with_markov && d.markov_rank == 0) std::abort();
  const auto total = model::Total(model::CountTensors(model::MakeDrafterTensorRules(d), false));
  if (total.num_tensors == 0 || total.num_bytes == 0) std::abort();
  return 0;
}
