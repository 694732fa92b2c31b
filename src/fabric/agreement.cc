#include "fabric/agreement.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

namespace megalith::fabric {
namespace {

void Append(const std::string& text, Bytes* bytes) {
  const std::uint64_t size = text.size();
  const auto* raw = reinterpret_cast<const std::byte*>(&size);
  bytes->insert(bytes->end(), raw, raw + sizeof size);
  const auto* characters = reinterpret_cast<const std::byte*>(text.data());
  bytes->insert(bytes->end(), characters, characters + text.size());
}

Bytes Encode(const Items& items) {
  Bytes bytes;
  for (const auto& [name, value] : items) {
    Append(name, &bytes);
    Append(value, &bytes);
  }
  return bytes;
}

std::optional<std::string> Take(std::span<const std::byte>* bytes) {
  std::uint64_t size = 0;
  if (bytes->size() < sizeof size) return std::nullopt;
  std::memcpy(&size, bytes->data(), sizeof size);
  *bytes = bytes->subspan(sizeof size);
  if (bytes->size() < size) return std::nullopt;
  std::string text(reinterpret_cast<const char*>(bytes->data()), size);
  *bytes = bytes->subspan(size);
  return text;
}

Result<Items> Decode(std::span<const std::byte> bytes, std::uint32_t rank) {
  Items items;
  while (!bytes.empty()) {
    auto name = Take(&bytes);
    auto value = name ? Take(&bytes) : std::nullopt;
    if (!value) return Fail(ErrorCode::kInternal, "rank {}: its items cannot be read", rank);
    items.emplace_back(std::move(*name), std::move(*value));
  }
  return items;
}

Status Compare(std::uint32_t rank, const Items& found, const Items& expected) {
  const std::size_t count = std::max(found.size(), expected.size());
  for (std::size_t i = 0; i < count; ++i) {
    const bool missing = i >= found.size();
    if (missing || i >= expected.size() || found[i].first != expected[i].first) {
      return Fail(ErrorCode::kUsage, "rank {}: item {}: '{}' expected as on rank 0, {} found", rank,
                  i, i < expected.size() ? expected[i].first : "none",
                  missing ? "none" : "'" + found[i].first + "'");
    }
    if (found[i].second != expected[i].second) {
      return Fail(ErrorCode::kUsage, "rank {}: {}: '{}' expected as on rank 0, '{}' found", rank,
                  found[i].first, expected[i].second, found[i].second);
    }
  }
  return {};
}

}  // namespace

Status CheckAgreement(Fabric& fabric, const Items& mine) {
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<Bytes> all, fabric.AllGather(Encode(mine)));
  MEGALITH_ASSIGN_OR_RETURN(const Items expected, Decode(all[0], 0));
  for (std::uint32_t rank = 1; rank < fabric.num_ranks(); ++rank) {
    MEGALITH_ASSIGN_OR_RETURN(const Items found, Decode(all[rank], rank));
    MEGALITH_RETURN_IF_ERROR(Compare(rank, found, expected));
  }
  return {};
}

Status BroadcastItems(Fabric& fabric, Items* items) {
  Bytes bytes = Encode(*items);
  MEGALITH_RETURN_IF_ERROR(fabric.Broadcast(&bytes));
  if (fabric.rank() == 0) return {};
  MEGALITH_ASSIGN_OR_RETURN(*items, Decode(bytes, 0));
  return {};
}

}  // namespace megalith::fabric
