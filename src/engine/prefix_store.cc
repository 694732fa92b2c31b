#include "engine/prefix_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/log.h"
#include "engine/prefix_file.h"

namespace megalith::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".prefix";
/// Snapshots that may wait to be written: each keeps memory.
constexpr std::size_t kMaxJobs = 8;

std::string NameOf(std::span<const std::int32_t> tokens) {
  const XXH128_hash_t hash = XXH3_128bits(tokens.data(), tokens.size_bytes());
  return fmt::format("{:016x}{:016x}{}", hash.high64, hash.low64, kSuffix);
}

/// The files of the folder, the one that was changed or used first at the front.
Result<std::vector<fs::path>> ListFiles(const std::string& folder) {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    if (entry->path().extension() == kPartSuffix) RemoveAbandonedPart(entry->path().string());
    if (entry->path().extension() != kSuffix) continue;
    files.emplace_back(fs::last_write_time(entry->path(), gone), entry->path());
  }
  if (error) return Fail(ErrorCode::kIo, "{}: {}", folder, error.message());
  std::sort(files.begin(), files.end());
  std::vector<fs::path> paths;
  for (auto& [time, path] : files) paths.push_back(std::move(path));
  return paths;
}

void TouchFile(const std::string& path) {
  static_cast<void>(::utimensat(AT_FDCWD, path.c_str(), nullptr, 0));
}

}  // namespace

Result<std::unique_ptr<PrefixStore>> PrefixStore::Open(const PrefixStoreOptions& options) {
  const std::string folder = (fs::path(options.directory) / options.identity).string();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Fail(ErrorCode::kIo, "{}: {}", folder, error.message());
  // What is in it is what people wrote.
  fs::permissions(folder, fs::perms::owner_all, error);
  std::unique_ptr<PrefixStore> store(new PrefixStore(options, folder));
  MEGALITH_RETURN_IF_ERROR(store->Scan());
  store->thread_ = std::thread([self = store.get()] { self->Loop(); });
  return store;
}

PrefixStore::~PrefixStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status PrefixStore::Scan() {
  MEGALITH_ASSIGN_OR_RETURN(const auto paths, ListFiles(folder_));
  for (const fs::path& path : paths) {
    const auto file = RandomAccessFile::Open(path.string());
    if (!file) continue;  // somebody else's business
    auto tokens = ReadPrefixTokens(*file, static_cast<std::uint64_t>(options_.max_positions));
    if (!tokens) {
      // One that is too long for this context is good for another time.
      if (tokens.error().code != ErrorCode::kBadFile) continue;
      LogFormat(LogLevel::kWarning, "prefix store: {}: taken away", tokens.error().message);
      ::unlink(path.c_str());
      continue;
    }
    if (index_.Find(*tokens)) continue;
    const auto bytes = static_cast<std::int64_t>(file->size_bytes());
    files_[index_.Add(std::move(*tokens))] = {path.string(), bytes, ++clock_};
    bytes_ += bytes;
  }
  MakeRoom(0);
  LogFormat(LogLevel::kInfo, "prefix store {}: {} snapshots, {} bytes", folder_, files_.size(),
            bytes_);
  return {};
}

std::size_t PrefixStore::FindLongest(std::span<const std::int32_t> prompt) const {
  const std::lock_guard lock(mutex_);
  const auto id = index_.FindLongest(prompt);
  return id ? index_.tokens(*id).size() : 0;
}

Result<std::shared_ptr<const exec::Snapshot>> PrefixStore::Read(
    std::span<const std::int32_t> tokens, exec::Executor& executor) {
  PrefixIndex::Id id = 0;
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    const auto found = index_.Find(tokens);
    if (!found) {
      return Fail(ErrorCode::kNotFound, "no snapshot of these {} tokens", tokens.size());
    }
    id = *found;
    File& file = files_.at(id);
    file.last_use = ++clock_;
    path = file.path;
  }
  MEGALITH_ASSIGN_OR_RETURN(std::shared_ptr<exec::Snapshot> snapshot,
                            executor.NewSnapshot(static_cast<std::int32_t>(tokens.size())));
  const Status status = RandomAccessFile::Open(path).and_then([&](const RandomAccessFile& file) {
    return ReadPrefixContents(file, static_cast<std::uint64_t>(options_.max_positions), *snapshot);
  });
  if (!status) {
    LogFormat(LogLevel::kWarning, "prefix store: {}: taken away", status.error().message);
    ::unlink(path.c_str());
    const std::lock_guard lock(mutex_);
    Forget(id);
    return tl::unexpected(status.error());
  }
  TouchFile(path);
  return snapshot;
}

void PrefixStore::Write(std::span<const std::int32_t> tokens,
                        std::shared_ptr<const exec::Snapshot> snapshot) {
  const std::lock_guard lock(mutex_);
  const auto is_same = [tokens](const Job& job) { return std::ranges::equal(job.tokens, tokens); };
  if (jobs_.size() >= kMaxJobs || index_.Find(tokens) || std::ranges::any_of(jobs_, is_same)) {
    return;
  }
  jobs_.push_back({{tokens.begin(), tokens.end()}, std::move(snapshot)});
  wake_.notify_all();
}

void PrefixStore::ReleaseWritten() {
  std::vector<Job> written;
  const std::lock_guard lock(mutex_);
  written.swap(written_);
}

std::int64_t PrefixStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::size_t PrefixStore::size() const {
  const std::lock_guard lock(mutex_);
  return files_.size();
}

void PrefixStore::Loop() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = jobs_.front();  // stays there until it is written, so that it is not written twice
    }
    WriteOne(job);
    const std::lock_guard lock(mutex_);
    jobs_.pop_front();
    written_.push_back(std::move(job));
  }
}

void PrefixStore::WriteOne(const Job& job) {
  const auto bytes = static_cast<std::int64_t>(PrefixFileBytes(job.tokens, *job.snapshot));
  if (bytes > options_.limit_bytes) return;
  {
    const std::lock_guard lock(mutex_);
    MakeRoom(bytes);
  }
  const std::string path = (fs::path(folder_) / NameOf(job.tokens)).string();
  if (const Status status = WritePrefixFile(path, job.tokens, *job.snapshot); !status) {
    LogFormat(LogLevel::kWarning, "prefix store: {}", status.error().message);
    return;
  }
  const std::lock_guard lock(mutex_);
  files_[index_.Add(job.tokens)] = {path, bytes, ++clock_};
  bytes_ += bytes;
}

/// Takes the least recently used files away until `bytes` more fit. Under mutex_.
void PrefixStore::MakeRoom(std::int64_t bytes) {
  while (!files_.empty() && bytes_ + bytes > options_.limit_bytes) {
    const auto oldest = std::min_element(
        files_.begin(), files_.end(),
        [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
    ::unlink(oldest->second.path.c_str());
    Forget(oldest->first);
  }
}

/// Under mutex_.
void PrefixStore::Forget(PrefixIndex::Id id) {
  const auto found = files_.find(id);
  if (found == files_.end()) return;
  bytes_ -= found->second.bytes;
  files_.erase(found);
  index_.Remove(id);
}

}  // namespace megalith::engine
