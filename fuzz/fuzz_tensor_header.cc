// Any bytes as a safetensors file: an error, or a header that keeps its promises. The first byte
// chooses between a whole file, a header of a file of exactly the right size, and a shard index.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "weights/safetensors.h"
#include "weights/shard_index.h"

namespace {

using megalith::weights::TensorHeader;

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckSound(const TensorHeader& header, std::uint64_t file_bytes) {
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < header.num_tensors(); ++i) {
    const auto entry = header.At(i);
    Require(entry.begin <= entry.end);
    Require(entry.end <= file_bytes - header.data_offset());
    auto bytes = static_cast<std::uint64_t>(megalith::DTypeBytes(entry.dtype));
    for (const std::int64_t extent : entry.shape) bytes *= static_cast<std::uint64_t>(extent);
    Require(bytes == entry.end - entry.begin);
    if (bytes > 0) Require(entry.begin >= covered);
    if (bytes > 0) covered = entry.end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t mode = data[0] % 3;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (mode == 0) {
    // As a file: length, header, data.
    std::uint64_t length = 0;
    if (text.size() < 8) return 0;
    std::memcpy(&length, text.data(), 8);
    if (length > text.size() - 8) return 0;
    const auto header =
        TensorHeader::Parse(text.substr(8, static_cast<std::size_t>(length)), text.size(), "fuzz");
    if (header) CheckSound(*header, text.size());
  } else if (mode == 1) {
    // As a header alone; the data is as long as its first two bytes say.
    if (text.size() < 2) return 0;
    const std::uint64_t data_bytes =
        static_cast<std::uint64_t>(static_cast<unsigned char>(text[0])) * 256 +
        static_cast<unsigned char>(text[1]);
    const std::string_view json = text.substr(2);
    const std::uint64_t file_bytes = 8 + json.size() + data_bytes;
    const auto header = TensorHeader::Parse(json, file_bytes, "fuzz");
    if (header) CheckSound(*header, file_bytes);
  } else {
    const auto index = megalith::weights::ParseShardIndex(std::string(text), "fuzz");
    if (!index) return 0;
    for (const std::string& name : index->shard_names) {
      Require(name.find('/') == std::string::npos && name.front() != '.');
    }
    for (const auto& [name, shard] : index->weight_map) Require(shard < index->shard_names.size());
  }
  return 0;
}
