#pragma once

// Helpers of the tests in this folder.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "text/base64.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace megalith::text {

inline std::string ReadTestFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::filesystem::path GoldenDir() {
  return std::filesystem::path(MEGALITH_TEST_DATA) / "golden" / "tokenizer";
}

inline std::filesystem::path NanoDir() {
  return std::filesystem::path(MEGALITH_SOURCE_DIR) / "models" / "k3-nano";
}

/// The value of a Result, or a test failure with its message.
template <typename T>
T ValueOf(Result<T> result) {
  if (!result) throw std::runtime_error("unexpected error: " + result.error().message);
  return std::move(*result);
}

/// The vocabulary of the released model: golden ranks and the special names of spec.json.
const Tokenizer& ReleasedTokenizer();

/// The embedded model's vocabulary of 4096.
const Tokenizer& NanoTokenizer();

/// A rank file with the 256 single bytes (byte b has rank b) and `more` behind them.
inline std::string MakeRankFile(const std::vector<std::string>& more = {}) {
  std::string file;
  std::size_t rank = 0;
  const auto add = [&](std::string_view bytes) {
    file += EncodeBase64(bytes) + " " + std::to_string(rank++) + "\n";
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& bytes : more) add(bytes);
  return file;
}

/// SplitMix64: the same numbers on every machine.
class TestRandom {
 public:
  explicit TestRandom(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  /// 0 .. bound-1.
  std::size_t Below(std::size_t bound) { return static_cast<std::size_t>(Next() % bound); }

  template <typename Container>
  const auto& Pick(const Container& container) {
    return container[Below(std::size(container))];
  }

 private:
  std::uint64_t state_;
};

/// Random valid UTF-8 with characters of every class the splitting pattern knows, in runs.
std::string RandomText(TestRandom& random, std::size_t num_characters);

/// Random bytes with a good share of valid and nearly valid UTF-8.
std::string RandomBytes(TestRandom& random, std::size_t num_bytes);

}  // namespace megalith::text
