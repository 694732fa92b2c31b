// make_fake_checkpoint CONFIG OUT_DIR: a checkpoint without data for trying commands that read
// headers only (see fake_checkpoint.h).

#include <cstdio>

#include "base/file.h"
#include "tools/fake_checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CONFIG OUT_DIR\n", argv[0]);
    return 2;
  }
  const auto config = megalith::ReadTextFile(argv[1], std::uint64_t{16} << 20);
  if (!config) {
    std::fprintf(stderr, "%s\n", config.error().message.c_str());
    return 1;
  }
  const auto status = megalith::tools::MakeFakeCheckpoint(argv[2], *config);
  if (!status) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    return 1;
  }
  return 0;
}
