#include "engine/rank_message.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstring>
#include <type_traits>
#include <vector>

namespace megalith::engine {
namespace {

/// Names each field once, for both directions. Callbacks and what only rank 0 knows are left out.
template <typename Options, typename Visit>
void VisitEngineOptions(Options& options, Visit&& visit) {
  visit("executor", options.executor);
  visit("workers", options.num_workers);
  visit("isa", options.isa);
  visit("dense", options.dense);
  visit("activations", options.activation_dtype);
  visit("sequences", options.num_sequences);
  visit("positions", options.max_positions);
  visit("cache positions", options.cache_positions);
  visit("prefix cache bytes", options.prefix_cache_bytes);
  visit("rows per step", options.rows_per_step);
  visit("logit rows per step", options.logit_rows_per_step);
  visit("drafter", options.drafter);
  visit("drafts", options.max_drafts);
  visit("huge pages", options.huge_pages);
  visit("packed cache", options.packed_cache);
  visit("packed cache use", options.packed_cache_use);
  visit("lora norm eps", options.lora_norm_uses_rms_eps);
  visit("fast prefill", options.fast_prefill);
  visit("tensor parallel", options.tensor_parallel);
  visit("expert parallel", options.expert_parallel);
}

template <typename Options, typename Visit>
void VisitVariantOptions(Options& options, Visit&& visit) {
  visit("row buckets", options.row_buckets);
  visit("logit rows", options.logit_rows);
  visit("sequences", options.num_sequences);
  visit("positions", options.max_positions);
  visit("isa", options.isa);
  visit("barriers", options.barrier_after_each_op);
  visit("prefetch", options.prefetch);
  visit("fast prefill", options.fast_prefill);
}

template <typename T>
requires std::is_integral_v<T> || std::is_enum_v<T> std::string ToText(T value) {
  return fmt::format("{}", static_cast<std::int64_t>(value));
}
std::string ToText(const std::string& value) { return value; }
std::string ToText(const program::DenseFormats& value) { return program::DenseFormatsText(value); }
std::string ToText(const std::optional<kernels::Isa>& value) {
  return value ? ToText(*value) : "none";
}
std::string ToText(const std::vector<std::int32_t>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

template <typename T>
requires std::is_integral_v<T> || std::is_enum_v<T>
bool FromText(std::string_view text, T* value) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  *value = static_cast<T>(number);
  return error == std::errc() && rest == text.data() + text.size();
}
bool FromText(std::string_view text, std::string* value) {
  *value = text;
  return true;
}
bool FromText(std::string_view text, program::DenseFormats* value) {
  auto formats = program::ParseDenseFormats(text);
  if (formats) *value = *formats;
  return formats.has_value();
}
bool FromText(std::string_view text, std::optional<kernels::Isa>* value) {
  value->reset();
  return text == "none" || FromText(text, &value->emplace());
}
bool FromText(std::string_view text, std::vector<std::int32_t>* values) {
  values->clear();
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    if (!FromText(text.substr(0, end), &values->emplace_back())) return false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

/// Takes the values in the order in which they were written.
class ItemReader {
 public:
  explicit ItemReader(const fabric::Items& items) : items_(items) {}

  template <typename T>
  void operator()(const char* name, T& value) {
    if (!status_) return;
    if (next_ < items_.size() && items_[next_].first == name &&
        FromText(items_[next_].second, &value)) {
      ++next_;
      return;
    }
    status_ =
        Fail(ErrorCode::kInternal, "options of rank 0: item {}: '{}' expected, '{}' found", next_,
             name, next_ < items_.size() ? items_[next_].first + "=" + items_[next_].second : "");
  }

  Status Finish() {
    if (status_ && next_ != items_.size()) {
      return Fail(ErrorCode::kInternal, "options of rank 0: {} expected, {} found", next_,
                  items_.size());
    }
    return status_;
  }

 private:
  const fabric::Items& items_;
  std::size_t next_ = 0;
  Status status_;
};

}  // namespace

void AppendControl(const RankControl& control, fabric::Bytes* bytes) {
  const std::uint32_t values[] = {static_cast<std::uint32_t>(control.kind), control.target,
                                  control.engine};
  const auto raw = std::as_bytes(std::span(values));
  bytes->insert(bytes->end(), raw.begin(), raw.end());
}

Result<RankControl> ParseControl(std::span<const std::byte> bytes) {
  std::uint32_t values[3] = {};
  if (bytes.size() != sizeof values) {
    return Fail(ErrorCode::kInternal, "a message of rank 0 has {} bytes, {} expected", bytes.size(),
                sizeof values);
  }
  std::memcpy(values, bytes.data(), sizeof values);
  if (values[0] > static_cast<std::uint32_t>(RankControl::Kind::kVariant)) {
    return Fail(ErrorCode::kInternal, "rank 0 asks for {}, which does not exist", values[0]);
  }
  return RankControl{static_cast<RankControl::Kind>(values[0]), values[1], values[2]};
}

fabric::Items LoadItems(const std::string& directory, const EngineOptions& options) {
  fabric::Items items = {{"directory", directory}};
  VisitEngineOptions(options, [&items](const char* name, const auto& value) {
    items.emplace_back(name, ToText(value));
  });
  return items;
}

Status ParseLoadItems(const fabric::Items& items, std::string* directory, EngineOptions* options) {
  ItemReader reader(items);
  reader("directory", *directory);
  VisitEngineOptions(*options, reader);
  return reader.Finish();
}

fabric::Items VariantItems(const VariantOptions& options) {
  fabric::Items items;
  VisitVariantOptions(options, [&items](const char* name, const auto& value) {
    items.emplace_back(name, ToText(value));
  });
  return items;
}

Status ParseVariantItems(const fabric::Items& items, VariantOptions* options) {
  ItemReader reader(items);
  VisitVariantOptions(*options, reader);
  return reader.Finish();
}

}  // namespace megalith::engine
