#include "engine/model_files.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/file.h"

namespace megalith::engine {
namespace {

/// Of each shard's data: another training run has the same header.
constexpr std::uint64_t kNumSamples = 8;
constexpr std::uint64_t kSampleBytes = 4096;

Result<std::string> IdentifyConfig(const std::string& path) {
  MEGALITH_ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size_bytes()));
  MEGALITH_RETURN_IF_ERROR(file.ReadAt(0, bytes));
  return fmt::format("{} bytes, hash {:016x}", bytes.size(),
                     XXH3_64bits(bytes.data(), bytes.size()));
}

Result<std::string> IdentifyShard(const std::string& path) {
  MEGALITH_ASSIGN_OR_RETURN(const RandomAccessFile file, RandomAccessFile::Open(path));
  // Opening the checkpoint has found that the header lies inside the file.
  std::uint64_t header_bytes = 0;
  MEGALITH_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  const std::uint64_t data_begin = sizeof header_bytes + header_bytes;
  if (header_bytes > file.size_bytes() || data_begin > file.size_bytes()) {
    return Fail(ErrorCode::kBadFile, "{}: changed while it was read", path);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(header_bytes));
  MEGALITH_RETURN_IF_ERROR(file.ReadAt(sizeof header_bytes, bytes));
  const std::uint64_t header_hash = XXH3_64bits(bytes.data(), bytes.size());
  const std::uint64_t data_bytes = file.size_bytes() - data_begin;
  const std::uint64_t sample_bytes = std::min(kSampleBytes, data_bytes);
  bytes.resize(static_cast<std::size_t>(kNumSamples * sample_bytes));
  for (std::uint64_t i = 0; i < kNumSamples; ++i) {
    // The first at the beginning, the last at the end.
    const std::uint64_t offset = (data_bytes - sample_bytes) / (kNumSamples - 1) * i;
    const auto sample = std::span(bytes).subspan(static_cast<std::size_t>(i * sample_bytes),
                                                 static_cast<std::size_t>(sample_bytes));
    MEGALITH_RETURN_IF_ERROR(file.ReadAt(data_begin + offset, sample));
  }
  return fmt::format("{} bytes, hash of header {:016x}, of samples {:016x}", file.size_bytes(),
                     header_hash, XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace

Result<fabric::Items> IdentifyModelFiles(const weights::Checkpoint& checkpoint) {
  fabric::Items items;
  MEGALITH_ASSIGN_OR_RETURN(std::string config,
                            IdentifyConfig(checkpoint.directory() + "/config.json"));
  items.emplace_back("config.json", std::move(config));
  if (checkpoint.drafter() != nullptr) {
    MEGALITH_ASSIGN_OR_RETURN(std::string drafter,
                              IdentifyConfig(checkpoint.drafter_directory() + "/config.json"));
    items.emplace_back("the drafter's config.json", std::move(drafter));
  }
  const weights::ShardSet& shards = checkpoint.shards();
  const auto [model_begin, model_end] = shards.FolderShards(0);
  for (std::size_t i = 0; i < shards.num_shards(); ++i) {
    MEGALITH_ASSIGN_OR_RETURN(std::string shard, IdentifyShard(shards.ShardPath(i)));
    const bool is_model = i >= model_begin && i < model_end;
    items.emplace_back(fmt::format("{}{}", is_model ? "" : "the drafter's ", shards.ShardName(i)),
                       std::move(shard));
  }
  return items;
}

}  // namespace megalith::engine
