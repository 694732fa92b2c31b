#include "serve/replay.h"

#include <cmath>

#include "base/log.h"
#include "serve/api/json_build.h"

namespace megalith::serve {
namespace {

JsonValue CanonicalNumber(const JsonValue& number) {
  // Up to here a double holds every integer.
  constexpr double kMaxExact = 9007199254740992.0;
  if (number.AsInteger()) return number;
  const auto value = number.AsDouble();
  if (!value || !std::isfinite(*value)) return number;
  if (std::trunc(*value) == *value && std::abs(*value) <= kMaxExact) {
    return Json(static_cast<std::int64_t>(*value));
  }
  return JsonValue::Double(*value);
}

// Recursion is bounded by the parser's limit on nesting.
JsonValue Canonical(const JsonValue& value) {
  if (value.is_number()) return CanonicalNumber(value);
  if (value.is_array()) {
    std::vector<JsonValue> items;
    for (const JsonValue& item : value.items()) items.push_back(Canonical(item));
    return JsonArray(std::move(items));
  }
  if (value.is_object()) {
    std::vector<JsonMember> members;
    for (const JsonMember& member : value.members()) {
      members.push_back({member.key, Canonical(member.value)});
    }
    return JsonObject(std::move(members));
  }
  return value;
}

// Text that is no JSON stands for itself, as a string.
JsonValue CanonicalArguments(const std::string& arguments) {
  if (arguments.find_first_not_of(" \t\r\n") == std::string::npos) return JsonObject();
  const auto json = text::ParseJson(arguments, text::JsonDialect::kPython);
  return json ? Canonical(*json) : Json(arguments);
}

}  // namespace

std::string CanonicalMessage(const text::Message& message, bool thinking) {
  std::string content;
  for (const std::string& part : message.content) content += part;
  std::vector<JsonValue> calls;
  for (const text::ToolCall& call : message.tool_calls) {
    calls.push_back(JsonArray({Json(call.name), CanonicalArguments(call.arguments)}));
  }
  return WriteCompactSortedJson(JsonArray({Json(thinking), Json(message.reasoning),
                                           Json(std::move(content)), JsonArray(std::move(calls))}));
}

void ReplayStore::Put(const text::Message& message, bool thinking, std::vector<text::TokenId> ids) {
  Turn turn{CanonicalMessage(message, thinking), std::move(ids)};
  const std::lock_guard lock(mutex_);
  if (Insert(std::move(turn))) Log(turns_.front());
}

/// In front of the others. False if it is too large, or there already with the same ids.
bool ReplayStore::Insert(Turn turn) {
  if (const auto old = index_.find(turn.key); old != index_.end()) {
    if (old->second->ids == turn.ids) return false;
    Drop(old->second);
  }
  if (Bytes(turn) > limit_bytes_) return false;
  num_bytes_ += Bytes(turn);
  turns_.push_front(std::move(turn));
  index_.emplace(turns_.front().key, turns_.begin());
  while (num_bytes_ > limit_bytes_) Drop(std::prev(turns_.end()));
  return true;
}

Status ReplayStore::KeepIn(const std::string& path) {
  const std::lock_guard lock(mutex_);
  MEGALITH_ASSIGN_OR_RETURN(
      log_, ReplayLog::Open(path, [this](std::string key, std::vector<text::TokenId> ids) {
        Insert({std::move(key), std::move(ids)});
      }));
  return {};
}

/// A file that cannot be written is no reason to stop: turns are then found until the end of the
/// process.
void ReplayStore::Log(const Turn& turn) {
  if (log_ == nullptr) return;
  Status status = log_->Append(turn.key, turn.ids);
  // The log has every turn ever put; it is written anew before it is much larger than the store.
  if (status && log_->num_bytes() > 2 * limit_bytes_) status = RewriteLog();
  if (status) return;
  LogFormat(LogLevel::kWarning, "replayed turns are no longer kept: {}", status.error().message);
  log_.reset();
}

Status ReplayStore::RewriteLog() {
  MEGALITH_RETURN_IF_ERROR(log_->Clear());
  for (auto turn = turns_.rbegin(); turn != turns_.rend(); ++turn) {
    MEGALITH_RETURN_IF_ERROR(log_->Append(turn->key, turn->ids));
  }
  return {};
}

std::optional<std::vector<text::TokenId>> ReplayStore::Find(const text::Message& message,
                                                            bool thinking) {
  const std::string key = CanonicalMessage(message, thinking);
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) return std::nullopt;
  turns_.splice(turns_.begin(), turns_, found->second);
  return found->second->ids;
}

std::size_t ReplayStore::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

std::size_t ReplayStore::num_turns() const {
  const std::lock_guard lock(mutex_);
  return turns_.size();
}

std::size_t ReplayStore::Bytes(const Turn& turn) {
  constexpr std::size_t kOverheadBytes = 160;  // of list, index and allocations
  return turn.key.size() + turn.ids.size() * sizeof(text::TokenId) + kOverheadBytes;
}

void ReplayStore::Drop(std::list<Turn>::iterator turn) {
  num_bytes_ -= Bytes(*turn);
  index_.erase(turn->key);
  turns_.erase(turn);
}

}  // namespace megalith::serve
