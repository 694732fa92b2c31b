#include "base/dtype.h"

#include <array>

namespace megalith {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::int64_t num_bytes;
};

// In the order of the enumerators.
constexpr std::array<DTypeInfo, 16> kDTypes = {{
    {DType::kBf16, "BF16", 2},
    {DType::kF16, "F16", 2},
    {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kF8E8M0, "F8_E8M0", 1},
    {DType::kBool, "BOOL", 1},
    {DType::kU8, "U8", 1},
    {DType::kI8, "I8", 1},
    {DType::kU16, "U16", 2},
    {DType::kI16, "I16", 2},
    {DType::kU32, "U32", 4},
    {DType::kI32, "I32", 4},
    {DType::kU64, "U64", 8},
    {DType::kI64, "I64", 8},
}};

constexpr bool TableIsInOrder() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(TableIsInOrder());

}  // namespace

std::string_view DTypeName(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> ParseDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

std::int64_t DTypeBytes(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].num_bytes; }

}  // namespace megalith
