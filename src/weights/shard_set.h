#pragma once

// The tensors of a directory: every shard that model.safetensors.index.json names, or the single
// model.safetensors. Further directories can be added under a prefix. Knows files and names, no
// model.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace megalith::weights {

/// One directory of a ShardSet.
struct ShardFolder {
  std::string directory;
  std::string name_prefix;  ///< put before every tensor's name; the files know nothing of it
};

/// Where a tensor lies. Cheap to copy; name and shape live as long as the ShardSet.
struct TensorView {
  std::string_view name;  ///< the folder's name_prefix, then the name as stored
  DType dtype = DType::kBf16;
  std::span<const std::int64_t> shape;
  std::uint32_t shard = 0;
  std::uint64_t file_offset = 0;  ///< bytes from the start of the shard's file
  std::uint64_t num_bytes = 0;
};

/// Const after Open: every member may be called from any number of threads at once.
class ShardSet {
 public:
  /// Reads the index and all headers, and no tensor data.
  /// kNotFound: neither file is there, or shards that the index names are missing (all are listed,
  /// with the gaps in their numbering). kBadFile: a shard whose header or size is wrong (see
  /// safetensors.h), a shard name that leaves the directory, an index entry whose tensor is not in
  /// its shard, a tensor in two shards of any folder. kUsage: no folder.
  static Result<ShardSet> Open(std::span<const ShardFolder> folders);
  /// One folder, without a prefix.
  static Result<ShardSet> Open(const std::string& directory);

  ShardSet(ShardSet&&) noexcept;
  ShardSet& operator=(ShardSet&&) noexcept;
  ~ShardSet();

  std::size_t num_tensors() const;
  /// `index` in [0, num_tensors()): by shard, then by position in the file.
  TensorView At(std::size_t index) const;
  /// The tensors and the shards of a folder: [first, second).
  std::pair<std::size_t, std::size_t> FolderTensors(std::size_t folder) const;
  std::pair<std::size_t, std::size_t> FolderShards(std::size_t folder) const;
  /// Index of the tensor with exactly this name.
  std::optional<std::size_t> Find(std::string_view name) const;
  /// False for a tensor that lies in a shard although the index does not list it.
  bool IsIndexed(std::size_t index) const;

  /// What looks odd but does no harm: tensors that the index does not list, a wrong total_size.
  /// Those of the second folder and later ones name the directory.
  const std::vector<std::string>& warnings() const;

  std::size_t num_shards() const;                         ///< of all folders, in their order
  const std::string& ShardPath(std::size_t shard) const;  ///< directory/file
  std::string_view ShardName(std::size_t shard) const;    ///< file name only
  std::uint64_t ShardBytes(std::size_t shard) const;      ///< size of the file

  /// Copies a tensor's bytes; destination.size() must be view.num_bytes (kUsage).
  Status Read(const TensorView& view, std::span<std::byte> destination) const;
  /// Copies `destination.size()` bytes from byte `offset` of the tensor.
  Status ReadRange(const TensorView& view, std::uint64_t offset,
                   std::span<std::byte> destination) const;
  /// The tensor's bytes in a read-only map of the shard, made on first use and kept. The address is
  /// a multiple of the element size only if the file's layout makes it so: see Bytes.
  Result<std::span<const std::byte>> Map(const TensorView& view) const;
  /// As Map, but where the mapped address is not a multiple of the element size the bytes are
  /// copied to `scratch` (resized as needed) and that is returned: always safe to read as elements.
  Result<std::span<const std::byte>> Bytes(const TensorView& view,
                                           std::vector<std::byte>* scratch) const;
  /// Tells the system that bytes `offset` .. + `count` of the tensor will be read, so that it may
  /// begin to fetch them. Changes no result of any other member.
  void ExpectReads(const TensorView& view, std::uint64_t offset, std::uint64_t count) const;
  /// Lets go of the pages that reading through maps has brought into this process; the system's
  /// page cache keeps them as long as it likes. Maps stay valid: what is read again comes again.
  void ReleasePages() const;

 private:
  struct State;
  explicit ShardSet(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace megalith::weights
