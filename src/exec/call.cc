#include "exec/call.h"

#include <array>
#include <cstring>
#include <type_traits>

namespace megalith::exec {
namespace {

constexpr auto kNumErrorCodes = static_cast<std::uint8_t>(ErrorCode::kInternal) + 1;

template <typename T>
void Append(const T& value, std::vector<std::byte>* bytes) {
  static_assert(std::is_arithmetic_v<T>);
  const auto* raw = reinterpret_cast<const std::byte*>(&value);
  bytes->insert(bytes->end(), raw, raw + sizeof value);
}

/// The number, then the values.
template <typename T>
void AppendAll(std::span<const T> values, std::vector<std::byte>* bytes) {
  Append(static_cast<std::uint32_t>(values.size()), bytes);
  const auto raw = std::as_bytes(values);
  bytes->insert(bytes->end(), raw.begin(), raw.end());
}

// Sent as they lie in memory: must have no gaps.
static_assert(sizeof(kernels::LogitChange) == 12);

void AppendRun(const Run& run, std::vector<std::byte>* bytes) {
  for (const std::int32_t value :
       {run.slot, run.first_position, run.count, run.num_drafts, run.next_drafts}) {
    Append(value, bytes);
  }
  Append(static_cast<std::uint8_t>(run.wants_token ? 1 : 0), bytes);
  Append(run.sampling.temperature, bytes);
  Append(run.sampling.top_p, bytes);
  Append(run.sampling.top_k, bytes);
  Append(run.sampling.min_p, bytes);
  Append(run.sampling.seed, bytes);
  Append(static_cast<std::uint32_t>(run.adjustments.size()), bytes);
  for (const kernels::LogitAdjustment& adjustment : run.adjustments) {
    AppendAll(adjustment.changes, bytes);
    AppendAll(adjustment.allowed, bytes);
  }
}

}  // namespace

std::string_view CallKindName(CallKind kind) {
  constexpr std::array<std::string_view, 7> kNames = {
      "step", "truncate", "release slot", "save", "restore", "new snapshot", "the end"};
  return kNames[static_cast<std::size_t>(kind)];
}

void AppendCall(const Call& call, std::vector<std::byte>* bytes) {
  Append(static_cast<std::uint8_t>(call.kind), bytes);
  Append(call.last_outcome, bytes);
  AppendAll(call.destroyed, bytes);
  if (call.kind != CallKind::kStep) {
    Append(call.slot, bytes);
    Append(call.length, bytes);
    Append(call.snapshot, bytes);
    return;
  }
  Append(static_cast<std::uint32_t>(call.step.runs.size()), bytes);
  for (const Run& run : call.step.runs) AppendRun(run, bytes);
  AppendAll(call.step.tokens, bytes);
  AppendAll(call.step.logit_rows, bytes);
}

/// Takes values off the front; false where there are not enough bytes.
class CallDecoder::Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  std::size_t size() const { return bytes_.size(); }

  template <typename T>
  bool Take(T* value) {
    static_assert(std::is_arithmetic_v<T>);
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return true;
  }
  /// Appends what AppendAll wrote, and says how many.
  template <typename T>
  bool TakeAll(std::vector<T>* values, std::uint32_t* count) {
    if (!Take(count) || bytes_.size() / sizeof(T) < *count) return false;
    const std::size_t before = values->size();
    values->resize(before + *count);
    const std::size_t size = *count * sizeof(T);
    if (size > 0) std::memcpy(values->data() + before, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
};

bool CallDecoder::ReadRun(Reader& reader) {
  Run run;
  std::uint8_t wants_token = 0;
  std::uint32_t num_adjustments = 0;
  for (std::int32_t* value :
       {&run.slot, &run.first_position, &run.count, &run.num_drafts, &run.next_drafts}) {
    if (!reader.Take(value)) return false;
  }
  if (!reader.Take(&wants_token) || wants_token > 1 || !reader.Take(&run.sampling.temperature) ||
      !reader.Take(&run.sampling.top_p) || !reader.Take(&run.sampling.top_k) ||
      !reader.Take(&run.sampling.min_p) || !reader.Take(&run.sampling.seed) ||
      !reader.Take(&num_adjustments)) {
    return false;
  }
  run.wants_token = wants_token == 1;
  runs_.push_back(run);
  num_adjustments_.push_back(num_adjustments);
  for (std::uint32_t i = 0; i < num_adjustments; ++i) {
    AdjustmentSizes sizes;
    if (!reader.TakeAll(&changes_, &sizes.num_changes) ||
        !reader.TakeAll(&words_, &sizes.num_words)) {
      return false;
    }
    sizes_.push_back(sizes);
  }
  return true;
}

bool CallDecoder::ReadStep(Reader& reader, StepInput* step) {
  runs_.clear();
  tokens_.clear();
  logit_rows_.clear();
  num_adjustments_.clear();
  sizes_.clear();
  adjustments_.clear();
  changes_.clear();
  words_.clear();
  std::uint32_t num_runs = 0;
  std::uint32_t count = 0;
  if (!reader.Take(&num_runs)) return false;
  for (std::uint32_t i = 0; i < num_runs; ++i) {
    if (!ReadRun(reader)) return false;
  }
  if (!reader.TakeAll(&tokens_, &count) || !reader.TakeAll(&logit_rows_, &count)) return false;
  // Only now do the vectors stay where they are.
  std::span<const kernels::LogitChange> changes = changes_;
  std::span<const std::uint64_t> words = words_;
  for (const AdjustmentSizes& sizes : sizes_) {
    adjustments_.push_back({changes.first(sizes.num_changes), words.first(sizes.num_words)});
    changes = changes.subspan(sizes.num_changes);
    words = words.subspan(sizes.num_words);
  }
  std::span<const kernels::LogitAdjustment> adjustments = adjustments_;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    runs_[i].adjustments = adjustments.first(num_adjustments_[i]);
    adjustments = adjustments.subspan(num_adjustments_[i]);
  }
  *step = {runs_, tokens_, logit_rows_};
  return true;
}

Result<Call> CallDecoder::Decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Call call;
  std::uint8_t kind = 0;
  std::uint32_t num_destroyed = 0;
  destroyed_.clear();
  bool fine = reader.Take(&kind) && kind <= static_cast<std::uint8_t>(CallKind::kEnd) &&
              reader.Take(&call.last_outcome) && call.last_outcome <= kNumErrorCodes &&
              reader.TakeAll(&destroyed_, &num_destroyed);
  call.kind = static_cast<CallKind>(kind);
  call.destroyed = destroyed_;
  if (fine && call.kind == CallKind::kStep) {
    fine = ReadStep(reader, &call.step);
  } else if (fine) {
    fine = reader.Take(&call.slot) && reader.Take(&call.length) && reader.Take(&call.snapshot);
  }
  if (!fine || !reader.empty()) {
    return Fail(ErrorCode::kBadFile, "a call of {} bytes cannot be read: {} bytes are left",
                bytes.size(), reader.size());
  }
  return call;
}

}  // namespace megalith::exec
