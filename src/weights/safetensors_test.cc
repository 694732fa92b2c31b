#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tools/temp_dir.h"

namespace megalith::weights {
namespace {

/// A header over data that the header itself accounts for, unless `data_bytes` says otherwise.
Result<TensorHeader> Parse(std::string_view json, std::uint64_t data_bytes) {
  return TensorHeader::Parse(json, 8 + json.size() + data_bytes, "test");
}

void ExpectRefused(std::string_view json, std::uint64_t data_bytes, std::string_view reason) {
  const auto header = Parse(json, data_bytes);
  ASSERT_FALSE(header) << json;
  EXPECT_NE(header.error().message.find(reason), std::string::npos) << header.error().message;
  EXPECT_NE(header.error().message.find("test"), std::string::npos) << header.error().message;
}

constexpr std::string_view kTwo =
    R"({"b":{"dtype":"BF16","shape":[4,8],"data_offsets":[64,128]},)"
    R"("a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},"__metadata__":{"format":"pt"}})";

TEST(SafetensorsHeader, EntriesComeInFileOrderWithTheirShapes) {
  const auto header = Parse(kTwo, 128);
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->num_tensors(), 2u);
  EXPECT_EQ(header->data_offset(), 8 + kTwo.size());
  EXPECT_EQ(header->tensor_bytes(), 128u);
  const HeaderEntry a = header->At(0);
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_EQ(std::vector<std::int64_t>(a.shape.begin(), a.shape.end()),
            std::vector<std::int64_t>{16});
  const HeaderEntry b = header->At(1);
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.begin, 64u);
  EXPECT_EQ(b.end, 128u);
  EXPECT_EQ(b.shape.size(), 2u);
}

TEST(SafetensorsHeader, EmptyHeaderScalarsAndEmptyTensorsAreLegal) {
  EXPECT_TRUE(Parse("{}", 0));
  EXPECT_TRUE(Parse("{}      ", 0));
  EXPECT_TRUE(Parse(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4));
  EXPECT_TRUE(Parse(R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}})", 0));
  EXPECT_TRUE(Parse(R"({"e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
                    R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                    4));
}

TEST(SafetensorsHeader, EscapedNamesAreDecoded) {
  const auto header = Parse(R"({"\u0061\"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->At(0).name, "a\"b");
}

// Several shards of a large download were cut short with their headers intact; pages past the end
// read as zeros and the model produced gibberish on some starts.
TEST(SafetensorsHeader, FileOfAnotherSizeIsRefusedWithTheMissingBytes) {
  ExpectRefused(kTwo, 127, "1 bytes are missing");
  ExpectRefused(kTwo, 0, "128 bytes are missing");
  ExpectRefused(kTwo, 129, "1 bytes too many");
}

TEST(SafetensorsHeader, ShapeThatDisagreesWithTheRangeIsRefused) {
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[16,4],"data_offsets":[0,40000]}})", 40000, "t");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[16,4],"data_offsets":[0,252]}})", 252, "takes 256");
  ExpectRefused(R"({"t":{"dtype":"BF16","shape":[],"data_offsets":[0,4]}})", 4, "takes 2");
  // Products that wrap to the right number of bytes.
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                "t");
  ExpectRefused(R"({"t":{"dtype":"U8","shape":[9223372036854775807,2],"data_offsets":[0,0]}})", 0,
                "t");
  ExpectRefused(R"({"t":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
                "t");
}

TEST(SafetensorsHeader, MalformedEntriesAreRefused) {
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "list of two");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[]}})", 4, "list of two");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "list of two");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4.0]}})", 4, "integers");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, "integers");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "not a range");
  ExpectRefused(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}})", 4,
                "range");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "non-negative");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})", 4, "integers");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})", 4, "list");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
                "at most");
  ExpectRefused(R"({"t":{"dtype":"Q4","shape":[4],"data_offsets":[0,4]}})", 4, "Q4");
  ExpectRefused(R"({"t":{"dtype":7,"shape":[4],"data_offsets":[0,4]}})", 4, "dtype");
  ExpectRefused(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4, "dtype is missing");
  ExpectRefused(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4, "shape is missing");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1]}})", 4, "data_offsets is missing");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "keys");
  ExpectRefused(R"({"t":[]})", 0, "object");
  ExpectRefused(R"({"__metadata__":{"format":1}})", 0, "__metadata__");
  ExpectRefused(R"({"__metadata__":"pt"})", 0, "__metadata__");
  ExpectRefused("", 0, "begin with");
  ExpectRefused("[]", 0, "begin with");
  ExpectRefused(" {}", 0, "begin with");
  ExpectRefused("{} {}", 0, "JSON");
  ExpectRefused("{", 0, "JSON");
  ExpectRefused("{\"a\xff\":{}}", 0, "JSON");
  ExpectRefused("{\"t\":" + std::string(5000, '[') + std::string(5000, ']') + "}", 0, "JSON");
}

// The JSON reader of another engine silently kept the last of two entries of the same name.
TEST(SafetensorsHeader, DuplicateKeysAreRefused) {
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                R"("t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                8, "t occurs twice");
  ExpectRefused(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("\u0074":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                8, "t occurs twice");
  ExpectRefused(R"({"t":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
                "dtype occurs twice");
  ExpectRefused(R"({"__metadata__":{},"__metadata__":{}})", 0, "twice");
}

TEST(SafetensorsHeader, OverlappingRangesAreRefused) {
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[96],"data_offsets":[0,96]},)"
                R"("b":{"dtype":"U8","shape":[96],"data_offsets":[64,160]}})",
                160, "overlaps");
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[96],"data_offsets":[0,96]},)"
                R"("b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})",
                96, "b at [8, 16) overlaps tensor a");
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                R"("b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                8, "overlaps");
}

TEST(SafetensorsHeader, PaddingUpToAnAlignmentIsAcceptedAndLargerGapsAreNot) {
  const auto with_gap = [](int gap) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[8],"data_offsets":[0,8]}},)"
                       R"("b":{{"dtype":"U8","shape":[8],"data_offsets":[{},{}]}}}})",
                       8 + gap, 16 + gap);
  };
  EXPECT_TRUE(Parse(with_gap(1), 17));
  EXPECT_TRUE(Parse(with_gap(63), 79));
  ExpectRefused(with_gap(64), 80, "belong to no tensor");
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[64,72]}})", 72,
                "belong to no tensor");
}

TEST(SafetensorsHeader, LongAndUnprintableNamesAreShortenedInMessages) {
  const std::string name(100'000, 'n');
  const auto header = Parse("{\"" + name + "\":[]}", 0);
  ASSERT_FALSE(header);
  EXPECT_LT(header.error().message.size(), 400u);
  const auto control = Parse("{\"a\\nb\":[]}", 0);
  ASSERT_FALSE(control);
  EXPECT_EQ(control.error().message.find('\n'), std::string::npos);
}

class SafetensorsFile : public testing::Test {
 protected:
  Result<TensorHeader> Read(std::string_view content) {
    temp_.Write("f.safetensors", content);
    auto file = RandomAccessFile::Open(temp_.File("f.safetensors"));
    if (!file) return tl::unexpected<Error>(file.error());
    return TensorHeader::Read(*file);
  }
  static std::string Prefixed(std::uint64_t length, std::string_view rest) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    return text + std::string(rest);
  }
  tools::TempDir temp_;
};

TEST_F(SafetensorsFile, GoodFileIsRead) {
  const auto header = Read(Prefixed(kTwo.size(), std::string(kTwo) + std::string(128, 'x')));
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->num_tensors(), 2u);
}

// A header length near the 64-bit maximum wrapped an allocation size in another engine.
TEST_F(SafetensorsFile, HeaderLengthOutsideTheFileIsRefused) {
  const std::string rest(92, 'x');
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{0xffff'ffff'ffff'ffff}, std::uint64_t{100},
        std::uint64_t{93}, std::uint64_t{0xffff'ffff'ffff'fff8}, kMaxHeaderBytes + 1,
        std::uint64_t{1} << 32}) {
    const auto header = Read(Prefixed(length, rest));
    ASSERT_FALSE(header) << length;
    EXPECT_EQ(header.error().code, ErrorCode::kBadFile) << length;
    EXPECT_NE(header.error().message.find("f.safetensors"), std::string::npos);
  }
  for (const char* content : {"", "1234567"}) EXPECT_FALSE(Read(content));
}

TEST_F(SafetensorsFile, TruncatedAtEveryLengthIsRefused) {
  const std::string good = Prefixed(kTwo.size(), std::string(kTwo) + std::string(128, 'x'));
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(Read(std::string_view(good).substr(0, length))) << length;
  }
}

/// What the rest of the program relies on, whatever the header said.
void ExpectSound(const TensorHeader& header, std::uint64_t file_bytes) {
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < header.num_tensors(); ++i) {
    const HeaderEntry entry = header.At(i);
    ASSERT_LE(entry.begin, entry.end);
    ASSERT_LE(header.data_offset() + entry.end, file_bytes);
    std::uint64_t bytes = static_cast<std::uint64_t>(DTypeBytes(entry.dtype));
    for (const std::int64_t extent : entry.shape) bytes *= static_cast<std::uint64_t>(extent);
    ASSERT_EQ(bytes, entry.end - entry.begin);
    if (entry.begin != entry.end) {
      ASSERT_GE(entry.begin, covered);
      covered = entry.end;
    }
  }
}

TEST(SafetensorsHeader, MutatedHeadersGiveAnErrorOrASoundHeader) {
  std::mt19937 random(20240229);
  const std::string alphabet = "0123456789-\"{}[],:.eFU8BT16 \\";
  int accepted = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string json(kTwo);
    for (int edits = static_cast<int>(random() % 3); edits > 0; --edits) {
      const std::size_t at = random() % json.size();
      switch (random() % 4) {
        case 0:
          json[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          json.erase(at, 1 + random() % 8);
          break;
        case 2:
          json.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          json[at] = static_cast<char>(random());
      }
      if (json.empty()) json = "{";
    }
    const std::uint64_t file_bytes = 8 + json.size() + (random() % 4 == 0 ? random() % 300 : 128);
    const auto header = TensorHeader::Parse(json, file_bytes, "test");
    if (!header) continue;
    ++accepted;
    ExpectSound(*header, file_bytes);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace megalith::weights
