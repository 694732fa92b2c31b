#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace megalith {

/// Element types that a checkpoint file may hold. Which of them a tensor may have is decided by the
/// model, not here.
enum class DType : std::uint8_t {
  kBf16,
  kF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
};

/// The name safetensors uses, e.g. "BF16".
std::string_view DTypeName(DType dtype);

/// Inverse of DTypeName; empty for any other text.
std::optional<DType> ParseDType(std::string_view name);

/// Bytes of one element: 1, 2, 4 or 8.
std::int64_t DTypeBytes(DType dtype);

}  // namespace megalith
