#include "base/npy.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "base/file.h"

namespace megalith {
namespace {

static_assert(std::endian::native == std::endian::little, "data is copied without swapping");

constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr std::uint64_t kMaxNpyBytes = std::uint64_t{1} << 36;

struct NpyType {
  DType dtype;
  std::string_view descr;
};
constexpr std::array<NpyType, 5> kTypes = {{
    {DType::kF16, "<f2"},
    {DType::kF32, "<f4"},
    {DType::kI16, "<i2"},
    {DType::kI32, "<i4"},
    {DType::kU8, "|u1"},
}};

/// Reads the header, a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
class HeaderScanner {
 public:
  explicit HeaderScanner(std::string_view text) : text_(text) {}

  bool Take(char expected) {
    SkipSpace();
    if (position_ >= text_.size() || text_[position_] != expected) return false;
    ++position_;
    return true;
  }
  std::optional<std::string_view> String() {
    SkipSpace();
    if (position_ >= text_.size()) return std::nullopt;
    const char quote = text_[position_];
    if (quote != '\'' && quote != '"') return std::nullopt;
    const std::size_t close = text_.find(quote, position_ + 1);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view value = text_.substr(position_ + 1, close - position_ - 1);
    position_ = close + 1;
    return value;
  }
  std::optional<bool> Bool() {
    SkipSpace();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        return value;
      }
    }
    return std::nullopt;
  }
  std::optional<std::int64_t> Integer() {
    SkipSpace();
    std::int64_t value = 0;
    const char* begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    position_ += static_cast<std::size_t>(end - begin);
    return value;
  }
  bool AtEnd() {
    SkipSpace();
    return position_ == text_.size();
  }

 private:
  void SkipSpace() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) {
      ++position_;
    }
  }
  std::string_view text_;
  std::size_t position_ = 0;
};

struct Header {
  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

std::optional<std::vector<std::int64_t>> ParseShape(HeaderScanner* scanner) {
  std::vector<std::int64_t> shape;
  if (!scanner->Take('(')) return std::nullopt;
  while (!scanner->Take(')')) {
    const auto extent = scanner->Integer();
    if (!extent || shape.size() == 32) return std::nullopt;  // 32: NumPy's own limit
    shape.push_back(*extent);
    if (scanner->Take(',')) continue;
    if (!scanner->Take(')')) return std::nullopt;
    return shape;
  }
  return shape;
}

std::optional<Header> ParseHeader(std::string_view text) {
  HeaderScanner scanner(text);
  Header header;
  if (!scanner.Take('{')) return std::nullopt;
  while (!scanner.Take('}')) {
    const auto key = scanner.String();
    if (!key || !scanner.Take(':')) return std::nullopt;
    if (*key == "descr" && !header.descr) {
      header.descr = scanner.String();
      if (!header.descr) return std::nullopt;
    } else if (*key == "fortran_order" && !header.fortran_order) {
      header.fortran_order = scanner.Bool();
      if (!header.fortran_order) return std::nullopt;
    } else if (*key == "shape" && !header.shape) {
      header.shape = ParseShape(&scanner);
      if (!header.shape) return std::nullopt;
    } else {
      return std::nullopt;
    }
    if (scanner.Take(',')) continue;
    if (!scanner.Take('}')) return std::nullopt;
    break;
  }
  if (!scanner.AtEnd() || !header.descr || !header.fortran_order || !header.shape) {
    return std::nullopt;
  }
  return header;
}

/// Product of the extents times the element size; empty when it does not fit 63 bits.
std::optional<std::uint64_t> ByteCount(std::span<const std::int64_t> shape, DType dtype) {
  auto count = static_cast<std::uint64_t>(DTypeBytes(dtype));
  bool zero = false;
  for (const std::int64_t extent : shape) zero = zero || extent == 0;
  if (zero) return 0;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(extent), &count) ||
        count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return std::nullopt;
    }
  }
  return count;
}

}  // namespace

std::int64_t NpyArray::num_elements() const {
  return static_cast<std::int64_t>(data.size()) / DTypeBytes(dtype);
}

Result<NpyArray> ParseNpy(std::span<const std::byte> bytes, std::string_view source) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.substr(0, kMagic.size()) != kMagic || text.size() < kMagic.size() + 2) {
    return Fail(ErrorCode::kBadFile, "{}: not a .npy file of format 1.0", source);
  }
  const std::size_t header_bytes = static_cast<unsigned char>(text[8]) |
                                   static_cast<std::size_t>(static_cast<unsigned char>(text[9]))
                                       << 8;
  if (header_bytes > text.size() - 10) {
    return Fail(ErrorCode::kBadFile, "{}: the header of {} bytes passes the end of the file",
                source, header_bytes);
  }
  const auto header = ParseHeader(text.substr(10, header_bytes));
  if (!header) return Fail(ErrorCode::kBadFile, "{}: the .npy header cannot be read", source);
  if (*header->fortran_order) {
    return Fail(ErrorCode::kUnsupported, "{}: C order expected, Fortran order found", source);
  }
  NpyArray array;
  bool known = false;
  for (const NpyType& type : kTypes) {
    if (type.descr == *header->descr) {
      array.dtype = type.dtype;
      known = true;
    }
  }
  if (!known) {
    return Fail(ErrorCode::kUnsupported, "{}: element type '{}'; <f2 <f4 <i2 <i4 |u1 are read",
                source, *header->descr);
  }
  array.shape = *header->shape;
  const auto want = ByteCount(array.shape, array.dtype);
  const std::span<const std::byte> data = bytes.subspan(10 + header_bytes);
  if (!want || *want != data.size()) {
    return Fail(ErrorCode::kBadFile, "{}: {} bytes of data found, the shape needs {}", source,
                data.size(), want ? fmt::to_string(*want) : "more than any file holds");
  }
  array.data.assign(data.begin(), data.end());
  return array;
}

Result<NpyArray> ReadNpy(const std::string& path) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxNpyBytes));
  return ParseNpy(std::as_bytes(std::span<const char>(text.data(), text.size())), path);
}

Result<std::string> EncodeNpy(DType dtype, std::span<const std::int64_t> shape,
                              std::span<const std::byte> data) {
  std::string_view descr;
  for (const NpyType& type : kTypes) {
    if (type.dtype == dtype) descr = type.descr;
  }
  if (descr.empty()) {
    return Fail(ErrorCode::kUsage, "no .npy element type for {}", DTypeName(dtype));
  }
  const auto want = ByteCount(shape, dtype);
  if (!want || *want != data.size()) {
    return Fail(ErrorCode::kUsage, "{} bytes of data do not fill the shape", data.size());
  }
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (", descr);
  for (const std::int64_t extent : shape) header += fmt::format("{}, ", extent);
  if (shape.size() > 1) header.resize(header.size() - 2);
  if (shape.size() == 1) header.pop_back();  // (3,)
  header += "), }";
  // The format asks that the data start at a multiple of 64.
  const std::size_t unpadded = kMagic.size() + 2 + header.size() + 1;
  header.append((64 - unpadded % 64) % 64, ' ');
  header += '\n';
  if (header.size() > 0xffff) return Fail(ErrorCode::kUsage, "the shape has too many extents");
  std::string text(kMagic);
  text += static_cast<char>(header.size() & 0xff);
  text += static_cast<char>(header.size() >> 8);
  text += header;
  text.append(reinterpret_cast<const char*>(data.data()), data.size());
  return text;
}

Status WriteNpy(const std::string& path, DType dtype, std::span<const std::int64_t> shape,
                std::span<const std::byte> data) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string text, EncodeNpy(dtype, shape, data));
  const auto close = [](std::FILE* file) { std::fclose(file); };
  std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "wb"), close);
  if (!file) return Fail(ErrorCode::kIo, "{}: cannot be created: {}", path, std::strerror(errno));
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (std::fclose(file.release()) != 0 || !written) {
    return Fail(ErrorCode::kIo, "{}: {} bytes could not be written", path, text.size());
  }
  return {};
}

}  // namespace megalith
