#pragma once

// Names that a model of the family may have but this one does not. Private to this folder.

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "model/model.h"

namespace megalith::weights {

/// Tells a tensor that contradicts the config (of the family, but not of this model) from one that
/// nobody knows.
class FamilyNames {
 public:
  explicit FamilyNames(const model::Model& model);

  /// For a tensor that the model does not need. `name` is without prefix, with its ending:
  /// `layers.1.self_attn.g_proj.weight`. The config keys that make it unused, with their values, or
  /// nothing if no model of the family has such a tensor.
  std::optional<std::string> WhyUnused(std::string_view name) const;

 private:
  const model::Model& model_;
  std::map<std::string, std::string, std::less<>> templates_;  ///< full name -> rule name
};

}  // namespace megalith::weights
