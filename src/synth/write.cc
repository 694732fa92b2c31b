#include "synth/write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/units.h"

namespace megalith::synth {
namespace {

namespace fs = std::filesystem;

/// What a thread makes at a time: large enough for a system call to cost nothing, small enough to
/// stay in cache between making and copying.
constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
/// Left for the file system's own bookkeeping.
constexpr std::uint64_t kSpareBytes = std::uint64_t{1} << 20;

constexpr char kConfigName[] = "config.json";
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr char kDrafterFolder[] = "dspark";
constexpr std::string_view kUnfinished = ".part";

class OpenFile {
 public:
  OpenFile() = default;
  OpenFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  OpenFile(OpenFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  static Result<OpenFile> Create(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) return SystemError(path, "cannot be created");
    return OpenFile(descriptor, path);
  }

  /// Takes the space now, where the file system can, so that a full disk shows at once.
  Status Reserve(std::uint64_t bytes) const {
    while (::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) != 0) {
      if (errno == EINTR) continue;
      if (errno == EOPNOTSUPP || errno == ENOSYS) return {};
      return SystemError(path_, fmt::format("{} bytes cannot be reserved", bytes));
    }
    return {};
  }

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) const {
    return WriteFully(descriptor_, path_, offset, bytes);
  }

  /// Onto the medium, and closed.
  Status Finish() {
    if (::fdatasync(descriptor_) != 0) return SystemError(path_, "cannot be written to the disk");
    if (::close(std::exchange(descriptor_, -1)) != 0) {
      return SystemError(path_, "cannot be written in full");
    }
    return {};
  }

 private:
  int descriptor_ = -1;
  std::string path_;
};

bool IsShardName(std::string_view name) {
  if (name.ends_with(kUnfinished)) name.remove_suffix(kUnfinished.size());
  return name == kSingleName || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

/// Takes config, index and shards away.
Status RemoveCheckpoint(const std::string& directory) {
  std::vector<fs::path> old;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string file = entry.path().filename().string();
    std::string_view name = file;
    const bool is_shard = IsShardName(name);
    if (name.ends_with(kUnfinished)) name.remove_suffix(kUnfinished.size());
    if (is_shard || name == kConfigName || name == kIndexName) old.push_back(entry.path());
  }
  // The config first: what is left by a failure on the way is no checkpoint.
  std::stable_partition(old.begin(), old.end(),
                        [](const fs::path& file) { return file.filename() == kConfigName; });
  for (const fs::path& file : old) {
    if (!error) fs::remove(file, error);
    if (error) return Fail(ErrorCode::kIo, "{}: {}", file.string(), error.message());
  }
  if (error) return Fail(ErrorCode::kIo, "{}: {}", directory, error.message());
  return {};
}

/// The folder a checkpoint is written into, and what has been put there so far. Unless kept, all of
/// it is removed again.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    if (kept_) return;
    std::error_code ignored;
    // Backwards: what makes it look like a checkpoint goes first.
    for (auto name = files_.rbegin(); name != files_.rend(); ++name) {
      fs::remove(fs::path(path_) / *name, ignored);
    }
    if (created_) fs::remove(path_, ignored);
  }

  Status Prepare(bool replace) {
    std::error_code error;
    const fs::file_status status = fs::status(path_, error);
    if (status.type() == fs::file_type::not_found) {
      if (::mkdir(path_.c_str(), 0777) != 0) return SystemError(path_, "cannot be created");
      created_ = true;
      return {};
    }
    if (status.type() != fs::file_type::directory) {
      return Fail(ErrorCode::kUsage, "{}: a folder or nothing expected, a file found", path_);
    }
    const bool empty = fs::is_empty(path_, error);
    if (error) return Fail(ErrorCode::kIo, "{}: cannot be read: {}", path_, error.message());
    if (empty) return {};
    if (!replace) {
      return Fail(ErrorCode::kUsage,
                  "{}: the folder is not empty; --force replaces the checkpoint in it", path_);
    }
    MEGALITH_RETURN_IF_ERROR(RemoveCheckpoint(path_));
    const std::string drafter = File(kDrafterFolder);
    if (!fs::is_directory(drafter, error)) return {};
    MEGALITH_RETURN_IF_ERROR(RemoveCheckpoint(drafter));
    // With other files in it, it stays.
    fs::remove(drafter, error);
    return {};
  }

  std::string File(std::string_view name) const { return (fs::path(path_) / name).string(); }

  Result<OpenFile> Create(const std::string& name) {
    MEGALITH_ASSIGN_OR_RETURN(OpenFile file, OpenFile::Create(File(name)));
    files_.push_back(name);
    return file;
  }

  Status Rename(const std::string& from, const std::string& to) {
    if (::rename(File(from).c_str(), File(to).c_str()) != 0) {
      return SystemError(File(from), fmt::format("cannot be renamed to {}", to));
    }
    std::replace(files_.begin(), files_.end(), from, to);
    return {};
  }

  /// A small file that appears complete.
  Status WriteWhole(const std::string& name, std::string_view text) {
    const std::string unfinished = name + std::string(kUnfinished);
    MEGALITH_ASSIGN_OR_RETURN(OpenFile file, Create(unfinished));
    MEGALITH_RETURN_IF_ERROR(file.WriteAt(0, std::as_bytes(std::span(text))));
    MEGALITH_RETURN_IF_ERROR(file.Finish());
    return Rename(unfinished, name);
  }

  /// The names onto the medium: files behind them are there already.
  Status SyncNames() const {
    const int descriptor = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return SystemError(path_, "cannot be opened");
    const OpenFile folder(descriptor, path_);
    // Some file systems have nothing to do here and say so.
    if (::fsync(descriptor) != 0 && errno != EINVAL) {
      return SystemError(path_, "cannot be written to the disk");
    }
    return {};
  }

  Status CheckSpace(std::uint64_t bytes) const {
    struct statvfs space {};
    if (::statvfs(path_.c_str(), &space) != 0) return SystemError(path_, "no file system");
    const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
    if (free >= bytes && free - bytes >= kSpareBytes) return {};
    return Fail(ErrorCode::kIo, "{}: the checkpoint needs {} ({} bytes), {} are free there", path_,
                FormatBytes(bytes), bytes, FormatBytes(free));
  }

  void Keep() { kept_ = true; }

 private:
  std::string path_;
  std::vector<std::string> files_;
  bool created_ = false;
  bool kept_ = false;
};

/// A shard on its way to the disk.
struct ShardFile {
  const PlannedShard* shard;
  OpenFile file;
};

/// Fills the data of all shards, by any number of threads.
class ShardFiller {
 public:
  ShardFiller(const std::vector<ShardFile>& shards, const WriteOptions& options)
      : shards_(shards), options_(options) {
    for (const ShardFile& shard : shards) {
      first_chunk_.push_back(num_chunks_);
      num_chunks_ += (shard.shard->data_bytes + kChunkBytes - 1) / kChunkBytes;
      total_bytes_ += shard.shard->data_bytes;
    }
  }

  Status Run() {
    std::vector<std::thread> threads;
    Report();
    for (int i = 1; i < options_.num_threads; ++i) {
      threads.emplace_back([this] { Work(false); });
    }
    Work(true);
    for (std::thread& thread : threads) thread.join();
    Report();
    return std::move(status_);
  }

 private:
  void Report() const {
    if (!options_.progress) return;
    options_.progress(
        {"write weights", done_bytes_.load(std::memory_order_relaxed), total_bytes_, true});
  }

  void Work(bool reports) {
    std::vector<std::byte> buffer(kChunkBytes);
    // Relaxed: chunks are independent; joining the threads publishes what they wrote.
    while (!stop_.load(std::memory_order_relaxed)) {
      const std::uint64_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= num_chunks_) return;
      Status status = CheckCancelled(options_.cancel, "synth");
      if (status) status = WriteChunk(chunk, &buffer);
      if (!status) {
        const std::scoped_lock lock(mutex_);
        if (status_) status_ = std::move(status);
        stop_.store(true, std::memory_order_relaxed);
        return;
      }
      if (reports) Report();
    }
  }

  Status WriteChunk(std::uint64_t chunk, std::vector<std::byte>* buffer) {
    const auto found = std::upper_bound(first_chunk_.begin(), first_chunk_.end(), chunk);
    const auto index = static_cast<std::size_t>(found - first_chunk_.begin()) - 1;
    const PlannedShard& shard = *shards_[index].shard;
    const std::uint64_t begin = (chunk - first_chunk_[index]) * kChunkBytes;
    const std::uint64_t end = std::min(begin + kChunkBytes, shard.data_bytes);
    auto tensor = std::partition_point(
        shard.tensors.begin(), shard.tensors.end(),
        [begin](const PlannedTensor& candidate) { return candidate.end <= begin; });
    const std::span<std::byte> out(buffer->data(), end - begin);
    for (std::uint64_t at = begin; at < end; ++tensor) {
      const std::uint64_t stop = std::min(tensor->end, end);
      tensor->fill.Write(at - tensor->begin, out.subspan(at - begin, stop - at));
      at = stop;
    }
    MEGALITH_RETURN_IF_ERROR(shards_[index].file.WriteAt(shard.header.size() + begin, out));
    done_bytes_.fetch_add(out.size(), std::memory_order_relaxed);
    return {};
  }

  const std::vector<ShardFile>& shards_;
  const WriteOptions& options_;
  std::vector<std::uint64_t> first_chunk_;  ///< [shards]
  std::uint64_t num_chunks_ = 0;
  std::uint64_t total_bytes_ = 0;
  std::atomic<std::uint64_t> next_chunk_{0};
  std::atomic<std::uint64_t> done_bytes_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  Status status_;  ///< the first failure; guarded by mutex_ while threads run
};

std::uint64_t AllBytes(const CheckpointPlan& plan) {
  return plan.file_bytes + plan.index_json.size() + plan.config_json.size();
}

/// Appends the plan's shards, with space and headers.
Status CreateShards(const CheckpointPlan& plan, Folder* folder, std::vector<ShardFile>* out) {
  for (const PlannedShard& shard : plan.shards) {
    MEGALITH_ASSIGN_OR_RETURN(OpenFile file,
                              folder->Create(shard.file_name + std::string(kUnfinished)));
    MEGALITH_RETURN_IF_ERROR(file.Reserve(shard.header.size() + shard.data_bytes));
    MEGALITH_RETURN_IF_ERROR(file.WriteAt(0, std::as_bytes(std::span(shard.header))));
    out->push_back({&shard, std::move(file)});
  }
  return {};
}

/// The shards are on the medium: gives them their names and makes the folder a checkpoint.
Status Publish(const CheckpointPlan& plan, Folder* folder) {
  for (const PlannedShard& shard : plan.shards) {
    MEGALITH_RETURN_IF_ERROR(
        folder->Rename(shard.file_name + std::string(kUnfinished), shard.file_name));
  }
  if (!plan.index_json.empty()) {
    MEGALITH_RETURN_IF_ERROR(folder->WriteWhole(kIndexName, plan.index_json));
  }
  MEGALITH_RETURN_IF_ERROR(folder->SyncNames());
  MEGALITH_RETURN_IF_ERROR(folder->WriteWhole(kConfigName, plan.config_json));
  return folder->SyncNames();
}

}  // namespace

Status WriteCheckpoint(const CheckpointPlan& plan, const std::string& directory,
                       const WriteOptions& options, const CheckpointPlan* drafter) {
  Folder folder(directory);
  MEGALITH_RETURN_IF_ERROR(folder.Prepare(options.replace));
  const std::uint64_t file_bytes = plan.file_bytes + (drafter ? drafter->file_bytes : 0);
  MEGALITH_RETURN_IF_ERROR(folder.CheckSpace(AllBytes(plan) + (drafter ? AllBytes(*drafter) : 0)));
  // Destroyed before `folder`, which can then be removed.
  Folder drafter_folder(folder.File(kDrafterFolder));
  if (drafter) MEGALITH_RETURN_IF_ERROR(drafter_folder.Prepare(options.replace));

  std::vector<ShardFile> shards;
  MEGALITH_RETURN_IF_ERROR(CreateShards(plan, &folder, &shards));
  if (drafter) MEGALITH_RETURN_IF_ERROR(CreateShards(*drafter, &drafter_folder, &shards));
  MEGALITH_RETURN_IF_ERROR(ShardFiller(shards, options).Run());

  std::uint64_t flushed = 0;
  for (ShardFile& shard : shards) {
    MEGALITH_RETURN_IF_ERROR(CheckCancelled(options.cancel, "synth"));
    MEGALITH_RETURN_IF_ERROR(shard.file.Finish());
    flushed += shard.shard->header.size() + shard.shard->data_bytes;
    if (options.progress) options.progress({"flush to disk", flushed, file_bytes, true});
  }
  // The model's config comes last of all.
  if (drafter) MEGALITH_RETURN_IF_ERROR(Publish(*drafter, &drafter_folder));
  MEGALITH_RETURN_IF_ERROR(Publish(plan, &folder));
  drafter_folder.Keep();
  folder.Keep();
  return {};
}

}  // namespace megalith::synth
