// Runs a fuzz target once over each file of a folder, and over the empty input. Used where there is
// no libFuzzer, so that inputs that once failed are tested in every build.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(argv[1], error)) files.push_back(entry.path());
  if (error || files.empty()) {
    std::fprintf(stderr, "%s: no corpus: %s\n", argv[1],
                 error ? error.message().c_str() : "the folder is empty");
    return 1;
  }
  std::sort(files.begin(), files.end());
  LLVMFuzzerTestOneInput(nullptr, 0);
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    // Named before it runs, since a failure ends the process.
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);
    // A copy of exactly this size, so that sanitizers see a read beyond it.
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu inputs\n", files.size());
  return 0;
}
