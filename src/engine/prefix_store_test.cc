#include "engine/prefix_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/engine.h"
#include "engine/prefix_file.h"
#include "exec/device_memory.h"
#include "tools/temp_dir.h"

namespace megalith::engine {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::int32_t>;

constexpr char kNano[] = MEGALITH_SOURCE_DIR "/models/k3-nano";

Engine& SharedEngine() {
  static const std::unique_ptr<Engine> engine = [] {
    EngineOptions options;
    options.num_workers = 1;
    options.num_sequences = 2;
    options.max_positions = 128;
    options.prefix_cache_bytes = 4 << 20;
    return Engine::Load(kNano, options).value();
  }();
  return *engine;
}

/// Runs the tokens in slot 0 and saves them.
std::shared_ptr<const exec::Snapshot> Snapshot(const Tokens& tokens) {
  exec::Executor& executor = SharedEngine().executor();
  const exec::Run run{0, 0, static_cast<std::int32_t>(tokens.size())};
  EXPECT_TRUE(executor.Step({{&run, 1}, tokens, {}}));
  return executor.Save(0).value();
}

Tokens SomeTokens(std::size_t count, std::int32_t first = 1) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<std::int32_t>(i);
  return tokens;
}

class PrefixStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<PrefixStore> Open(std::int64_t limit = 64 << 20, std::int32_t positions = 128) {
    return PrefixStore::Open({temp_.path(), "model1", limit, positions}).value();
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(temp_.File("model1"))) {
      files.push_back(entry.path());
    }
    return files;
  }
  tools::TempDir temp_;
};

TEST_F(PrefixStoreTest, WhatIsWrittenIsThereAfterARestart) {
  const Tokens tokens = SomeTokens(70);
  const auto snapshot = Snapshot(tokens);
  Open()->Write(tokens, snapshot);
  const auto store = Open();
  EXPECT_EQ(store->size(), 1U);
  EXPECT_EQ(store->FindLongest(SomeTokens(71)), 70U);
  EXPECT_EQ(store->FindLongest(SomeTokens(70)), 0U);
  EXPECT_EQ(store->FindLongest(SomeTokens(71, 2)), 0U);
  const auto read = store->Read(tokens, SharedEngine().executor()).value();
  const auto want = snapshot->Contents();
  const auto have = read->Contents();
  ASSERT_EQ(want.size(), have.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(want[i], have[i])) << "part " << i;
  }
  EXPECT_FALSE(store->Read(SomeTokens(5), SharedEngine().executor()));
}

TEST_F(PrefixStoreTest, TheLeastRecentlyUsedFilesGo) {
  const auto bytes =
      static_cast<std::int64_t>(PrefixFileBytes(SomeTokens(70), *Snapshot(SomeTokens(70))));
  {
    const auto store = Open(2 * bytes);
    for (const std::int32_t first : {1, 2}) {
      store->Write(SomeTokens(70, first), Snapshot(SomeTokens(70, first)));
    }
  }
  {
    const auto store = Open(2 * bytes);
    ASSERT_EQ(store->size(), 2U);
    ASSERT_TRUE(store->Read(SomeTokens(70, 1), SharedEngine().executor()));
    store->Write(SomeTokens(70, 3), Snapshot(SomeTokens(70, 3)));
  }
  EXPECT_EQ(Files().size(), 2U);
  const auto store = Open(2 * bytes);
  EXPECT_EQ(store->FindLongest(SomeTokens(71, 1)), 70U);
  EXPECT_EQ(store->FindLongest(SomeTokens(71, 2)), 0U);
  EXPECT_EQ(store->FindLongest(SomeTokens(71, 3)), 70U);
  EXPECT_LE(store->bytes(), 2 * bytes);
  EXPECT_EQ(Open(bytes)->size(), 1U) << "a smaller limit holds at once";
}

TEST_F(PrefixStoreTest, DamagedFilesAreTakenAwayAndNeverUsed) {
  const Tokens tokens = SomeTokens(20);
  const auto snapshot = Snapshot(tokens);
  Open()->Write(tokens, snapshot);
  const fs::path path = Files().at(0);
  std::string good;
  {
    std::ifstream in(path, std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    std::string bad = good;
    const std::size_t place = i < 48 ? static_cast<std::size_t>(i) : random() % good.size();
    if (i % 7 == 6) {
      bad.resize(place);
    } else {
      bad[place] = static_cast<char>(bad[place] ^ 0x10);
    }
    {
      std::ofstream out(path, std::ios::binary);
      out << bad;
    }
    const auto store = Open();
    if (store->FindLongest(SomeTokens(21)) == 20) {
      const auto read = store->Read(tokens, SharedEngine().executor());
      ASSERT_FALSE(read) << "byte " << place;
      EXPECT_EQ(read.error().code, ErrorCode::kBadFile);
      EXPECT_EQ(store->FindLongest(SomeTokens(21)), 0U);
    }
    EXPECT_FALSE(fs::exists(path)) << "byte " << place;
  }
}

TEST_F(PrefixStoreTest, WhatAKilledWriterLeftIsTakenAway) {
  fs::create_directories(temp_.File("model1"));
  temp_.Write("model1/0123.prefix.part", "half");
  temp_.Write("model1/notes.txt", "not ours");
  EXPECT_EQ(Open()->size(), 0U);
  ASSERT_EQ(Files().size(), 1U);
  EXPECT_EQ(Files()[0].filename(), "notes.txt");
}

TEST_F(PrefixStoreTest, FilesOfALongerContextStay) {
  const Tokens tokens = SomeTokens(70);
  Open()->Write(tokens, Snapshot(tokens));
  EXPECT_EQ(Open(64 << 20, 64)->size(), 0U);
  EXPECT_EQ(Open()->size(), 1U);
}

TEST_F(PrefixStoreTest, AFolderThatCannotBeIsAnError) {
  temp_.Write("file", "");
  EXPECT_FALSE(PrefixStore::Open({temp_.File("file"), "model1", 1, 1}));
}

}  // namespace
}  // namespace megalith::engine
