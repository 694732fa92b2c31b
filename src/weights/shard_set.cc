#include "weights/shard_set.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/file.h"
#include "weights/quote.h"
#include "weights/safetensors.h"
#include "weights/shard_index.h"

namespace megalith::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
// A full K3 index is 58 MB.
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMaxListed = 8;

struct Shard {
  std::string name;
  std::string path;
  std::optional<RandomAccessFile> file;
  TensorHeader header;
  std::vector<std::string> prefixed_names;  ///< empty: the folder has no prefix
  std::size_t first_tensor = 0;
  // The map is made by the first thread that asks; after that both members are constant.
  std::once_flag map_once;
  Status map_status;
  std::optional<MappedFile> map;
  std::atomic<bool> is_mapped{
      false};  ///< release after `map` is set: it may be used without the flag

  std::string_view NameOf(std::size_t tensor) const {
    return prefixed_names.empty() ? header.At(tensor).name : prefixed_names[tensor];
  }
};

/// Open addressing over tensor indices: 8 bytes a tensor, names stay where they are.
class NameTable {
 public:
  explicit NameTable(std::size_t count) {
    std::size_t size = 16;
    while (size < 2 * count) size *= 2;
    slots_.assign(size, kEmpty);
  }

  /// The index stored under this name, or kEmpty after storing `index`.
  template <typename NameOf>
  std::uint32_t Insert(std::string_view name, std::uint32_t index, NameOf name_of) {
    std::uint32_t& slot = slots_[Locate(name, name_of)];
    if (slot != kEmpty) return slot;
    slot = index;
    return kEmpty;
  }

  template <typename NameOf>
  std::uint32_t Find(std::string_view name, NameOf name_of) const {
    return slots_[Locate(name, name_of)];
  }

  static constexpr std::uint32_t kEmpty = std::numeric_limits<std::uint32_t>::max();

 private:
  template <typename NameOf>
  std::size_t Locate(std::string_view name, NameOf name_of) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = std::hash<std::string_view>()(name) & mask;
    while (slots_[at] != kEmpty && name_of(slots_[at]) != name) at = (at + 1) & mask;
    return at;
  }

  std::vector<std::uint32_t> slots_;
};

std::string JoinPath(const std::string& directory, std::string_view name) {
  return (fs::path(directory) / name).string();
}

/// Names of *.safetensors files, for the message that says what is there instead.
std::string ListShardFiles(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") names.push_back(it->path().filename().string());
  }
  if (names.empty()) return "no .safetensors file is there";
  std::sort(names.begin(), names.end());
  std::string text = fmt::format("{} other .safetensors files are there: ", names.size());
  for (std::size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", Quote(names[i]));
  }
  if (names.size() > kMaxListed) text += ", ...";
  return text;
}

Status OpenShard(const std::string& name_prefix, Shard* shard) {
  MEGALITH_ASSIGN_OR_RETURN(shard->file, RandomAccessFile::Open(shard->path));
  MEGALITH_ASSIGN_OR_RETURN(shard->header, TensorHeader::Read(*shard->file));
  if (name_prefix.empty()) return {};
  for (std::size_t i = 0; i < shard->header.num_tensors(); ++i) {
    shard->prefixed_names.push_back(name_prefix + std::string(shard->header.At(i).name));
  }
  return {};
}

/// All headers, by two threads; every bad shard is named, not only the first.
Status OpenShards(const std::string& name_prefix, std::span<const std::unique_ptr<Shard>> shards) {
  std::vector<Status> results(shards.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < shards.size(); i = next.fetch_add(1)) {
      results[i] = OpenShard(name_prefix, shards[i].get());
    }
  };
  std::thread helper;
  if (shards.size() > 1) {
    try {
      helper = std::thread(work);
    } catch (const std::system_error&) {
      // No thread to be had: one is enough.
    }
  }
  work();
  if (helper.joinable()) helper.join();

  std::optional<Error> first;
  std::size_t num_bad = 0;
  for (const Status& result : results) {
    if (result) continue;
    if (++num_bad == 1) {
      first = result.error();
    } else if (num_bad <= kMaxListed) {
      first->message += "; " + result.error().message;
    }
  }
  if (!first) return {};
  if (num_bad > 1) {
    first->message = fmt::format("{} of {} shards cannot be used: {}{}", num_bad, shards.size(),
                                 first->message, num_bad > kMaxListed ? "; ..." : "");
  }
  return tl::unexpected<Error>(std::move(*first));
}

}  // namespace

/// The shards and tensors of one folder are consecutive.
struct ShardSet::State {
  struct Folder {
    std::string directory;
    std::string name_prefix;
    std::size_t first_shard = 0;
    std::size_t first_tensor = 0;
    std::optional<ShardIndex> index;  // until it is applied
  };

  std::vector<Folder> folders;
  std::vector<std::unique_ptr<Shard>> shards;
  std::size_t num_tensors = 0;
  std::optional<NameTable> table;
  std::vector<bool> unlisted;  // empty: no folder has an index file
  std::vector<std::string> warnings;

  std::size_t ShardOf(std::size_t index) const {
    const auto after = std::upper_bound(
        shards.begin(), shards.end(), index,
        [](std::size_t value, const auto& shard) { return value < shard->first_tensor; });
    return static_cast<std::size_t>(after - shards.begin()) - 1;
  }
  std::string_view NameOf(std::size_t index) const {
    const Shard& shard = *shards[ShardOf(index)];
    return shard.NameOf(index - shard.first_tensor);
  }
  std::size_t FirstShardBehind(std::size_t folder) const {
    return folder + 1 < folders.size() ? folders[folder + 1].first_shard : shards.size();
  }
  std::size_t FirstTensorBehind(std::size_t folder) const {
    return folder + 1 < folders.size() ? folders[folder + 1].first_tensor : num_tensors;
  }

  Status OpenFolder(const ShardFolder& folder);
  Status BuildTable();
  Status ApplyIndex(std::size_t folder);
  Result<const Shard*> CheckView(const TensorView& view) const;
};

Status ShardSet::State::OpenFolder(const ShardFolder& folder) {
  const std::string& directory = folder.directory;
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return Fail(ErrorCode::kNotFound, "{}: a directory expected{}", directory,
                error ? ": " + error.message() : std::string());
  }
  Folder& added = folders.emplace_back();
  added.directory = directory;
  added.name_prefix = folder.name_prefix;
  added.first_shard = shards.size();
  added.first_tensor = num_tensors;
  const std::string index_path = JoinPath(directory, kIndexName);
  if (!IsAbsent(index_path)) {
    MEGALITH_ASSIGN_OR_RETURN(std::string json, ReadTextFile(index_path, kMaxIndexBytes));
    MEGALITH_ASSIGN_OR_RETURN(added.index, ParseShardIndex(std::move(json), index_path));
    MEGALITH_RETURN_IF_ERROR(CheckShardsExist(directory, *added.index));
  } else if (IsAbsent(JoinPath(directory, kSingleName))) {
    return Fail(ErrorCode::kNotFound, "{}: neither {} nor {} found; {}", directory, kIndexName,
                kSingleName, ListShardFiles(directory));
  }
  const std::vector<std::string> names =
      added.index ? added.index->shard_names : std::vector<std::string>{std::string(kSingleName)};
  for (const std::string& name : names) {
    Shard& shard = *shards.emplace_back(std::make_unique<Shard>());
    shard.name = name;
    shard.path = JoinPath(directory, name);
  }
  MEGALITH_RETURN_IF_ERROR(
      OpenShards(folder.name_prefix, std::span(shards).subspan(added.first_shard)));
  for (std::size_t i = added.first_shard; i < shards.size(); ++i) {
    shards[i]->first_tensor = num_tensors;
    num_tensors += shards[i]->header.num_tensors();
  }
  return {};
}

Status ShardSet::State::BuildTable() {
  if (num_tensors >= NameTable::kEmpty) {
    return Fail(ErrorCode::kUnsupported, "{}: {} tensors are too many", folders.front().directory,
                num_tensors);
  }
  table.emplace(num_tensors);
  const auto name_of = [&](std::uint32_t index) { return NameOf(index); };
  for (std::size_t i = 0; i < num_tensors; ++i) {
    const std::string_view name = NameOf(i);
    const std::uint32_t other = table->Insert(name, static_cast<std::uint32_t>(i), name_of);
    if (other != NameTable::kEmpty) {
      return Fail(ErrorCode::kBadFile, "tensor {} is in {} and in {}", Quote(name),
                  shards[ShardOf(other)]->path, shards[ShardOf(i)]->path);
    }
  }
  return {};
}

Status ShardSet::State::ApplyIndex(std::size_t folder) {
  const Folder& f = folders[folder];
  const ShardIndex& index = *f.index;
  const std::size_t first = f.first_tensor;
  const std::size_t last = FirstTensorBehind(folder);
  unlisted.resize(num_tensors, false);
  std::fill(unlisted.begin() + static_cast<std::ptrdiff_t>(first),
            unlisted.begin() + static_cast<std::ptrdiff_t>(last), true);
  std::size_t num_wrong = 0;
  std::string wrong;
  const auto name_of = [&](std::uint32_t id) { return NameOf(id); };
  std::string prefixed;
  for (const auto& [name, shard] : index.weight_map) {
    prefixed.assign(f.name_prefix).append(name);
    const std::uint32_t id = table->Find(prefixed, name_of);
    std::string problem;
    if (id == NameTable::kEmpty || ShardOf(id) != f.first_shard + shard) {
      problem = fmt::format("{} is not in {}", Quote(name), index.shard_names[shard]);
      if (id != NameTable::kEmpty) problem += fmt::format(" but in {}", shards[ShardOf(id)]->name);
    } else if (!unlisted[id]) {
      problem = fmt::format("{} is listed twice", Quote(name));
    } else {
      unlisted[id] = false;
      continue;
    }
    if (++num_wrong <= kMaxListed) wrong += (num_wrong == 1 ? "" : "; ") + problem;
  }
  if (num_wrong > 0) {
    return Fail(ErrorCode::kBadFile, "{}: {} entries of {} are wrong: {}{}", f.directory, num_wrong,
                kIndexName, wrong, num_wrong > kMaxListed ? "; ..." : "");
  }
  const std::string source =
      folder == 0 ? std::string(kIndexName) : JoinPath(f.directory, kIndexName);
  std::uint64_t total_bytes = 0;
  for (std::size_t i = f.first_shard; i < FirstShardBehind(folder); ++i) {
    total_bytes += shards[i]->header.tensor_bytes();
  }
  if (index.total_size && *index.total_size != total_bytes) {
    warnings.push_back(fmt::format("{}: metadata.total_size is {}, the shards hold {} bytes",
                                   source, *index.total_size, total_bytes));
  }
  std::size_t num_unlisted = 0;
  std::size_t first_unlisted = last;
  for (std::size_t id = last; id-- > first;) {
    if (!unlisted[id]) continue;
    ++num_unlisted;
    first_unlisted = id;
  }
  if (num_unlisted > 0) {
    warnings.push_back(fmt::format("{}: {} tensors of the shards are not listed, first {} in {}",
                                   source, num_unlisted,
                                   Quote(NameOf(first_unlisted).substr(f.name_prefix.size())),
                                   shards[ShardOf(first_unlisted)]->name));
  }
  return {};
}

Result<const Shard*> ShardSet::State::CheckView(const TensorView& view) const {
  if (view.shard >= shards.size()) {
    return Fail(ErrorCode::kUsage, "{}: shard {} of {}", folders.front().directory, view.shard,
                shards.size());
  }
  const Shard& shard = *shards[view.shard];
  const std::uint64_t size = shard.file->size_bytes();
  if (view.file_offset > size || view.num_bytes > size - view.file_offset) {
    return Fail(ErrorCode::kUsage, "{}: bytes [{}, +{}) are outside the file", shard.file->path(),
                view.file_offset, view.num_bytes);
  }
  return &shard;
}

ShardSet::ShardSet(std::unique_ptr<State> state) : state_(std::move(state)) {}
ShardSet::ShardSet(ShardSet&&) noexcept = default;
ShardSet& ShardSet::operator=(ShardSet&&) noexcept = default;
ShardSet::~ShardSet() = default;

Result<ShardSet> ShardSet::Open(std::span<const ShardFolder> folders) {
  if (folders.empty()) return Fail(ErrorCode::kUsage, "a set of shards of no directory");
  auto state = std::make_unique<State>();
  for (const ShardFolder& folder : folders) {
    MEGALITH_RETURN_IF_ERROR(state->OpenFolder(folder));
  }
  MEGALITH_RETURN_IF_ERROR(state->BuildTable());
  for (std::size_t i = 0; i < folders.size(); ++i) {
    if (!state->folders[i].index) continue;
    MEGALITH_RETURN_IF_ERROR(state->ApplyIndex(i));
    state->folders[i].index.reset();
  }
  return ShardSet(std::move(state));
}

Result<ShardSet> ShardSet::Open(const std::string& directory) {
  const ShardFolder folder{directory, {}};
  return Open(std::span(&folder, 1));
}

std::size_t ShardSet::num_tensors() const { return state_->num_tensors; }

TensorView ShardSet::At(std::size_t index) const {
  const std::size_t shard_index = state_->ShardOf(index);
  const Shard& shard = *state_->shards[shard_index];
  const HeaderEntry entry = shard.header.At(index - shard.first_tensor);
  TensorView view;
  view.name = shard.NameOf(index - shard.first_tensor);
  view.dtype = entry.dtype;
  view.shape = entry.shape;
  view.shard = static_cast<std::uint32_t>(shard_index);
  view.file_offset = shard.header.data_offset() + entry.begin;
  view.num_bytes = entry.end - entry.begin;
  return view;
}

std::optional<std::size_t> ShardSet::Find(std::string_view name) const {
  const std::uint32_t id =
      state_->table->Find(name, [&](std::uint32_t index) { return state_->NameOf(index); });
  if (id == NameTable::kEmpty) return std::nullopt;
  return id;
}

bool ShardSet::IsIndexed(std::size_t index) const {
  return state_->unlisted.empty() || !state_->unlisted[index];
}

std::pair<std::size_t, std::size_t> ShardSet::FolderTensors(std::size_t folder) const {
  return {state_->folders[folder].first_tensor, state_->FirstTensorBehind(folder)};
}

std::pair<std::size_t, std::size_t> ShardSet::FolderShards(std::size_t folder) const {
  return {state_->folders[folder].first_shard, state_->FirstShardBehind(folder)};
}

const std::vector<std::string>& ShardSet::warnings() const { return state_->warnings; }
std::size_t ShardSet::num_shards() const { return state_->shards.size(); }
const std::string& ShardSet::ShardPath(std::size_t shard) const {
  return state_->shards[shard]->path;
}
std::string_view ShardSet::ShardName(std::size_t shard) const {
  return state_->shards[shard]->name;
}
std::uint64_t ShardSet::ShardBytes(std::size_t shard) const {
  return state_->shards[shard]->file->size_bytes();
}

Status ShardSet::Read(const TensorView& view, std::span<std::byte> destination) const {
  if (destination.size() != view.num_bytes) {
    return Fail(ErrorCode::kUsage, "{}: room for {} bytes given, the tensor has {}",
                Quote(view.name), destination.size(), view.num_bytes);
  }
  return ReadRange(view, 0, destination);
}

Status ShardSet::ReadRange(const TensorView& view, std::uint64_t offset,
                           std::span<std::byte> destination) const {
  MEGALITH_ASSIGN_OR_RETURN(const Shard* shard, state_->CheckView(view));
  if (offset > view.num_bytes || destination.size() > view.num_bytes - offset) {
    return Fail(ErrorCode::kUsage, "{}: bytes [{}, +{}) of {}", Quote(view.name), offset,
                destination.size(), view.num_bytes);
  }
  return shard->file->ReadAt(view.file_offset + offset, destination);
}

Result<std::span<const std::byte>> ShardSet::Map(const TensorView& view) const {
  MEGALITH_RETURN_IF_ERROR(state_->CheckView(view));
  Shard& shard = *state_->shards[view.shard];
  std::call_once(shard.map_once, [&shard] {
    auto map = MappedFile::Map(*shard.file);
    if (map) {
      shard.map = std::move(*map);
      shard.is_mapped.store(true, std::memory_order_release);
    } else {
      shard.map_status = tl::unexpected<Error>(map.error());
    }
  });
  MEGALITH_RETURN_IF_ERROR(Status(shard.map_status));
  return shard.map->bytes().subspan(static_cast<std::size_t>(view.file_offset),
                                    static_cast<std::size_t>(view.num_bytes));
}

void ShardSet::ExpectReads(const TensorView& view, std::uint64_t offset,
                           std::uint64_t count) const {
  const auto shard = state_->CheckView(view);
  if (!shard || offset > view.num_bytes || count > view.num_bytes - offset || count == 0) return;
  // Without an answer the bytes are read when they are touched.
  static_cast<void>(::posix_fadvise((*shard)->file->descriptor(),
                                    static_cast<off_t>(view.file_offset + offset),
                                    static_cast<off_t>(count), POSIX_FADV_WILLNEED));
}

void ShardSet::ReleasePages() const {
  for (const auto& shard : state_->shards) {
    if (!shard->is_mapped.load(std::memory_order_acquire)) continue;
    const std::span<const std::byte> map = shard->map->bytes();
    if (map.empty()) continue;
    static_cast<void>(::madvise(const_cast<std::byte*>(map.data()), map.size(), MADV_DONTNEED));
  }
}

Result<std::span<const std::byte>> ShardSet::Bytes(const TensorView& view,
                                                   std::vector<std::byte>* scratch) const {
  MEGALITH_ASSIGN_OR_RETURN(const std::span<const std::byte> mapped, Map(view));
  const auto element_bytes = static_cast<std::uintptr_t>(DTypeBytes(view.dtype));
  if (reinterpret_cast<std::uintptr_t>(mapped.data()) % element_bytes == 0) return mapped;
  scratch->assign(mapped.begin(), mapped.end());
  return std::span<const std::byte>(*scratch);
}

}  // namespace megalith::weights
