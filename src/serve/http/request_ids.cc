#include "serve/http/request_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace megalith::serve::http {
namespace {

constexpr std::size_t kMaxIdBytes = 128;

bool IsUsable(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

}  // namespace

RequestIds::RequestIds() : prefix_(fmt::format("req-{:08x}", std::random_device{}())) {}

std::string RequestIds::Acquire(std::string_view wanted) {
  const std::lock_guard lock(mutex_);
  if (IsUsable(wanted)) {
    if (const auto [id, is_new] = open_.emplace(wanted); is_new) return *id;
  }
  for (;;) {
    if (const auto [id, is_new] = open_.insert(fmt::format("{}-{}", prefix_, next_++)); is_new) {
      return *id;
    }
  }
}

void RequestIds::Release(const std::string& id) {
  const std::lock_guard lock(mutex_);
  open_.erase(id);
}

}  // namespace megalith::serve::http
