#include "engine/prefix_file.h"

#include <xxhash.h>

#include <cstring>

#include "base/atomic_file.h"

namespace megalith::engine {
namespace {

constexpr char kMagic[8] = {'M', 'E', 'G', 'A', 'P', 'R', 'E', 'F'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);
constexpr std::size_t kChecksumOffset = kPrefixHeadBytes - kChecksumBytes;

template <typename T>
T ReadValue(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void WriteValue(std::span<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

class Hash {
 public:
  Hash() : state_(XXH3_createState()) { XXH3_64bits_reset(state_); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  ~Hash() { XXH3_freeState(state_); }
  void Add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(state_, bytes.data(), bytes.size());
  }
  std::uint64_t Take() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* state_;
};

std::uint64_t HeadChecksum(std::span<const std::byte> head, std::span<const std::int32_t> tokens) {
  Hash hash;
  hash.Add(head.first(kChecksumOffset));
  hash.Add(std::as_bytes(tokens));
  return hash.Take();
}

std::uint64_t ContentBytes(const exec::Snapshot& snapshot) {
  std::uint64_t bytes = 0;
  for (const auto& part : snapshot.Contents()) bytes += part.size();
  return bytes;
}

std::uint64_t FileBytes(std::uint64_t num_tokens, std::uint64_t content_bytes) {
  return kPrefixHeadBytes + num_tokens * sizeof(std::int32_t) + content_bytes + kChecksumBytes;
}

Result<std::vector<std::byte>> ReadHead(const RandomAccessFile& file) {
  if (file.size_bytes() < kPrefixHeadBytes) {
    return Fail(ErrorCode::kBadFile, "{}: {} bytes, at least {} expected", file.path(),
                file.size_bytes(), kPrefixHeadBytes);
  }
  std::vector<std::byte> head(kPrefixHeadBytes);
  MEGALITH_RETURN_IF_ERROR(file.ReadAt(0, head));
  return head;
}

}  // namespace

Result<PrefixFileHead> ParsePrefixHead(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                       std::uint64_t max_tokens) {
  if (bytes.size() < kPrefixHeadBytes || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return Fail(ErrorCode::kBadFile, "no stored prefix");
  }
  const auto version = ReadValue<std::uint32_t>(bytes, 8);
  if (version != kVersion || ReadValue<std::uint32_t>(bytes, 12) != 0) {
    return Fail(ErrorCode::kBadFile, "stored prefix of version {}, {} expected", version, kVersion);
  }
  PrefixFileHead head;
  head.num_tokens = ReadValue<std::uint64_t>(bytes, 16);
  head.content_bytes = ReadValue<std::uint64_t>(bytes, 24);
  head.checksum = ReadValue<std::uint64_t>(bytes, kChecksumOffset);
  // Each by itself first, so that nothing overflows.
  if (head.num_tokens == 0 || head.num_tokens > file_bytes || head.content_bytes > file_bytes ||
      FileBytes(head.num_tokens, head.content_bytes) != file_bytes) {
    return Fail(ErrorCode::kBadFile, "{} tokens and {} bytes of state in a file of {} bytes",
                head.num_tokens, head.content_bytes, file_bytes);
  }
  if (head.num_tokens > max_tokens) {
    return Fail(ErrorCode::kOutOfRange, "stored prefix of {} tokens, at most {} expected",
                head.num_tokens, max_tokens);
  }
  return head;
}

Result<std::vector<std::int32_t>> ReadPrefixTokens(const RandomAccessFile& file,
                                                   std::uint64_t max_tokens) {
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ReadHead(file));
  const auto head = ParsePrefixHead(bytes, file.size_bytes(), max_tokens);
  if (!head) return Fail(head.error().code, "{}: {}", file.path(), head.error().message);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(head->num_tokens));
  MEGALITH_RETURN_IF_ERROR(
      file.ReadAt(kPrefixHeadBytes, std::as_writable_bytes(std::span(tokens))));
  if (HeadChecksum(bytes, tokens) != head->checksum) {
    return Fail(ErrorCode::kBadFile, "{}: the tokens are damaged", file.path());
  }
  return tokens;
}

Status ReadPrefixContents(const RandomAccessFile& file, std::uint64_t max_tokens,
                          exec::Snapshot& snapshot) {
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ReadHead(file));
  const auto head = ParsePrefixHead(bytes, file.size_bytes(), max_tokens);
  if (!head) return Fail(head.error().code, "{}: {}", file.path(), head.error().message);
  if (head->num_tokens != static_cast<std::uint64_t>(snapshot.length()) ||
      head->content_bytes != ContentBytes(snapshot)) {
    return Fail(ErrorCode::kBadFile, "{}: {} tokens in {} bytes of state, {} in {} expected",
                file.path(), head->num_tokens, head->content_bytes, snapshot.length(),
                ContentBytes(snapshot));
  }
  std::uint64_t offset = kPrefixHeadBytes + head->num_tokens * sizeof(std::int32_t);
  Hash hash;
  for (const std::span<std::byte> part : snapshot.MutableContents()) {
    MEGALITH_RETURN_IF_ERROR(file.ReadAt(offset, part));
    hash.Add(part);
    offset += part.size();
  }
  std::uint64_t checksum = 0;
  MEGALITH_RETURN_IF_ERROR(file.ReadAt(offset, std::as_writable_bytes(std::span(&checksum, 1))));
  if (hash.Take() == checksum) return {};
  return Fail(ErrorCode::kBadFile, "{}: the state is damaged", file.path());
}

std::uint64_t PrefixFileBytes(std::span<const std::int32_t> tokens,
                              const exec::Snapshot& snapshot) {
  return FileBytes(tokens.size(), ContentBytes(snapshot));
}

Status WritePrefixFile(const std::string& path, std::span<const std::int32_t> tokens,
                       const exec::Snapshot& snapshot) {
  std::vector<std::byte> head(kPrefixHeadBytes);
  std::memcpy(head.data(), kMagic, sizeof(kMagic));
  WriteValue<std::uint32_t>(head, 8, kVersion);
  WriteValue<std::uint64_t>(head, 16, tokens.size());
  WriteValue<std::uint64_t>(head, 24, ContentBytes(snapshot));
  WriteValue(head, kChecksumOffset, HeadChecksum(head, tokens));

  AtomicFile file(path);
  MEGALITH_RETURN_IF_ERROR(file.Create(PrefixFileBytes(tokens, snapshot)));
  MEGALITH_RETURN_IF_ERROR(file.WriteAt(0, head));
  MEGALITH_RETURN_IF_ERROR(file.WriteAt(kPrefixHeadBytes, std::as_bytes(tokens)));
  std::uint64_t offset = kPrefixHeadBytes + tokens.size_bytes();
  Hash hash;
  for (const std::span<const std::byte> part : snapshot.Contents()) {
    MEGALITH_RETURN_IF_ERROR(file.WriteAt(offset, part));
    hash.Add(part);
    offset += part.size();
  }
  const std::uint64_t checksum = hash.Take();
  MEGALITH_RETURN_IF_ERROR(file.WriteAt(offset, std::as_bytes(std::span(&checksum, 1))));
  return file.Commit();
}

}  // namespace megalith::engine
