#include "exec/packed_cache.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "exec/packed_weights.h"
#include "exec/testing/executors.h"
#include "tools/temp_dir.h"

namespace megalith::exec::testing {
namespace {

namespace fs = std::filesystem;

/// What libraries say while it lives.
class LogCapture {
 public:
  LogCapture() {
    SetLogSink([this](LogLevel level, std::string_view message) {
      if (level >= LogLevel::kWarning) text_ += std::string(message) + "\n";
    });
  }
  ~LogCapture() { SetLogSink({}); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

ExecutorSpec Spec(std::int32_t workers, const std::string& model = "k3-unit") {
  ExecutorSpec spec;
  spec.directory = std::string(MEGALITH_TEST_DATA) + "/golden/" + model;
  spec.num_workers = workers;
  return spec;
}

program::VerifiedProgram ProgramOf(const ExecutorSpec& spec) {
  return MakePrograms(spec).value().front();
}

Result<PackedWeights> Load(const std::string& cache, CacheUse use = CacheUse::kMap,
                           std::int32_t workers = 2) {
  const ExecutorSpec spec = Spec(workers);
  PackOptions options;
  options.cache_directory = cache;
  options.cache_use = use;
  return PackedWeights::Pack(*ProgramOf(spec), **OpenCheckpoint(spec.directory), options);
}

::testing::AssertionResult HoldsTheSame(const PackedWeights& a, const PackedWeights& b) {
  const WeightLayout& layout = a.layout();
  for (std::size_t w = 0; w < layout.worker_bytes.size(); ++w) {
    const auto worker = static_cast<std::int32_t>(w);
    if (std::memcmp(a.WorkerArena(worker), b.WorkerArena(worker),
                    static_cast<std::size_t>(layout.worker_bytes[w])) != 0) {
      return ::testing::AssertionFailure() << "arena of worker " << w;
    }
  }
  if (std::memcmp(a.VectorArena(), b.VectorArena(),
                  static_cast<std::size_t>(layout.vector_bytes)) != 0) {
    return ::testing::AssertionFailure() << "vectors";
  }
  return ::testing::AssertionSuccess();
}

std::string OnlyFile(const std::string& directory) {
  std::string found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    EXPECT_EQ(found, "") << "one file expected";
    found = entry.path().string();
  }
  return found;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// As anything but this program would: in place.
void Overwrite(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(PackedCache, SecondStartHasTheSameBytesInEitherUse) {
  const tools::TempDir temp;
  const LogCapture log;
  const auto packed = Load(temp.File("cache"));
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  EXPECT_EQ(packed->origin(), WeightOrigin::kPacked);
  const auto mapped = Load(temp.File("cache"));
  ASSERT_TRUE(mapped.has_value()) << mapped.error().message;
  EXPECT_EQ(mapped->origin(), WeightOrigin::kCacheMapped);
  EXPECT_TRUE(HoldsTheSame(*packed, *mapped));
  const auto copied = Load(temp.File("cache"), CacheUse::kCopy);
  ASSERT_TRUE(copied.has_value()) << copied.error().message;
  EXPECT_EQ(copied->origin(), WeightOrigin::kCacheCopied);
  EXPECT_TRUE(HoldsTheSame(*packed, *copied));
  EXPECT_EQ(mapped->Pages()->mapped_bytes > 0, true);
  EXPECT_EQ(mapped->Pages()->huge_bytes, 0U);
  EXPECT_EQ(log.text(), "");
  EXPECT_EQ(mapped->arena_bytes(), packed->arena_bytes());
}

TEST(PackedCache, LogitsFromAMapAreThoseOfPackedWeights) {
  const tools::TempDir temp;
  const ExecutorSpec spec = Spec(2);
  ASSERT_TRUE(Load(temp.path()).has_value());
  const auto mapped = Load(temp.path());
  ASSERT_TRUE(mapped.has_value());
  ASSERT_EQ(mapped->origin(), WeightOrigin::kCacheMapped);
  const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  const auto programs = MakePrograms(spec);
  auto with_map = MakeReferenceExecutor(*programs, *mapped, {});
  auto with_packed = MakeReferenceExecutor(*programs, **Pack(spec), {});
  ASSERT_TRUE(with_map && with_packed);
  const auto want = Feed(**with_packed, 0, tokens, 7);
  const auto have = Feed(**with_map, 0, tokens, 7);
  ASSERT_TRUE(want && have);
  EXPECT_EQ(FirstDifference(*want, *have), "");
}

TEST(PackedCache, OtherLayoutsAndFilesHaveOtherKeys) {
  const tools::TempDir temp;
  ASSERT_TRUE(Load(temp.path(), CacheUse::kMap, 2).has_value());
  const auto other = Load(temp.path(), CacheUse::kMap, 3);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->origin(), WeightOrigin::kPacked);
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(temp.path())) files += entry.exists() ? 1 : 0;
  EXPECT_EQ(files, 2U);
}

TEST(PackedCache, KeyFollowsEveryShardsTimeAndHeader) {
  const tools::TempDir model;
  const ExecutorSpec spec = Spec(1);
  model.CopyFrom(spec.directory);
  const WeightLayout layout = *MakeWeightLayout(*ProgramOf(spec));
  const auto key = [&] {
    const auto checkpoint = weights::Checkpoint::Open(model.path());
    return MakePackedCacheKey(*checkpoint, layout).value();
  };
  const PackedCacheKey first = key();
  EXPECT_EQ(key(), first);
  const auto checkpoint = weights::Checkpoint::Open(model.path());
  ASSERT_TRUE(checkpoint.has_value());
  for (std::size_t shard = 0; shard < checkpoint->shards().num_shards(); ++shard) {
    const std::string path = checkpoint->shards().ShardPath(shard);
    const auto time = fs::last_write_time(path);
    fs::last_write_time(path, time + std::chrono::nanoseconds(1000));
    EXPECT_NE(key(), first) << path;
    fs::last_write_time(path, time);
    EXPECT_EQ(key(), first) << path;
    // A blank at the end of the header moves no data and changes no size if it replaces padding,
    // so another kind of change: the header's own text, with the time put back.
    std::string bytes = ReadAll(path);
    const std::size_t at = bytes.find("\"dtype\"");
    ASSERT_NE(at, std::string::npos);
    bytes[at + 1] = 'D';
    Overwrite(path, bytes);
    fs::last_write_time(path, time);
    EXPECT_NE(MakePackedCacheKey(*checkpoint, layout).value(), first) << path;
    bytes[at + 1] = 'd';
    Overwrite(path, bytes);
    fs::last_write_time(path, time);
  }
  EXPECT_EQ(key(), first);
}

TEST(PackedCache, KeyFollowsTheDraftersFile) {
  const tools::TempDir drafter;
  drafter.CopyFrom(std::string(MEGALITH_TEST_DATA) + "/golden/k3-tiny-dspark");
  const ExecutorSpec spec = Spec(1, "k3-tiny");
  const WeightLayout layout = *MakeWeightLayout(*ProgramOf(spec));
  const auto key = [&](const std::string& drafter_directory) {
    const auto checkpoint = weights::Checkpoint::Open(spec.directory, drafter_directory);
    return MakePackedCacheKey(*checkpoint, layout).value();
  };
  const PackedCacheKey first = key(drafter.path());
  EXPECT_EQ(key(drafter.path()), first);
  EXPECT_NE(key(""), first);
  const std::string file = drafter.File("model.safetensors");
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::nanoseconds(1000));
  EXPECT_NE(key(drafter.path()), first);
}

TEST(PackedCache, DamageAnywhereIsSeenReportedAndRepaired) {
  const tools::TempDir temp;
  const auto packed = Load(temp.path());
  ASSERT_TRUE(packed.has_value());
  const std::string path = OnlyFile(temp.path());
  const std::string good = ReadAll(path);
  const auto header =
      ParsePackedCacheHeader(std::as_bytes(std::span(good))
                                 .first(static_cast<std::size_t>(*PackedCacheHeaderBytes(
                                     std::as_bytes(std::span(good)), good.size()))),
                             good.size());
  ASSERT_TRUE(header.has_value()) << header.error().message;

  std::vector<std::pair<std::string, std::string>> damaged;
  const auto flip = [&](std::size_t byte, int bit) {
    std::string bytes = good;
    bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
    damaged.emplace_back(fmt::format("bit {} of byte {}", bit, byte), bytes);
  };
  // Every field of the head, its checksums, and the first, middle and last byte of every arena.
  for (std::size_t byte = 0; byte < kPackedCachePrefixBytes; byte += 4) flip(byte, 3);
  flip(kPackedCachePrefixBytes + 3, 0);
  flip(kPackedCachePrefixBytes + 3 * sizeof(PackedCacheArena) + 1, 7);
  for (const PackedCacheArena& arena : header->arenas) {
    for (const std::uint64_t at : {std::uint64_t{0}, arena.bytes / 2, arena.bytes - 1}) {
      flip(static_cast<std::size_t>(arena.offset + at), 5);
    }
  }
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{20}, std::size_t{4096}, good.size() / 2, good.size() - 1}) {
    damaged.emplace_back(fmt::format("cut to {}", size), good.substr(0, size));
  }
  damaged.emplace_back("longer", good + "x");
  std::string swapped = good;  // two arenas of one size, each whole
  ASSERT_GE(header->arenas.size(), 2U);
  const std::size_t block = 4096;
  std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(header->arenas[0].offset),
                   swapped.begin() + static_cast<std::ptrdiff_t>(header->arenas[0].offset + block),
                   swapped.begin() + static_cast<std::ptrdiff_t>(header->arenas[1].offset));
  damaged.emplace_back("swapped", swapped);

  for (std::size_t i = 0; i < damaged.size(); ++i) {
    const auto& [what, bytes] = damaged[i];
    // A new file: the old one may be mapped.
    fs::remove(path);
    Overwrite(path, bytes);
    const LogCapture log;
    const auto again = Load(temp.path(), i % 2 == 0 ? CacheUse::kMap : CacheUse::kCopy);
    ASSERT_TRUE(again.has_value()) << what << ": " << again.error().message;
    EXPECT_EQ(again->origin(), WeightOrigin::kPacked) << what;
    EXPECT_TRUE(HoldsTheSame(*packed, *again)) << what;
    EXPECT_NE(log.text().find(path), std::string::npos) << what << ": " << log.text();
    EXPECT_EQ(ReadAll(path), good) << what;
  }
}

TEST(PackedCache, FileOfOtherWeightsUnderThisNameIsNotUsed) {
  const tools::TempDir temp;
  ASSERT_TRUE(Load(temp.File("a"), CacheUse::kMap, 2).has_value());
  ASSERT_TRUE(Load(temp.File("b"), CacheUse::kMap, 3).has_value());
  const std::string name = OnlyFile(temp.File("a"));
  fs::remove(name);
  fs::rename(OnlyFile(temp.File("b")), name);
  const LogCapture log;
  const auto again = Load(temp.File("a"));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->origin(), WeightOrigin::kPacked);
  EXPECT_NE(log.text().find("another checkpoint or layout"), std::string::npos) << log.text();
}

TEST(PackedCache, FolderThatCannotBeWrittenIsReportedAndNoMore) {
  const tools::TempDir temp;
  temp.Write("file", "");
  for (const std::string& folder : {temp.File("no/such/parent"), temp.File("file")}) {
    const LogCapture log;
    const auto packed = Load(folder);
    ASSERT_TRUE(packed.has_value()) << packed.error().message;
    EXPECT_NE(log.text().find(folder), std::string::npos) << log.text();
  }
}

TEST(PackedCache, WhatAKilledWriterLeftIsReplaced) {
  const tools::TempDir temp;
  ASSERT_TRUE(Load(temp.path()).has_value());
  const std::string path = OnlyFile(temp.path());
  const std::string good = ReadAll(path);
  fs::rename(path, path + ".part");
  Overwrite(path + ".part", good.substr(0, 5000) + "rest");
  const auto again = Load(temp.path());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->origin(), WeightOrigin::kPacked);
  EXPECT_EQ(OnlyFile(temp.path()), path);
  EXPECT_EQ(ReadAll(path), good);
}

TEST(PackedCache, FileThatAnotherProcessWritesIsLeftToIt) {
  const tools::TempDir temp;
  ASSERT_TRUE(Load(temp.path()).has_value());
  const std::string path = OnlyFile(temp.path());
  fs::rename(path, path + ".part");
  const int descriptor = ::open((path + ".part").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(descriptor, LOCK_EX), 0);
  const LogCapture log;
  ASSERT_TRUE(Load(temp.path()).has_value());
  EXPECT_NE(log.text().find("another process"), std::string::npos) << log.text();
  EXPECT_EQ(OnlyFile(temp.path()), path + ".part");
  ::close(descriptor);
}

TEST(PackedCache, DiskThatIsFullLeavesNoFile) {
  const tools::TempDir temp;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(1);
    const auto packed = Load(temp.path());
    ::_exit(packed && packed->origin() == WeightOrigin::kPacked ? 0 : 2);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(fs::is_empty(temp.path()));
}

TEST(PackedCache, CancelledWriteLeavesNoFileAndEndsTheLoad) {
  const tools::TempDir temp;
  CancelFlag cancel;
  const ExecutorSpec spec = Spec(2);
  PackOptions options;
  options.cache_directory = temp.path();
  options.cancel = &cancel;
  options.progress = [&cancel](const Progress& progress) {
    if (progress.stage == "pack weights" && progress.done == progress.total) cancel.Cancel();
  };
  const auto packed =
      PackedWeights::Pack(*ProgramOf(spec), **OpenCheckpoint(spec.directory), options);
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(ErrorCodeName(packed.error().code), ErrorCodeName(ErrorCode::kCancelled));
  EXPECT_TRUE(fs::is_empty(temp.path()));
}

TEST(PackedCacheHeader, RoundTripKeepsEverything) {
  const std::uint64_t sizes[] = {10000, 0, 4096, 1};
  PackedCacheHeader header = PlanPackedCache({1, 2}, sizes, 3000);
  ASSERT_EQ(header.checksums.size(), 7U);
  for (std::size_t i = 0; i < header.checksums.size(); ++i) header.checksums[i] = i * 77;
  const auto bytes = SerializePackedCacheHeader(header);
  EXPECT_EQ(bytes.size(), header.header_bytes);
  const auto again = ParsePackedCacheHeader(bytes, header.file_bytes);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(*again, header);
  EXPECT_EQ(*PackedCacheHeaderBytes(bytes, header.file_bytes), header.header_bytes);
  std::uint64_t covered = 0;
  for (const PackedCacheChunk& chunk : ListChunks(header)) covered += chunk.bytes;
  EXPECT_EQ(covered, 14097U);
}

TEST(PackedCacheHeader, EveryBitCounts) {
  const std::uint64_t sizes[] = {10000, 4096};
  PackedCacheHeader header = PlanPackedCache({1, 2}, sizes, 3000);
  const auto good = SerializePackedCacheHeader(header);
  const std::size_t used = kPackedCachePrefixBytes + 2 * sizeof(PackedCacheArena) + (6 + 1) * 8;
  for (std::size_t bit = 0; bit < used * 8; ++bit) {
    std::vector<std::byte> bytes = good;
    bytes[bit / 8] ^= std::byte{static_cast<unsigned char>(1U << (bit % 8))};
    ASSERT_FALSE(ParsePackedCacheHeader(bytes, header.file_bytes).has_value()) << "bit " << bit;
  }
}

}  // namespace
}  // namespace megalith::exec::testing
