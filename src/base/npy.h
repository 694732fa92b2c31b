#pragma once

// NumPy .npy files, format 1.0, C order, little-endian: <f2 <f4 <i2 <i4 |u1.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace megalith {

struct NpyArray {
  DType dtype = DType::kF32;  ///< kF16, kF32, kI16, kI32 or kU8
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;  ///< C order, aligned for any element type

  std::int64_t num_elements() const;
  /// The elements as T; sizeof(T) must be the element size (float, std::int16_t, ...).
  template <typename T>
  std::span<const T> As() const {
    return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
  }
};

/// kNotFound, kIo, kBadFile (not format 1.0, Fortran order, size that disagrees with the shape),
/// kUnsupported (another element type).
Result<NpyArray> ReadNpy(const std::string& path);

/// The same from memory; `source` is named in errors.
Result<NpyArray> ParseNpy(std::span<const std::byte> bytes, std::string_view source);

/// The file as bytes. data.size() must be the product of `shape` times the element size (kUsage).
Result<std::string> EncodeNpy(DType dtype, std::span<const std::int64_t> shape,
                              std::span<const std::byte> data);
Status WriteNpy(const std::string& path, DType dtype, std::span<const std::int64_t> shape,
                std::span<const std::byte> data);

}  // namespace megalith
