#pragma once

// The safetensors container: 8 bytes little-endian header length, a JSON header, the data. Nothing
// here reads tensor data. Everything a header says is checked before anybody relies on it:
//
// * the header length is at most kMaxHeaderBytes and lies inside the file;
// * no name and no key appears twice; no entry has keys other than dtype, shape, data_offsets;
// * shape x element size == end - begin, in arithmetic that cannot wrap;
// * ranges do not overlap, and together they end exactly where the file ends: a file that is longer
//   or shorter by one byte is refused;
// * bytes between two ranges that belong to no tensor: up to kMaxPaddingBytes are taken for
// alignment
//   padding, which some writers insert; more is refused. (The format's own library refuses any.)

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/result.h"

namespace megalith::weights {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr std::uint64_t kMaxPaddingBytes = 63;
inline constexpr std::size_t kMaxTensorRank = 8;

/// One tensor of one file. `begin` and `end` count from the first data byte.
struct HeaderEntry {
  std::string_view name;
  DType dtype = DType::kBf16;
  std::span<const std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A checked header. Entries are in file order of their data; names and shapes live in here.
class TensorHeader {
 public:
  /// `file_bytes` is the size of the whole file, `json` the header's text without the length.
  /// kBadFile as listed above, with `source` in the message.
  static Result<TensorHeader> Parse(std::string_view json, std::uint64_t file_bytes,
                                    std::string_view source);
  /// Reads and checks the header of an open file.
  static Result<TensorHeader> Read(const RandomAccessFile& file);

  std::size_t num_tensors() const { return entries_.size(); }
  HeaderEntry At(std::size_t index) const;
  /// Offset of the first data byte in the file: 8 + header length.
  std::uint64_t data_offset() const { return data_offset_; }
  /// Sum of all tensors' bytes, without padding.
  std::uint64_t tensor_bytes() const { return tensor_bytes_; }

 private:
  /// 40 bytes a tensor: a full checkpoint has half a million of them.
  struct Entry {
    std::uint32_t name_offset;
    std::uint32_t name_bytes;
    std::uint32_t shape_offset;
    std::uint8_t rank;
    DType dtype;
    std::uint64_t begin;
    std::uint64_t end;
  };

  Status CheckNames(std::string_view source) const;
  /// Sorts the entries by position.
  Status CheckRanges(std::uint64_t file_bytes, std::string_view source);

  std::string names_;
  std::vector<std::int64_t> shapes_;
  std::vector<Entry> entries_;
  std::uint64_t data_offset_ = 0;
  std::uint64_t tensor_bytes_ = 0;
};

}  // namespace megalith::weights
