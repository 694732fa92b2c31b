#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/dtype.h"

namespace megalith {
namespace {

class TempFile {
 public:
  explicit TempFile(std::string_view content) {
    path_ = testing::TempDir() + "megalith_file_test_XXXXXX";
    const int descriptor = ::mkstemp(path_.data());
    if (descriptor >= 0) ::close(descriptor);
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TempFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string AsText(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

TEST(RandomAccessFile, ReadAtReturnsTheBytesOfTheRange) {
  const TempFile temp("0123456789");
  const auto file = RandomAccessFile::Open(temp.path());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->size_bytes(), 10u);
  std::string text(4, ' ');
  ASSERT_TRUE(file->ReadAt(3, std::as_writable_bytes(std::span(text))));
  EXPECT_EQ(text, "3456");
  ASSERT_TRUE(file->ReadAt(10, {}));
}

TEST(RandomAccessFile, ReadPastTheEndIsAnErrorNotAShortRead) {
  const TempFile temp("0123456789");
  const auto file = RandomAccessFile::Open(temp.path());
  ASSERT_TRUE(file);
  std::string text(4, ' ');
  const Status status = file->ReadAt(7, std::as_writable_bytes(std::span(text)));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_NE(status.error().message.find(temp.path()), std::string::npos);
  EXPECT_FALSE(file->ReadAt(0xffff'ffff'ffff'fff0u, std::as_writable_bytes(std::span(text))));
}

TEST(RandomAccessFile, AbsentFileAndDirectoryAreRefused) {
  const auto absent = RandomAccessFile::Open("/nonexistent/file");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  const auto directory = RandomAccessFile::Open(testing::TempDir());
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::kBadFile);
  EXPECT_NE(directory.error().message.find("is a directory"), std::string::npos);
  EXPECT_FALSE(RandomAccessFile::Open(std::string("/tmp\0/x", 7)));
}

TEST(RandomAccessFile, FifoAndDeviceAreRefusedWithoutWaiting) {
  const TempFile temp("");
  ASSERT_EQ(::unlink(temp.path().c_str()), 0);
  ASSERT_EQ(::mkfifo(temp.path().c_str(), 0600), 0);
  const auto fifo = RandomAccessFile::Open(temp.path());
  ASSERT_FALSE(fifo);
  EXPECT_EQ(fifo.error().code, ErrorCode::kBadFile);
  EXPECT_NE(fifo.error().message.find("is a FIFO"), std::string::npos) << fifo.error().message;
  EXPECT_FALSE(ReadTextFile(temp.path(), 10));
  const auto device = RandomAccessFile::Open("/dev/null");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kBadFile);
  EXPECT_NE(device.error().message.find("is a device"), std::string::npos);
}

TEST(RandomAccessFile, PathThatCannotBeOpenedIsBadInputWithTheSystemsText) {
  const TempFile temp("");
  ASSERT_EQ(::unlink(temp.path().c_str()), 0);
  EXPECT_TRUE(IsAbsent(temp.path()));
  ASSERT_EQ(::symlink(temp.path().c_str(), temp.path().c_str()), 0);
  const auto loop = RandomAccessFile::Open(temp.path());
  ASSERT_FALSE(loop);
  EXPECT_EQ(loop.error().code, ErrorCode::kNotFound);
  EXPECT_NE(loop.error().message.find(std::strerror(ELOOP)), std::string::npos);
  EXPECT_FALSE(IsAbsent(temp.path()));
}

TEST(RandomAccessFile, FileWithoutPermissionSaysSo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const TempFile temp("abc");
  ASSERT_EQ(::chmod(temp.path().c_str(), 0), 0);
  const auto file = RandomAccessFile::Open(temp.path());
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_NE(file.error().message.find(std::strerror(EACCES)), std::string::npos);
}

TEST(RandomAccessFile, MovedFromFileLeavesTheDescriptorToTheTarget) {
  const TempFile temp("abc");
  auto file = RandomAccessFile::Open(temp.path());
  ASSERT_TRUE(file);
  RandomAccessFile moved(std::move(*file));
  std::string text(3, ' ');
  EXPECT_TRUE(moved.ReadAt(0, std::as_writable_bytes(std::span(text))));
  auto other = RandomAccessFile::Open(temp.path());
  ASSERT_TRUE(other);
  moved = std::move(*other);
  EXPECT_TRUE(moved.ReadAt(0, std::as_writable_bytes(std::span(text))));
}

TEST(MappedFile, ShowsTheWholeFileAndOutlivesItsDescriptor) {
  const TempFile temp("0123456789");
  auto map = MappedFile::Open(temp.path());
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_EQ(AsText(map->bytes()), "0123456789");
  const MappedFile moved(std::move(*map));
  EXPECT_EQ(AsText(moved.bytes()), "0123456789");
}

TEST(MappedFile, EmptyFileIsAnEmptySpan) {
  const TempFile temp("");
  const auto map = MappedFile::Open(temp.path());
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_TRUE(map->bytes().empty());
}

TEST(ReadTextFile, LargerThanAllowedIsRefused) {
  const TempFile temp("0123456789");
  const auto text = ReadTextFile(temp.path(), 10);
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "0123456789");
  const auto refused = ReadTextFile(temp.path(), 9);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kBadFile);
}

TEST(DType, NamesAndSizesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kI64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
    EXPECT_GE(DTypeBytes(dtype), 1);
    EXPECT_LE(DTypeBytes(dtype), 8);
  }
  EXPECT_EQ(DTypeBytes(DType::kBf16), 2);
  EXPECT_EQ(ParseDType("bf16"), std::nullopt);
  EXPECT_EQ(ParseDType(""), std::nullopt);
}

}  // namespace
}  // namespace megalith
