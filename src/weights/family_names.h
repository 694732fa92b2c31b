#pragma once

// Names that a model of the family may have but this one does not. Private to this folder.

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "model/drafter.h"
#include "model/model.h"

namespace megalith::weights {

/// Full names with placeholders, as rules and their endings make them, to the rules' names.
using NameTemplates = std::map<std::string, std::string, std::less<>>;

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
  NameTemplates templates_;
};

/// The same for drafters.
class DrafterNames {
 public:
  explicit DrafterNames(const model::Drafter& drafter);

  /// `name` is as in the file: `markov_head.markov_w1.weight`.
  std::optional<std::string> WhyUnused(std::string_view name) const;

 private:
  const model::Drafter& drafter_;
  NameTemplates templates_;
};

}  // namespace megalith::weights
