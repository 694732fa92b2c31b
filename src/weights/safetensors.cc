#include "weights/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "model/json_place.h"
#include "weights/quote.h"

namespace megalith::weights {
namespace {

namespace dom = simdjson::dom;

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kLengthBytes = 8;
// Offsets must also work as signed file offsets.
constexpr std::uint64_t kMaxOffset = std::uint64_t{1} << 62;

struct ParsedEntry {
  std::string_view dtype;
  std::array<std::int64_t, kMaxTensorRank> shape = {};
  std::size_t rank = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The three keys of one entry. Returns what is wrong, or nothing.
std::optional<std::string> ParseEntry(dom::element value, ParsedEntry* entry) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return "an object expected";
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
  for (const dom::key_value_pair field : object) {
    if (field.key == "dtype" && !has_dtype) {
      has_dtype = true;
      if (field.value.get(entry->dtype) != simdjson::SUCCESS) return "dtype: a string expected";
    } else if (field.key == "shape" && !has_shape) {
      has_shape = true;
      dom::array shape;
      if (field.value.get(shape) != simdjson::SUCCESS) return "shape: a list expected";
      for (const dom::element extent : shape) {
        if (entry->rank == kMaxTensorRank) {
          return fmt::format("shape: at most {} extents expected", kMaxTensorRank);
        }
        std::int64_t value_of_extent = 0;
        if (!extent.is_int64() || extent.get(value_of_extent) != simdjson::SUCCESS ||
            value_of_extent < 0) {
          return "shape: non-negative integers expected";
        }
        entry->shape[entry->rank++] = value_of_extent;
      }
    } else if (field.key == "data_offsets" && !has_offsets) {
      has_offsets = true;
      dom::array offsets;
      if (field.value.get(offsets) != simdjson::SUCCESS || offsets.size() != 2) {
        return "data_offsets: a list of two expected";
      }
      if (offsets.at(0).get(entry->begin) != simdjson::SUCCESS ||
          offsets.at(1).get(entry->end) != simdjson::SUCCESS) {
        return "data_offsets: non-negative integers expected";
      }
    } else if (field.key == "dtype" || field.key == "shape" || field.key == "data_offsets") {
      return fmt::format("{} occurs twice", field.key);
    } else {
      return "keys other than dtype, shape, data_offsets";
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) {
    return fmt::format("{} is missing",
                       !has_dtype ? "dtype" : (!has_shape ? "shape" : "data_offsets"));
  }
  if (entry->begin > entry->end || entry->end > kMaxOffset) {
    return fmt::format("data_offsets [{}, {}] are not a range", entry->begin, entry->end);
  }
  return std::nullopt;
}

/// Bytes of the shape, empty if they do not fit.
std::optional<std::uint64_t> ShapeBytes(const ParsedEntry& entry, DType dtype) {
  const auto shape = std::span(entry.shape).first(entry.rank);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  auto bytes = static_cast<std::uint64_t>(DTypeBytes(dtype));
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) ||
        bytes > kMaxOffset) {
      return std::nullopt;
    }
  }
  return bytes;
}

std::optional<std::string> CheckMetadata(dom::element value) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return "an object expected";
  for (const dom::key_value_pair field : object) {
    if (!field.value.is_string()) return "strings expected";
  }
  return std::nullopt;
}

std::string ShapeText(const ParsedEntry& entry) {
  std::string text = "[";
  for (std::size_t i = 0; i < entry.rank; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", entry.shape[i]);
  }
  return text + "]";
}

}  // namespace

HeaderEntry TensorHeader::At(std::size_t index) const {
  const Entry& entry = entries_[index];
  return {std::string_view(names_).substr(entry.name_offset, entry.name_bytes), entry.dtype,
          std::span(shapes_).subspan(entry.shape_offset, entry.rank), entry.begin, entry.end};
}

Result<TensorHeader> TensorHeader::Parse(std::string_view json, std::uint64_t file_bytes,
                                         std::string_view source) {
  if (json.size() > kMaxHeaderBytes || file_bytes < kLengthBytes + json.size()) {
    return Fail(ErrorCode::kBadFile, "{}: a header of {} bytes in a file of {}", source,
                json.size(), file_bytes);
  }
  if (json.empty() || json.front() != '{') {
    return Fail(ErrorCode::kBadFile, "{}: the header must begin with '{{'", source);
  }
  // The DOM parser rather than the on-demand one: it validates every byte of the document, also
  // those that nobody asks for, and keeps repeated keys visible.
  const simdjson::padded_string padded(json);
  dom::parser parser;
  dom::element document;
  if (const auto error = parser.parse(padded).get(document)) {
    return Fail(ErrorCode::kBadFile, "{}: the header is not valid JSON{}: {}", source,
                model::JsonErrorPlace(json), simdjson::error_message(error));
  }
  dom::object root;
  if (document.get(root) != simdjson::SUCCESS) {
    return Fail(ErrorCode::kBadFile, "{}: the header is not a JSON object", source);
  }

  TensorHeader header;
  header.data_offset_ = kLengthBytes + json.size();
  header.entries_.reserve(root.size());
  bool has_metadata = false;
  for (const dom::key_value_pair field : root) {
    if (field.key == "__metadata__") {
      const auto problem = has_metadata ? std::optional<std::string>("the key occurs twice")
                                        : CheckMetadata(field.value);
      if (problem) {
        return Fail(ErrorCode::kBadFile, "{}: __metadata__: {}", source, *problem);
      }
      has_metadata = true;
      continue;
    }
    ParsedEntry parsed;
    if (const auto problem = ParseEntry(field.value, &parsed)) {
      return Fail(ErrorCode::kBadFile, "{}: tensor {}: {}", source, Quote(field.key), *problem);
    }
    const auto dtype = ParseDType(parsed.dtype);
    if (!dtype) {
      return Fail(ErrorCode::kUnsupported, "{}: tensor {}: unknown dtype '{}'", source,
                  Quote(field.key), Quote(parsed.dtype));
    }
    const auto bytes = ShapeBytes(parsed, *dtype);
    if (!bytes || *bytes != parsed.end - parsed.begin) {
      return Fail(ErrorCode::kBadFile, "{}: tensor {}: {} {} takes {} bytes, data_offsets give {}",
                  source, Quote(field.key), DTypeName(*dtype), ShapeText(parsed),
                  bytes ? fmt::to_string(*bytes) : "too many", parsed.end - parsed.begin);
    }
    Entry entry;
    entry.name_offset = static_cast<std::uint32_t>(header.names_.size());
    entry.name_bytes = static_cast<std::uint32_t>(field.key.size());
    entry.shape_offset = static_cast<std::uint32_t>(header.shapes_.size());
    entry.rank = static_cast<std::uint8_t>(parsed.rank);
    entry.dtype = *dtype;
    entry.begin = parsed.begin;
    entry.end = parsed.end;
    header.names_ += field.key;
    header.shapes_.insert(header.shapes_.end(), parsed.shape.begin(),
                          parsed.shape.begin() + static_cast<std::ptrdiff_t>(parsed.rank));
    header.entries_.push_back(entry);
    header.tensor_bytes_ += *bytes;  // below 2^62 each; checked against the file size below
    if (header.tensor_bytes_ > kMaxOffset) {
      return Fail(ErrorCode::kBadFile, "{}: the tensors are larger than any file", source);
    }
  }
  MEGALITH_RETURN_IF_ERROR(header.CheckNames(source));
  MEGALITH_RETURN_IF_ERROR(header.CheckRanges(file_bytes, source));
  header.names_.shrink_to_fit();
  header.shapes_.shrink_to_fit();
  return header;
}

Status TensorHeader::CheckNames(std::string_view source) const {
  std::vector<std::string_view> names;
  names.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) names.push_back(At(i).name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    return Fail(ErrorCode::kBadFile, "{}: tensor {} occurs twice in the header", source,
                Quote(*twice));
  }
  return {};
}

Status TensorHeader::CheckRanges(std::uint64_t file_bytes, std::string_view source) {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    if (a.begin != b.begin) return a.begin < b.begin;
    if (a.end != b.end) return a.end < b.end;
    return a.name_offset < b.name_offset;
  });
  std::uint64_t covered = 0;
  std::size_t last = 0;  // the entry that ends at `covered`
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.begin == entry.end && entry.begin <= covered) continue;  // holds no byte
    if (entry.begin < covered) {
      return Fail(ErrorCode::kBadFile, "{}: tensor {} at [{}, {}) overlaps tensor {}", source,
                  Quote(At(i).name), entry.begin, entry.end, Quote(At(last).name));
    }
    if (entry.begin - covered > kMaxPaddingBytes) {
      return Fail(ErrorCode::kBadFile, "{}: bytes [{}, {}) before tensor {} belong to no tensor",
                  source, covered, entry.begin, Quote(At(i).name));
    }
    covered = entry.end;
    last = i;
  }
  const std::uint64_t expected = data_offset_ + covered;
  if (expected != file_bytes) {
    return Fail(ErrorCode::kBadFile, "{}: {} bytes expected from its header, {} found: {} bytes {}",
                source, expected, file_bytes,
                expected > file_bytes ? expected - file_bytes : file_bytes - expected,
                expected > file_bytes ? "are missing" : "too many");
  }
  return {};
}

Result<TensorHeader> TensorHeader::Read(const RandomAccessFile& file) {
  const std::uint64_t size = file.size_bytes();
  if (size < kLengthBytes) {
    return Fail(ErrorCode::kBadFile, "{}: {} bytes are too few for a safetensors file", file.path(),
                size);
  }
  std::uint64_t header_bytes = 0;
  MEGALITH_RETURN_IF_ERROR(
      file.ReadAt(0, std::as_writable_bytes(std::span<std::uint64_t>(&header_bytes, 1))));
  if (header_bytes > kMaxHeaderBytes) {
    return Fail(ErrorCode::kBadFile, "{}: header length {}; at most {} expected", file.path(),
                header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > size - kLengthBytes) {
    return Fail(ErrorCode::kBadFile, "{}: header length {} passes the end of the file ({} bytes)",
                file.path(), header_bytes, size);
  }
  std::string json(static_cast<std::size_t>(header_bytes), '\0');
  MEGALITH_RETURN_IF_ERROR(
      file.ReadAt(kLengthBytes, std::as_writable_bytes(std::span<char>(json.data(), json.size()))));
  return Parse(json, size, file.path());
}

}  // namespace megalith::weights
