#include "base/npy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

namespace megalith {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

std::string Header(std::string dictionary) {
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(dictionary.size() & 0xff);
  text += static_cast<char>(dictionary.size() >> 8);
  return text + dictionary;
}

TEST(Npy, GoldenArraysHaveTheShapesTheirReadmeStates) {
  const std::string golden = std::string(MEGALITH_TEST_DATA) + "/golden/k3-unit/golden/";
  const auto logits = ReadNpy(golden + "p007_logits.npy");
  ASSERT_TRUE(logits) << logits.error().message;
  EXPECT_EQ(logits->dtype, DType::kF32);
  EXPECT_EQ(logits->shape, (std::vector<std::int64_t>{7 + 31, 512}));
  EXPECT_EQ(logits->As<float>().size(), 38u * 512u);
  const auto ids = ReadNpy(golden + "p007_router_ids.npy");
  ASSERT_TRUE(ids) << ids.error().message;
  EXPECT_EQ(ids->dtype, DType::kI16);
  EXPECT_EQ(ids->shape, (std::vector<std::int64_t>{1, 38, 4}));
  for (const std::int16_t id : ids->As<std::int16_t>()) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, 16);
  }
  const auto half = ReadNpy(golden + "p040_logits_bf16.npy");
  ASSERT_TRUE(half) << half.error().message;
  EXPECT_EQ(half->dtype, DType::kF16);
}

TEST(Npy, EncodedArraysReadBackForEveryTypeAndRank) {
  const std::vector<std::vector<std::int64_t>> shapes = {{},     {0},       {3},
                                                         {2, 3}, {4, 0, 2}, {1, 2, 3, 4}};
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kI16, DType::kI32, DType::kU8}) {
    for (const auto& shape : shapes) {
      std::int64_t count = DTypeBytes(dtype);
      for (const std::int64_t extent : shape) count *= extent;
      std::vector<std::byte> data(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 + 1);
      const auto text = EncodeNpy(dtype, shape, data);
      ASSERT_TRUE(text) << text.error().message;
      EXPECT_EQ((text->size() - data.size()) % 64, 0u);
      const auto array = ParseNpy(BytesOf(*text), "test");
      ASSERT_TRUE(array) << array.error().message;
      EXPECT_EQ(array->dtype, dtype);
      EXPECT_EQ(array->shape, shape);
      EXPECT_EQ(array->data, data);
    }
  }
}

TEST(Npy, WrittenFileReadsBack) {
  const std::string path = testing::TempDir() + fmt::format("megalith_npy_{}.npy", ::getpid());
  const std::vector<float> values = {1.0f, -2.5f, 3.25f, 0.0f, 5.0f, 6.0f};
  const std::vector<std::int64_t> shape = {3, 2};
  ASSERT_TRUE(WriteNpy(path, DType::kF32, shape, std::as_bytes(std::span(values))));
  const auto array = ReadNpy(path);
  ::unlink(path.c_str());
  ASSERT_TRUE(array) << array.error().message;
  EXPECT_EQ(std::vector<float>(array->As<float>().begin(), array->As<float>().end()), values);
  EXPECT_FALSE(
      WriteNpy("/nonexistent/x.npy", DType::kF32, shape, std::as_bytes(std::span(values))));
}

TEST(Npy, DataThatDoesNotFillTheShapeIsRefused) {
  const std::vector<std::byte> data(12);
  const std::vector<std::int64_t> shape = {4};
  EXPECT_FALSE(EncodeNpy(DType::kF32, shape, data));
  EXPECT_FALSE(EncodeNpy(DType::kBf16, std::vector<std::int64_t>{6}, data));
  EXPECT_FALSE(EncodeNpy(DType::kF32, std::vector<std::int64_t>{-3}, data));
}

TEST(Npy, MalformedFilesAreRefused) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n";
  ASSERT_TRUE(ParseNpy(BytesOf(Header(good) + "abcd"), "test"));
  EXPECT_FALSE(ParseNpy(BytesOf(Header(good) + "abc"), "test"));
  EXPECT_FALSE(ParseNpy(BytesOf(Header(good) + "abcde"), "test"));
  EXPECT_FALSE(ParseNpy(BytesOf(""), "test"));
  EXPECT_FALSE(ParseNpy(BytesOf("\x93NUMPY"), "test"));
  std::string version2 = Header(good) + "abcd";
  version2[6] = 2;
  EXPECT_FALSE(ParseNpy(BytesOf(version2), "test"));
  const auto refused = [](std::string dictionary, std::string data) {
    return !ParseNpy(BytesOf(Header(dictionary) + data), "test");
  };
  EXPECT_TRUE(refused("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", "abcd"));
  EXPECT_TRUE(refused("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "abcd"));
  EXPECT_TRUE(refused("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", "abcdabcd"));
  EXPECT_TRUE(refused("{'descr': '<f4', 'shape': (1,), }", "abcd"));
  EXPECT_TRUE(refused("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "abcd"));
  EXPECT_TRUE(refused("{'descr': '<f4', 'fortran_order': False, 'shape': 1, }", "abcd"));
  EXPECT_TRUE(
      refused("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "abcd"));
  // 2^32 x 2^32 elements wrap to zero bytes in 64-bit arithmetic.
  EXPECT_TRUE(
      refused("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", ""));
  EXPECT_TRUE(
      refused("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", ""));
}

TEST(Npy, MutatedFilesNeverCrash) {
  const std::vector<std::byte> data(24);
  const auto good = EncodeNpy(DType::kF32, std::vector<std::int64_t>{2, 3}, data);
  ASSERT_TRUE(good);
  std::mt19937 random(20240131);
  for (int round = 0; round < 20000; ++round) {
    std::string text = *good;
    for (int edits = static_cast<int>(random() % 3); edits >= 0; --edits) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) text.resize(random() % (text.size() + 1));
    const auto array = ParseNpy(BytesOf(text), "test");
    if (!array) continue;
    std::int64_t count = 1;
    for (const std::int64_t extent : array->shape) count *= extent;
    EXPECT_EQ(count, array->num_elements());
  }
}

}  // namespace
}  // namespace megalith
