// Any bytes as config.json: an error, or a model whose tensors can be listed.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config.h"
#include "model/tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace model = megalith::model;
  const auto config =
      model::ParseConfig(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!config) {
    if (config.error().message.empty()) std::abort();
    return 0;
  }
  const model::Model& m = config->model;
  if (m.layers.empty() || m.hidden_size <= 0 || m.eos_token_ids.empty()) std::abort();
  if (m.moe.num_experts_per_token > m.moe.num_experts) std::abort();
  const auto total = model::Total(model::CountTensors(model::MakeTensorRules(m), true));
  if (total.num_tensors == 0 || total.num_bytes == 0) std::abort();
  return 0;
}
