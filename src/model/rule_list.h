#pragma once

// Building lists of tensor rules. Private to this folder.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/tensors.h"

namespace megalith::model {

/// Appends rules of one layer, or of the model, under a common name prefix.
class RuleList {
 public:
  explicit RuleList(std::string prefix) : prefix_(std::move(prefix)) {}

  void Matrix(std::string_view name, std::int64_t rows, std::int64_t columns, Part part,
              std::int64_t num_experts = 0) {
    Add(name, TensorKind::kMatrix, DType::kBf16, {rows, columns}, part).num_experts = num_experts;
  }
  void Plain(std::string_view name, DType dtype, std::vector<std::int64_t> shape, Part part) {
    Add(name, TensorKind::kPlain, dtype, std::move(shape), part);
  }
  void ConvTaps(std::string_view name, std::int64_t channels, std::int64_t width, Part part) {
    Add(name, TensorKind::kConvTaps, DType::kF32, {channels, 1, width}, part);
  }
  void PerHead(std::string_view name, std::int64_t num_heads, std::int64_t stored, Part part) {
    Add(name, TensorKind::kPerHead, DType::kF32, {num_heads}, part).stored_length = stored;
  }

  std::vector<TensorRule> Take() { return std::move(rules_); }

 private:
  TensorRule& Add(std::string_view name, TensorKind kind, DType dtype,
                  std::vector<std::int64_t> shape, Part part) {
    TensorRule rule;
    rule.name = prefix_;
    rule.name += name;
    rule.kind = kind;
    rule.dtype = dtype;
    rule.shape = std::move(shape);
    rule.part = part;
    return rules_.emplace_back(std::move(rule));
  }

  std::string prefix_;
  std::vector<TensorRule> rules_;
};

}  // namespace megalith::model
