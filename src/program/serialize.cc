#include "program/serialize.h"

#include <xxhash.h>

#include <array>
#include <cstring>
#include <type_traits>

#include "program/fields.h"

namespace megalith::program {
namespace {

/// The last character is the version.
constexpr char kMagic[8] = {'M', 'E', 'G', 'A', 'P', 'R', 'G', '\4'};
constexpr std::size_t kVersionAt = sizeof kMagic - 1;

template <typename T>
concept Scalar = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class Writer {
 public:
  template <typename T>
  void operator()(const char*, T& value) {
    Put(value);
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

  void Raw(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }

 private:
  void Put(bool& value) {
    const auto byte = static_cast<std::uint8_t>(value);
    Raw(&byte, 1);
  }
  template <Scalar T>
  void Put(T& value) {
    Raw(&value, sizeof value);
  }
  void Put(std::string& value) {
    auto size = static_cast<std::uint64_t>(value.size());
    Put(size);
    Raw(value.data(), value.size());
  }
  template <typename T>
  void Put(std::vector<T>& values) {
    auto size = static_cast<std::uint64_t>(values.size());
    Put(size);
    for (T& value : values) Put(value);
  }
  template <typename T, std::size_t kSize>
  void Put(std::array<T, kSize>& values) {
    for (T& value : values) Put(value);
  }
  template <typename T>
  requires std::is_class_v<T>
  void Put(T& value) { Fields(*this, value); }

  std::vector<std::byte> bytes_;
};

/// Largest legal value of each enum: anything above is not a Program.
template <typename T>
constexpr std::uint64_t kLastEnumerator = 0;
template <>
constexpr std::uint64_t kLastEnumerator<Opcode> = kNumOpcodes - 1;
template <>
constexpr std::uint64_t kLastEnumerator<Epilogue> =
    static_cast<std::uint64_t>(Epilogue::kAddDraftBase);
template <>
constexpr std::uint64_t kLastEnumerator<Activation> = static_cast<std::uint64_t>(Activation::kSilu);
template <>
constexpr std::uint64_t kLastEnumerator<DType> = static_cast<std::uint64_t>(DType::kI64);
template <>
constexpr std::uint64_t kLastEnumerator<WeightFormat> =
    static_cast<std::uint64_t>(WeightFormat::kInt8);
template <>
constexpr std::uint64_t kLastEnumerator<Register> =
    static_cast<std::uint64_t>(Register::kDraftRows);
template <>
constexpr std::uint64_t kLastEnumerator<BufferKind> =
    static_cast<std::uint64_t>(BufferKind::kMailbox);
template <>
constexpr std::uint64_t kLastEnumerator<CounterScope> =
    static_cast<std::uint64_t>(CounterScope::kDone);
template <>
constexpr std::uint64_t kLastEnumerator<VectorLayout> =
    static_cast<std::uint64_t>(VectorLayout::kTransposed);

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  void operator()(const char* name, T& value) {
    if (!error_.empty()) return;
    name_ = name;
    Get(value);
  }
  const std::string& error() const { return error_; }
  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

  bool Raw(void* data, std::size_t size) {
    if (!error_.empty()) return false;
    if (size > remaining()) {
      error_ = fmt::format("field {}: {} bytes expected at offset {}, {} left", name_, size,
                           position_, remaining());
      return false;
    }
    std::memcpy(data, bytes_.data() + position_, size);
    position_ += size;
    return true;
  }

 private:
  void Get(bool& value) {
    std::uint8_t byte = 0;
    if (!Raw(&byte, 1)) return;
    if (byte > 1) error_ = fmt::format("field {}: 0 or 1 expected, {} found", name_, byte);
    value = byte == 1;
  }
  template <Scalar T>
  void Get(T& value) {
    if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> raw = 0;
      if (!Raw(&raw, sizeof raw)) return;
      if (raw > kLastEnumerator<T>) {
        error_ =
            fmt::format("field {}: at most {} expected, {} found", name_, kLastEnumerator<T>, raw);
        return;
      }
      value = static_cast<T>(raw);
    } else {
      Raw(&value, sizeof value);
    }
  }
  bool GetSize(std::uint64_t* size) {
    if (!Raw(size, sizeof *size)) return false;
    // Every element takes at least one byte, so a larger count cannot be honest.
    if (*size > remaining()) {
      error_ =
          fmt::format("field {}: {} elements announced, {} bytes left", name_, *size, remaining());
      return false;
    }
    return true;
  }
  void Get(std::string& value) {
    std::uint64_t size = 0;
    if (!GetSize(&size)) return;
    value.resize(size);
    Raw(value.data(), size);
  }
  template <typename T>
  void Get(std::vector<T>& values) {
    std::uint64_t size = 0;
    if (!GetSize(&size)) return;
    values.clear();
    // Grown as elements arrive: a lying count must not allocate more than the input justifies.
    for (std::uint64_t i = 0; i < size && error_.empty(); ++i) Get(values.emplace_back());
  }
  template <typename T, std::size_t kSize>
  void Get(std::array<T, kSize>& values) {
    for (T& value : values) {
      if (error_.empty()) Get(value);
    }
  }
  template <typename T>
  requires std::is_class_v<T>
  void Get(T& value) { Fields(*this, value); }

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
  const char* name_ = "magic";
  std::string error_;
};

}  // namespace

std::vector<std::byte> Serialize(const Program& program) {
  Writer writer;
  writer.Raw(kMagic, sizeof kMagic);
  // Fields takes a mutable reference because the reader shares it; the writer only reads.
  Fields(writer, const_cast<Program&>(program));
  return writer.Take();
}

Result<Program> Deserialize(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  char magic[sizeof kMagic] = {};
  if (!reader.Raw(magic, sizeof magic) || std::memcmp(magic, kMagic, kVersionAt) != 0) {
    return Fail(ErrorCode::kBadProgram, "program file: does not begin as a Program does, with {}",
                std::string_view(kMagic, kVersionAt));
  }
  if (magic[kVersionAt] != kMagic[kVersionAt]) {
    return Fail(ErrorCode::kBadProgram, "program file: version {} expected, {} found",
                static_cast<int>(kMagic[kVersionAt]),
                static_cast<unsigned char>(magic[kVersionAt]));
  }
  Program program;
  Fields(reader, program);
  if (!reader.error().empty())
    return Fail(ErrorCode::kBadProgram, "program file: {}", reader.error());
  if (reader.remaining() != 0) {
    return Fail(ErrorCode::kBadProgram, "program file: {} bytes after the end of the Program",
                reader.remaining());
  }
  return program;
}

std::string ContentHash(const Program& program) {
  const std::vector<std::byte> bytes = Serialize(program);
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace megalith::program
