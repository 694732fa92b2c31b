#include "serve/replay_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/log.h"

namespace megalith::serve {
namespace {

constexpr std::string_view kMagic = "MEGAREPL";
constexpr std::size_t kSizesBytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

template <typename T>
T ReadValue(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void AppendValue(std::vector<std::byte>& bytes, const T& value) {
  const auto part = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), part.begin(), part.end());
}

std::uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

/// Bytes of the record that begins with `bytes`; 0 if there is no whole one.
std::size_t RecordBytes(std::span<const std::byte> bytes) {
  if (bytes.size() < kSizesBytes + kChecksumBytes) return 0;
  const std::uint64_t payload = std::uint64_t{ReadValue<std::uint32_t>(bytes, 0)} +
                                std::uint64_t{ReadValue<std::uint32_t>(bytes, 4)} * 4;
  if (payload > bytes.size() - kSizesBytes - kChecksumBytes) return 0;
  const auto checked = kSizesBytes + static_cast<std::size_t>(payload);
  if (ReadValue<std::uint64_t>(bytes, checked) != Checksum(bytes.first(checked))) return 0;
  return checked + kChecksumBytes;
}

}  // namespace

Result<std::unique_ptr<ReplayLog>> ReplayLog::Open(const std::string& path,
                                                   const Record& on_record) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return SystemError(path, "cannot be opened");
  std::unique_ptr<ReplayLog> log(new ReplayLog(path, descriptor));
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    return Fail(ErrorCode::kUsage, "{}: another process has it open", path);
  }
  MEGALITH_RETURN_IF_ERROR(log->Read(on_record));
  return log;
}

ReplayLog::~ReplayLog() { ::close(descriptor_); }

Status ReplayLog::Read(const Record& on_record) {
  MEGALITH_ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path_));
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size_bytes()));
  MEGALITH_RETURN_IF_ERROR(file.ReadAt(0, bytes));
  if (bytes.size() < kMagic.size() ||
      std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return Clear();
  }
  std::size_t done = kMagic.size();
  while (const std::size_t size = RecordBytes(std::span(bytes).subspan(done))) {
    const auto record = std::span(bytes).subspan(done, size);
    const auto key_bytes = std::size_t{ReadValue<std::uint32_t>(record, 0)};
    std::string key(reinterpret_cast<const char*>(record.data()) + kSizesBytes, key_bytes);
    std::vector<text::TokenId> ids(ReadValue<std::uint32_t>(record, 4));
    std::memcpy(ids.data(), record.data() + kSizesBytes + key_bytes, ids.size() * 4);
    on_record(std::move(key), std::move(ids));
    done += size;
  }
  num_bytes_ = done;
  if (done == bytes.size()) return {};
  LogFormat(LogLevel::kWarning, "{}: the last {} bytes are no whole record and are cut off", path_,
            bytes.size() - done);
  return Truncate(done);
}

Status ReplayLog::Clear() {
  MEGALITH_RETURN_IF_ERROR(Truncate(0));
  MEGALITH_RETURN_IF_ERROR(WriteFully(descriptor_, path_, 0, std::as_bytes(std::span(kMagic))));
  num_bytes_ = kMagic.size();
  return {};
}

Status ReplayLog::Truncate(std::uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0) return {};
  return SystemError(path_, "cannot be cut");
}

Status ReplayLog::Append(std::string_view key, std::span<const text::TokenId> ids) {
  std::vector<std::byte> record;
  AppendValue(record, static_cast<std::uint32_t>(key.size()));
  AppendValue(record, static_cast<std::uint32_t>(ids.size()));
  for (const auto part : {std::as_bytes(std::span(key)), std::as_bytes(ids)}) {
    record.insert(record.end(), part.begin(), part.end());
  }
  AppendValue(record, Checksum(record));
  const Status status = WriteFully(descriptor_, path_, num_bytes_, record);
  if (!status) {
    static_cast<void>(Truncate(num_bytes_));
    return status;
  }
  num_bytes_ += record.size();
  return {};
}

}  // namespace megalith::serve
