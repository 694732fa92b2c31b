#pragma once

// What the readers of this folder have in common: limits of sizes, keys that mean nothing for
// inference, keys with one legal value. Private to this folder.

#include <cstdint>
#include <limits>
#include <string_view>

#include "model/json_reader.h"
#include "model/tensors.h"

namespace megalith::model {

// Limits far above any model, low enough that no product of those that the tensor shapes multiply
// (heads x head width x hidden, shared x width x hidden) leaves 63 bits.
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxHeads = std::int64_t{1} << 14;
inline constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 14;
inline constexpr std::int64_t kMaxLayers = std::int64_t{1} << 12;
inline constexpr std::int64_t kMaxPositions = std::numeric_limits<std::int32_t>::max();

/// Marks as known what tells how a file was made and trained, and the generation defaults that the
/// publisher's library writes into every config. Sampling is never read from a config.
void IgnoreInertKeys(JsonReader* reader);

/// An optional key that has one legal value; kUnsupported otherwise.
void ExpectString(JsonReader* reader, std::string_view key, std::string_view expected);
void ExpectBool(JsonReader* reader, std::string_view key, bool expected);
/// The same of a required key.
void RequireString(JsonReader* reader, std::string_view key, std::string_view expected);
void RequireBool(JsonReader* reader, std::string_view key, bool expected);

/// An optional key that must be null when it is there; `reason` says why in the message.
void ExpectNull(JsonReader* reader, std::string_view key, std::string_view reason);

/// A required number in (0, 1).
float ReadEpsilon(JsonReader* reader, std::string_view key);

/// Keys that both levels of a nested config may hold. They must not contradict each other.
template <typename T, typename Get>
T ReadAtEitherLevel(JsonReader* text, JsonReader* outer, std::string_view key, Get get) {
  if (outer == nullptr || !outer->Has(key)) return get(text);
  const T value = get(outer);
  if (text->Has(key) && get(text) != value) {
    text->FailAt(ErrorCode::kBadConfig, key, "differs from the outer config's");
  }
  return value;
}

/// Refuses sizes that multiply to more tensors or bytes than any machine holds, under
/// num_hidden_layers.
void CheckTotals(JsonReader* reader, const TensorRules& rules);

}  // namespace megalith::model
