#include "weights/shard_index.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "base/file.h"
#include "model/json_place.h"
#include "weights/quote.h"

namespace megalith::weights {
namespace {

namespace dom = simdjson::dom;

bool IsPlainShardName(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (name.size() <= kSuffix.size() || name.substr(name.size() - kSuffix.size()) != kSuffix) {
    return false;
  }
  // With the suffix required, neither "." nor ".." can get here; separators still could.
  return name.front() != '.' && name.size() <= 255 &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return static_cast<unsigned char>(c) >= 0x20 && c != '/' && c != '\\';
         });
}

struct Numbered {
  std::string_view stem;
  std::int64_t number = 0;
  std::int64_t count = 0;
};

/// STEM-00003-of-00004.safetensors
std::optional<Numbered> ParseNumbered(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  constexpr std::string_view kOf = "-of-";
  name.remove_suffix(kSuffix.size());
  const std::size_t of = name.rfind(kOf);
  if (of == std::string_view::npos || of == 0) return std::nullopt;
  const std::size_t dash = name.rfind('-', of - 1);
  if (dash == std::string_view::npos) return std::nullopt;
  Numbered numbered;
  numbered.stem = name.substr(0, dash);
  const auto parse = [](std::string_view digits, std::int64_t* value) {
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
    return result.ec == std::errc() && result.ptr == digits.data() + digits.size();
  };
  if (!parse(name.substr(dash + 1, of - dash - 1), &numbered.number) ||
      !parse(name.substr(of + kOf.size()), &numbered.count)) {
    return std::nullopt;
  }
  return numbered;
}

/// "gaps in model-*-of-4: 3" for every numbered sequence of which files are absent.
std::string GapText(const std::string& directory, const ShardIndex& index) {
  constexpr std::int64_t kMaxSequence = 100'000;
  std::map<std::pair<std::string_view, std::int64_t>, std::vector<bool>> present;
  for (const std::string& name : index.shard_names) {
    const auto numbered = ParseNumbered(name);
    if (!numbered || numbered->count < 1 || numbered->count > kMaxSequence ||
        numbered->number < 1 || numbered->number > numbered->count) {
      continue;
    }
    auto& sequence = present[{numbered->stem, numbered->count}];
    sequence.resize(static_cast<std::size_t>(numbered->count), false);
    sequence[static_cast<std::size_t>(numbered->number - 1)] =
        !IsAbsent((std::filesystem::path(directory) / name).string());
  }
  std::string text;
  for (const auto& [key, sequence] : present) {
    std::string numbers;
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      if (!sequence[i]) numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", i + 1);
    }
    if (!numbers.empty()) {
      text += fmt::format("; gaps in {} 1..{}: {}", Quote(key.first), key.second, numbers);
    }
  }
  return text;
}

}  // namespace

Result<ShardIndex> ParseShardIndex(std::string json, std::string_view source) {
  json.reserve(json.size() + simdjson::SIMDJSON_PADDING);
  const auto parser = std::make_shared<dom::parser>();  // owns the strings of the document
  dom::element document;
  if (const auto error = parser->parse(json.data(), json.size(), false).get(document)) {
    return Fail(ErrorCode::kBadFile, "{}: not valid JSON{}: {}", source,
                model::JsonErrorPlace(json), simdjson::error_message(error));
  }
  dom::object root;
  if (document.get(root) != simdjson::SUCCESS) {
    return Fail(ErrorCode::kBadFile, "{}: a JSON object expected", source);
  }
  ShardIndex index;
  std::optional<dom::object> weight_map;
  for (const dom::key_value_pair field : root) {
    if (field.key == "weight_map") {
      dom::object object;
      if (weight_map || field.value.get(object) != simdjson::SUCCESS) {
        return Fail(ErrorCode::kBadFile, "{}: one weight_map expected, an object", source);
      }
      weight_map = object;
    } else if (field.key == "metadata") {
      std::uint64_t total_size = 0;
      if (field.value.at_key("total_size").get(total_size) == simdjson::SUCCESS) {
        index.total_size = total_size;
      }
    }
  }
  if (!weight_map) return Fail(ErrorCode::kBadFile, "{}: weight_map is missing", source);

  std::unordered_map<std::string_view, std::uint32_t> shard_ids;
  for (const dom::key_value_pair field : *weight_map) {
    std::string_view shard;
    if (field.value.get(shard) != simdjson::SUCCESS || !IsPlainShardName(shard)) {
      return Fail(ErrorCode::kBadFile,
                  "{}: tensor {}: the name of a .safetensors file in the same directory expected{}",
                  source, Quote(field.key),
                  shard.empty() ? std::string() : fmt::format(", '{}' found", Quote(shard)));
    }
    shard_ids.try_emplace(shard, 0);
  }
  for (const auto& [name, id] : shard_ids) index.shard_names.emplace_back(name);
  std::sort(index.shard_names.begin(), index.shard_names.end());
  for (std::size_t i = 0; i < index.shard_names.size(); ++i) {
    shard_ids[index.shard_names[i]] = static_cast<std::uint32_t>(i);
  }

  index.owner = parser;
  index.weight_map.reserve(weight_map->size());
  for (const dom::key_value_pair field : *weight_map) {
    const std::string_view shard = field.value.get_string().value_unsafe();
    index.weight_map.emplace_back(field.key, shard_ids.find(shard)->second);
  }
  return index;
}

Status CheckShardsExist(const std::string& directory, const ShardIndex& index) {
  std::string missing;
  std::size_t num_missing = 0;
  for (const std::string& name : index.shard_names) {
    if (!IsAbsent((std::filesystem::path(directory) / name).string())) continue;
    missing += fmt::format("{}{}", num_missing == 0 ? "" : " ", name);
    ++num_missing;
  }
  if (num_missing == 0) return {};
  return Fail(ErrorCode::kNotFound,
              "{}: {} of the {} shards that model.safetensors.index.json names are missing: {}{}. "
              "Fetch only these files, for example: hf download REPOSITORY {} --local-dir {}",
              directory, num_missing, index.shard_names.size(), missing, GapText(directory, index),
              missing, directory);
}

}  // namespace megalith::weights
