#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace megalith::tools {

/// A directory that lives as long as the object.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "megalith_test_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TempDir() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const { return path_ + "/" + std::string(name); }
  void Write(std::string_view name, std::string_view content) const {
    std::ofstream(File(name), std::ios::binary) << content;
  }
  std::string Read(std::string_view name) const {
    std::ifstream file(File(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void Remove(std::string_view name) const {
    std::error_code error;
    std::filesystem::remove(File(name), error);
  }
  void Resize(std::string_view name, std::uint64_t num_bytes) const {
    std::error_code error;
    std::filesystem::resize_file(File(name), num_bytes, error);
  }
  std::uint64_t SizeOf(std::string_view name) const {
    std::error_code error;
    return std::filesystem::file_size(File(name), error);
  }
  void CopyFrom(const std::string& directory) const {
    std::filesystem::copy(directory, path_,
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
  }

 private:
  std::string path_;
};

}  // namespace megalith::tools
