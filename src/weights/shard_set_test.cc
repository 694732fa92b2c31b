#include "weights/shard_set.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <thread>

#include "tools/temp_dir.h"
#include "weights/shard_index.h"

namespace megalith::weights {
namespace {

/// Shards of U8 vectors, eight bytes each: name -> first byte value.
std::string ShardText(const std::map<std::string, int>& tensors, std::size_t header_padding = 0) {
  std::string json = "{";
  std::string data;
  for (const auto& [name, value] : tensors) {
    json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[8],"data_offsets":[{},{}]}})",
                        data.empty() ? "" : ",", name, data.size(), data.size() + 8);
    for (int i = 0; i < 8; ++i) data += static_cast<char>(value + i);
  }
  json += "}";
  json.append(header_padding, ' ');
  std::string text(8, '\0');
  const std::uint64_t length = json.size();
  std::memcpy(text.data(), &length, 8);
  return text + json + data;
}

/// Four shards t1..t4 and a draft file whose name fits the pattern.
class FourShards : public testing::Test {
 protected:
  FourShards() {
    for (int i = 1; i <= 4; ++i) {
      temp_.Write(Name(i), ShardText({{fmt::format("t{}", i), 10 * i}}));
      map_[fmt::format("t{}", i)] = Name(i);
    }
    temp_.Write("extra-00000.safetensors", ShardText({{"x", 0}}));
    WriteIndex();
  }
  static std::string Name(int i) { return fmt::format("model-{:05}-of-00004.safetensors", i); }
  void WriteIndex(std::string_view metadata = R"({"total_size":32})") {
    std::string text = fmt::format(R"({{"metadata":{},"weight_map":{{)", metadata);
    for (const auto& [tensor, shard] : map_) {
      text += fmt::format(R"({}"{}":"{}")", text.back() == '{' ? "" : ",", tensor, shard);
    }
    temp_.Write("model.safetensors.index.json", text + "}}");
  }
  Error Refusal() {
    const auto shards = ShardSet::Open(temp_.path());
    if (shards) {
      ADD_FAILURE() << "accepted";
      return {};
    }
    return shards.error();
  }
  void ExpectRefused(std::string_view text) {
    const Error error = Refusal();
    EXPECT_NE(error.message.find(text), std::string::npos) << error.message;
  }

  tools::TempDir temp_;
  std::map<std::string, std::string> map_;
};

TEST_F(FourShards, EveryTensorIsFoundAndRead) {
  const auto shards = ShardSet::Open(temp_.path());
  ASSERT_TRUE(shards) << shards.error().message;
  EXPECT_EQ(shards->num_shards(), 4u);
  EXPECT_EQ(shards->num_tensors(), 4u);
  EXPECT_EQ(shards->warnings(), std::vector<std::string>());
  for (int i = 1; i <= 4; ++i) {
    const auto index = shards->Find(fmt::format("t{}", i));
    ASSERT_TRUE(index);
    const TensorView view = shards->At(*index);
    EXPECT_EQ(view.num_bytes, 8u);
    EXPECT_EQ(shards->ShardName(view.shard), Name(i));
    EXPECT_EQ(shards->ShardBytes(view.shard), temp_.SizeOf(Name(i)));
    std::vector<std::byte> data(8);
    ASSERT_TRUE(shards->Read(view, data));
    EXPECT_EQ(data[0], static_cast<std::byte>(10 * i));
    EXPECT_EQ(data[7], static_cast<std::byte>(10 * i + 7));
    const auto map = shards->Map(view);
    ASSERT_TRUE(map) << map.error().message;
    EXPECT_TRUE(std::equal(map->begin(), map->end(), data.begin(), data.end()));
    std::vector<std::byte> middle(3);
    ASSERT_TRUE(shards->ReadRange(view, 2, middle));
    EXPECT_EQ(middle[0], data[2]);
  }
  EXPECT_FALSE(shards->Find("x"));
  EXPECT_FALSE(shards->Find("t"));
  EXPECT_FALSE(shards->Find(""));
}

TEST_F(FourShards, SecondFolderIsFoundUnderItsPrefix) {
  const tools::TempDir second;
  second.Write("model.safetensors", ShardText({{"t1", 50}, {"t9", 60}}));
  const std::vector<ShardFolder> folders = {{temp_.path(), ""}, {second.path(), "more."}};
  const auto shards = ShardSet::Open(folders);
  ASSERT_TRUE(shards) << shards.error().message;
  EXPECT_EQ(shards->num_shards(), 5u);
  EXPECT_EQ(shards->num_tensors(), 6u);
  EXPECT_EQ(shards->FolderTensors(0), (std::pair<std::size_t, std::size_t>(0, 4)));
  EXPECT_EQ(shards->FolderTensors(1), (std::pair<std::size_t, std::size_t>(4, 6)));
  EXPECT_EQ(shards->FolderShards(0), (std::pair<std::size_t, std::size_t>(0, 4)));
  EXPECT_EQ(shards->FolderShards(1), (std::pair<std::size_t, std::size_t>(4, 5)));
  EXPECT_EQ(shards->ShardPath(4), second.path() + "/model.safetensors");
  for (const auto& [name, value] :
       std::map<std::string, int>{{"t1", 10}, {"more.t1", 50}, {"more.t9", 60}}) {
    const auto index = shards->Find(name);
    ASSERT_TRUE(index) << name;
    EXPECT_TRUE(shards->IsIndexed(*index));
    EXPECT_EQ(shards->At(*index).name, name);
    std::vector<std::byte> data(8);
    ASSERT_TRUE(shards->Read(shards->At(*index), data));
    EXPECT_EQ(data[0], static_cast<std::byte>(value)) << name;
  }
  EXPECT_FALSE(shards->Find("t9"));
  EXPECT_FALSE(shards->Find("more.t2"));
  // Both have an index.
  const std::vector<ShardFolder> twice = {{temp_.path(), ""}, {temp_.path(), "more."}};
  const auto both = ShardSet::Open(twice);
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_EQ(both->num_tensors(), 8u);
  EXPECT_TRUE(both->Find("more.t4"));
  EXPECT_TRUE(both->IsIndexed(*both->Find("more.t4")));
}

TEST_F(FourShards, OddIndexOfASecondFolderIsNamedWithItsDirectory) {
  const tools::TempDir second;
  second.CopyFrom(temp_.path());
  map_.erase("t2");
  map_["t3"] = Name(2);
  temp_.Write(Name(2), ShardText({{"t2", 20}, {"t3", 30}}));
  temp_.Write(Name(3), ShardText({{"t5", 30}}));
  map_["t5"] = Name(3);
  WriteIndex(R"({"total_size":7})");
  const std::vector<ShardFolder> folders = {{second.path(), ""}, {temp_.path(), "more."}};
  const auto shards = ShardSet::Open(folders);
  ASSERT_TRUE(shards) << shards.error().message;
  EXPECT_TRUE(shards->IsIndexed(*shards->Find("t2")));
  EXPECT_FALSE(shards->IsIndexed(*shards->Find("more.t2")));
  const std::string index = temp_.path() + "/model.safetensors.index.json: ";
  EXPECT_EQ(shards->warnings(),
            (std::vector<std::string>{
                index + "metadata.total_size is 7, the shards hold 40 bytes",
                index + "1 tensors of the shards are not listed, first t2 in " + Name(2)}));
}

TEST_F(FourShards, NamesThatMeetUnderAPrefixAreRefused) {
  const tools::TempDir second;
  second.Write("model.safetensors", ShardText({{"1", 50}}));
  const std::vector<ShardFolder> folders = {{temp_.path(), ""}, {second.path(), "t"}};
  const auto shards = ShardSet::Open(folders);
  ASSERT_FALSE(shards);
  EXPECT_EQ(shards.error().message, "tensor t1 is in " + temp_.path() + "/" + Name(1) + " and in " +
                                        second.path() + "/model.safetensors");
  EXPECT_FALSE(ShardSet::Open(std::span<const ShardFolder>()));
}

TEST_F(FourShards, ReadsOutsideATensorAreRefused) {
  const auto shards = ShardSet::Open(temp_.path());
  ASSERT_TRUE(shards);
  TensorView view = shards->At(0);
  std::vector<std::byte> data(9);
  EXPECT_FALSE(shards->Read(view, data));
  EXPECT_FALSE(shards->ReadRange(view, 0, data));
  EXPECT_FALSE(shards->ReadRange(view, ~std::uint64_t{0}, std::span(data).first(4)));
  view.num_bytes = ~std::uint64_t{0};
  EXPECT_FALSE(shards->Map(view));
  view = shards->At(0);
  view.shard = 4;
  EXPECT_FALSE(shards->Map(view));
}

// One main shard never arrived while a draft file matched the name pattern, so a count of files
// looked right.
TEST_F(FourShards, MissingShardIsNamedWithItsGapAndHowToFetchIt) {
  temp_.Remove(Name(3));
  const Error error = Refusal();
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_NE(error.message.find("1 of the 4 shards"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find(Name(3)), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("gaps in model 1..4: 3"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("hf download"), std::string::npos) << error.message;
  EXPECT_EQ(error.message.find(Name(2)), std::string::npos) << error.message;
}

TEST_F(FourShards, AllMissingShardsAreNamed) {
  temp_.Remove(Name(1));
  temp_.Remove(Name(4));
  const Error error = Refusal();
  EXPECT_NE(error.message.find(Name(1)), std::string::npos) << error.message;
  EXPECT_NE(error.message.find(Name(4)), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("1, 4"), std::string::npos) << error.message;
}

TEST_F(FourShards, ShortShardsAreAllNamedWithTheirMissingBytes) {
  for (const std::uint64_t cut : {std::uint64_t{1}, std::uint64_t{8}}) {
    temp_.Write(Name(2), ShardText({{"t2", 20}}));
    temp_.Resize(Name(2), temp_.SizeOf(Name(2)) - cut);
    const Error error = Refusal();
    EXPECT_EQ(error.code, ErrorCode::kBadFile);
    EXPECT_NE(error.message.find(Name(2)), std::string::npos) << error.message;
    EXPECT_NE(error.message.find(fmt::format("{} bytes are missing", cut)), std::string::npos)
        << error.message;
  }
  temp_.Resize(Name(4), 20);
  const Error error = Refusal();
  EXPECT_NE(error.message.find("2 of 4 shards"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find(Name(2)), std::string::npos) << error.message;
  EXPECT_NE(error.message.find(Name(4)), std::string::npos) << error.message;
}

TEST_F(FourShards, IndexEntryThatDisagreesWithTheShardsIsRefused) {
  map_["t5"] = Name(1);
  WriteIndex();
  ExpectRefused("t5 is not in");
  map_.erase("t5");
  map_["t1"] = Name(2);
  map_["t2"] = Name(1);
  WriteIndex();
  ExpectRefused("2 entries");
  ExpectRefused("t2 is not in " + Name(1) + " but in " + Name(2));
}

TEST_F(FourShards, TensorInTwoShardsIsRefused) {
  temp_.Write(Name(2), ShardText({{"t2", 0}, {"t3", 1}}));
  ExpectRefused("t3 is in");
}

TEST_F(FourShards, ShardNamesThatLeaveTheDirectoryAreRefused) {
  temp_.Write("../outside.safetensors", "");
  for (const char* name :
       {"../outside.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", "model.bin",
        "a\\\\b.safetensors", ".safetensors", "..safetensors", "x\\u0000.safetensors"}) {
    map_["t1"] = name;
    WriteIndex();
    const Error error = Refusal();
    EXPECT_EQ(error.code, ErrorCode::kBadFile) << name;
    EXPECT_NE(error.message.find("t1"), std::string::npos) << error.message;
  }
  temp_.Remove("../outside.safetensors");
}

TEST_F(FourShards, TensorsThatTheIndexDoesNotListAreWarnedAbout) {
  map_.erase("t4");
  map_["t3"] = Name(3);
  temp_.Write(Name(3), ShardText({{"t3", 30}, {"unlisted", 1}}));
  WriteIndex(R"({"total_size":999})");
  const auto shards = ShardSet::Open(temp_.path());
  ASSERT_TRUE(shards) << shards.error().message;
  EXPECT_EQ(shards->num_shards(), 3u);
  const auto index = shards->Find("unlisted");
  ASSERT_TRUE(index);
  EXPECT_FALSE(shards->IsIndexed(*index));
  EXPECT_TRUE(shards->IsIndexed(*shards->Find("t3")));
  ASSERT_EQ(shards->warnings().size(), 2u);
  EXPECT_NE(shards->warnings()[0].find("999"), std::string::npos);
  EXPECT_NE(shards->warnings()[1].find("unlisted"), std::string::npos);
}

TEST_F(FourShards, MalformedIndexIsRefused) {
  for (
      const char* text :
      {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"t1":1}})",
       R"({"weight_map":{},"weight_map":{}})", R"({"weight_map":{)",
       R"({"weight_map":{"t1":"model-00001-of-00004.safetensors","t1":"model-00001-of-00004.safetensors"}})"}) {
    temp_.Write("model.safetensors.index.json", text);
    EXPECT_EQ(Refusal().code, ErrorCode::kBadFile) << text;
  }
}

TEST(ShardSet, SingleFileNeedsNoIndex) {
  const tools::TempDir temp;
  temp.Write("model.safetensors", ShardText({{"a", 1}, {"b", 2}}));
  const auto shards = ShardSet::Open(temp.path());
  ASSERT_TRUE(shards) << shards.error().message;
  EXPECT_EQ(shards->num_tensors(), 2u);
  EXPECT_TRUE(shards->IsIndexed(0));
  EXPECT_TRUE(shards->Find("b"));
}

TEST(ShardSet, DirectoryWithoutEitherFileSaysWhatWasLookedFor) {
  const tools::TempDir temp;
  const auto empty = ShardSet::Open(temp.path());
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, ErrorCode::kNotFound);
  EXPECT_NE(empty.error().message.find("model.safetensors.index.json"), std::string::npos);
  EXPECT_NE(empty.error().message.find("model.safetensors "), std::string::npos);
  temp.Write("model-00001-of-00002.safetensors", "");
  const auto no_index = ShardSet::Open(temp.path());
  ASSERT_FALSE(no_index);
  EXPECT_NE(no_index.error().message.find("model-00001-of-00002.safetensors"), std::string::npos);
  EXPECT_FALSE(ShardSet::Open("/nonexistent"));
  EXPECT_FALSE(ShardSet::Open(temp.File("model-00001-of-00002.safetensors")));
}

TEST(ShardSet, MisalignedTensorsAreCopiedBeforeTheyAreReadAsElements) {
  const tools::TempDir temp;
  for (std::size_t padding = 0; padding < 8; ++padding) {
    std::string json =
        R"({"f":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" + std::string(padding, ' ');
    std::string text(8, '\0');
    const std::uint64_t length = json.size();
    std::memcpy(text.data(), &length, 8);
    const std::array<float, 2> values = {1.5f, -2.0f};
    text += json;
    text.append(reinterpret_cast<const char*>(values.data()), sizeof(values));
    temp.Write("model.safetensors", text);
    const auto shards = ShardSet::Open(temp.path());
    ASSERT_TRUE(shards) << shards.error().message;
    std::vector<std::byte> scratch;
    const auto bytes = shards->Bytes(shards->At(0), &scratch);
    ASSERT_TRUE(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes->data()) % alignof(float), 0u);
    EXPECT_EQ(std::memcmp(bytes->data(), values.data(), sizeof(values)), 0);
  }
}

TEST(ShardSet, ManyThreadsMayMapAndReadAtOnce) {
  const auto shards = ShardSet::Open(std::string(MEGALITH_TEST_DATA) + "/golden/k3-tiny");
  ASSERT_TRUE(shards) << shards.error().message;
  std::vector<std::thread> threads;
  std::vector<int> failures(4, 0);
  for (std::size_t t = 0; t < failures.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < shards->num_tensors(); i += 3) {
        const TensorView view = shards->At(i);
        const auto map = shards->Map(view);
        std::vector<std::byte> data(view.num_bytes);
        if (!map || !shards->Read(view, data) ||
            !std::equal(map->begin(), map->end(), data.begin(), data.end()) ||
            shards->Find(view.name) != i) {
          ++failures[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, std::vector<int>(4, 0));
}

TEST(ShardSet, FilesThatAreNoRegularFilesAreNamedWithoutWaiting) {
  const std::string shard = "model-00002-of-000003.safetensors";
  for (const std::string& name : {shard, std::string("model.safetensors.index.json")}) {
    const tools::TempDir temp;
    temp.CopyFrom(std::string(MEGALITH_TEST_DATA) + "/golden/k3-tiny");
    temp.Remove(name);
    ASSERT_EQ(::mkfifo(temp.File(name).c_str(), 0600), 0);
    const auto fifo = ShardSet::Open(temp.path());
    ASSERT_FALSE(fifo);
    EXPECT_EQ(fifo.error().code, ErrorCode::kBadFile);
    EXPECT_NE(fifo.error().message.find(name + ": "), std::string::npos) << fifo.error().message;
    EXPECT_NE(fifo.error().message.find("is a FIFO"), std::string::npos);
    temp.Remove(name);
    std::filesystem::create_directory(temp.File(name));
    const auto directory = ShardSet::Open(temp.path());
    ASSERT_FALSE(directory);
    EXPECT_EQ(directory.error().code, ErrorCode::kBadFile);
    EXPECT_NE(directory.error().message.find("is a directory"), std::string::npos);
    temp.Remove(name);
    std::filesystem::create_symlink(name, temp.File(name));
    const auto loop = ShardSet::Open(temp.path());
    ASSERT_FALSE(loop);
    EXPECT_EQ(loop.error().code, ErrorCode::kNotFound);
    EXPECT_NE(loop.error().message.find(std::strerror(ELOOP)), std::string::npos)
        << loop.error().message;
  }
}

TEST(ShardSet, SyntaxErrorsAreNamedWithTheirByte) {
  const tools::TempDir temp;
  temp.CopyFrom(std::string(MEGALITH_TEST_DATA) + "/golden/k3-tiny");
  const std::string name = "model.safetensors.index.json";
  std::string index = temp.Read(name);
  const std::size_t at = index.find("weight_map") + 12;
  index.insert(at, "]");
  temp.Write(name, index);
  const auto shards = ShardSet::Open(temp.path());
  ASSERT_FALSE(shards);
  EXPECT_NE(shards.error().message.find(fmt::format("at byte {} ", index.find(']'))),
            std::string::npos)
      << shards.error().message;
}

TEST_F(FourShards, ReleasedPagesComeBackWhenRead) {
  const auto shards = ShardSet::Open(temp_.path());
  ASSERT_TRUE(shards.has_value()) << shards.error().message;
  const TensorView view = shards->At(*shards->Find("t2"));
  shards->ReleasePages();  // nothing is mapped yet
  const auto bytes = shards->Map(view);
  ASSERT_TRUE(bytes.has_value());
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ((*bytes)[1], std::byte{21});
    shards->ReleasePages();
  }
  EXPECT_EQ(shards->Map(view)->data(), bytes->data());
}

TEST_F(FourShards, ExpectingReadsChangesNothingWhateverTheRange) {
  const auto shards = ShardSet::Open(temp_.path());
  ASSERT_TRUE(shards.has_value()) << shards.error().message;
  TensorView view = shards->At(*shards->Find("t3"));
  shards->ExpectReads(view, 0, 8);
  shards->ExpectReads(view, 4, 100);
  shards->ExpectReads(view, ~std::uint64_t{0}, 8);
  std::vector<std::byte> bytes(8);
  EXPECT_TRUE(shards->Read(view, bytes).has_value());
  EXPECT_EQ(bytes[0], std::byte{30});
  view.shard = 99;
  shards->ExpectReads(view, 0, 8);
}

}  // namespace
}  // namespace megalith::weights
