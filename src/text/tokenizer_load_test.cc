// Loading a tokenizer from a folder: which files, and what is refused.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "text/text_test_util.h"
#include "text/tokenizer.h"

namespace megalith::text {
namespace {

constexpr char kConfig[] = R"({"added_tokens_decoder":{"258":{"content":"[BOS]","special":true}}})";

class TokenizerLoad : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::path(testing::TempDir()) /
           fmt::format("megalith_tokenizer_load_{}_{}", ::getpid(), test->name());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const char* name, const std::string& contents) {
    std::ofstream(dir_ / name, std::ios::binary) << contents;
  }

  void WriteBoth() {
    Write("tiktoken.model", MakeRankFile({"ab", " \x80"}));
    Write("tokenizer_config.json", kConfig);
  }

  Error LoadError(std::optional<std::int64_t> vocab_size = std::nullopt) {
    auto tokenizer = Tokenizer::Load(dir_, vocab_size);
    EXPECT_FALSE(tokenizer);
    return tokenizer ? Error{ErrorCode::kInternal, ""} : tokenizer.error();
  }

  std::filesystem::path dir_;
};

// What a converter writes: every byte as a printable character.
nlohmann::json MakeHfTokenizer() {
  nlohmann::json vocab;
  std::vector<std::string> characters(256);
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    AppendUtf8(printable ? byte : next++, characters[byte]);
    vocab[characters[byte]] = byte;
  }
  vocab["ab"] = 256;
  vocab[characters[' '] + characters[0x80]] = 257;
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}}},
          {"added_tokens",
           {{{"id", 258}, {"content", "[BOS]"}},
            {{"id", 259}, {"content", "<|reserved_token_259|>"}},
            {{"id", 600}, {"content", "<|left_over|>"}}}}};
}

TEST_F(TokenizerLoad, PublishedFilesAreEnough) {
  WriteBoth();
  const Tokenizer tokenizer = ValueOf(Tokenizer::Load(dir_, 514));
  EXPECT_EQ(tokenizer.vocab_size(), 514);
  EXPECT_EQ(tokenizer.TokenBytes(258), "[BOS]");
  EXPECT_NE(tokenizer.source().find("tiktoken.model (258 ranks)"), std::string::npos);
  EXPECT_EQ(tokenizer.TokenBytes(513), "<|reserved_token_513|>");
}

TEST_F(TokenizerLoad, OnlyTokenizerJsonSaysWhatIsNeeded) {
  Write("tokenizer.json", "{}");
  const Error error = LoadError();
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_NE(error.message.find("tiktoken.model"), std::string::npos);
  EXPECT_NE(error.message.find("tokenizer.json"), std::string::npos);
}

TEST_F(TokenizerLoad, MissingFilesAreNamed) {
  EXPECT_NE(LoadError().message.find("tiktoken.model"), std::string::npos);
  Write("tiktoken.model", MakeRankFile());
  EXPECT_NE(LoadError().message.find("tokenizer_config.json"), std::string::npos);
  EXPECT_EQ(LoadError().code, ErrorCode::kNotFound);
}

TEST_F(TokenizerLoad, FolderInPlaceOfFileIsRefused) {
  WriteBoth();
  std::filesystem::remove(dir_ / "tiktoken.model");
  std::filesystem::create_directory(dir_ / "tiktoken.model");
  EXPECT_EQ(LoadError().code, ErrorCode::kBadFile);
  EXPECT_NE(LoadError().message.find("is a directory"), std::string::npos);
}

TEST_F(TokenizerLoad, FileThatCannotBeOpenedSaysWhy) {
  WriteBoth();
  std::filesystem::remove(dir_ / "tiktoken.model");
  std::filesystem::create_symlink("tiktoken.model", dir_ / "tiktoken.model");
  Error error = LoadError();
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_NE(error.message.find(std::strerror(ELOOP)), std::string::npos) << error.message;

  WriteBoth();
  if (::geteuid() == 0) return;  // root may read everything
  std::filesystem::remove(dir_ / "tiktoken.model");
  Write("tiktoken.model", MakeRankFile());
  std::filesystem::permissions(dir_ / "tiktoken.model", std::filesystem::perms::none);
  error = LoadError();
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_NE(error.message.find(std::strerror(EACCES)), std::string::npos) << error.message;
}

TEST_F(TokenizerLoad, AgreeingTokenizerJsonIsAccepted) {
  WriteBoth();
  Write("tokenizer.json", MakeHfTokenizer().dump());
  EXPECT_TRUE(Tokenizer::Load(dir_));
}

TEST_F(TokenizerLoad, TokenizerJsonThatDisagreesOnOneIdIsRefused) {
  WriteBoth();
  auto hf = MakeHfTokenizer();
  std::swap(hf["model"]["vocab"]["a"], hf["model"]["vocab"]["ab"]);
  Write("tokenizer.json", hf.dump());
  Error error = LoadError();
  EXPECT_EQ(error.code, ErrorCode::kBadFile);
  EXPECT_NE(error.message.find("\"a\" has id 256"), std::string::npos) << error.message;

  hf = MakeHfTokenizer();
  hf["added_tokens"][0]["content"] = "[EOS]";
  Write("tokenizer.json", hf.dump());
  EXPECT_NE(LoadError().message.find("id 258"), std::string::npos);

  hf = MakeHfTokenizer();
  hf["model"]["vocab"].erase("ab");
  Write("tokenizer.json", hf.dump());
  EXPECT_NE(LoadError().message.find("257 ordinary"), std::string::npos);

  Write("tokenizer.json", "{\"model\":");
  EXPECT_NE(LoadError().message.find("tokenizer.json"), std::string::npos);
}

TEST_F(TokenizerLoad, VocabSizeOfTheModelMustFit) {
  WriteBoth();
  const Error error = LoadError(515);
  EXPECT_EQ(error.code, ErrorCode::kBadConfig);
  EXPECT_NE(error.message.find("515"), std::string::npos);
  EXPECT_EQ(LoadError(-1).code, ErrorCode::kBadConfig);
}

std::string ConfigError(const std::string& config) {
  const auto tokenizer = Tokenizer::FromFiles(MakeRankFile(), config);
  return tokenizer ? "no error" : tokenizer.error().message;
}

TEST(TokenizerConfig, LeftoverIdsAreDroppedAndListed) {
  const Tokenizer tokenizer = ValueOf(Tokenizer::FromFiles(
      MakeRankFile(), R"({"added_tokens_decoder":{"900":{"content":"old"},"512":{"content":"<x>"},)"
                      R"("511":{"content":"[PAD]"}}})"));
  EXPECT_EQ(tokenizer.special_tokens().dropped_ids(), (std::vector<TokenId>{512, 900}));
  EXPECT_EQ(tokenizer.TokenBytes(511), "[PAD]");
  EXPECT_EQ(tokenizer.special_tokens().Find("old"), std::nullopt);
}

TEST(TokenizerConfig, BadEntriesAreRefused) {
  EXPECT_NE(ConfigError("").find("tokenizer_config.json"), std::string::npos);
  EXPECT_NE(ConfigError("{}").find("added_tokens_decoder"), std::string::npos);
  EXPECT_NE(ConfigError(R"({"added_tokens_decoder":[]})").find("array"), std::string::npos);
  for (const char* id : {"x", "-1", "256x", "", "99999999999"}) {
    EXPECT_NE(
        ConfigError(fmt::format(R"({{"added_tokens_decoder":{{"{}":{{"content":"a"}}}}}})", id))
            .find("token ids"),
        std::string::npos)
        << id;
  }
  EXPECT_NE(ConfigError(R"({"added_tokens_decoder":{"255":{"content":"a"}}})").find("ordinary"),
            std::string::npos);
  for (const char* token : {R"({})", R"({"content":""})", R"({"content":7})", R"("a")"}) {
    EXPECT_NE(ConfigError(fmt::format(R"({{"added_tokens_decoder":{{"256":{}}}}})", token))
                  .find("content"),
              std::string::npos)
        << token;
  }
  EXPECT_NE(ConfigError(R"({"added_tokens_decoder":{"256":{"content":"a"},"300":{"content":"a"}}})")
                .find("name of id"),
            std::string::npos);
  EXPECT_NE(
      ConfigError(R"({"added_tokens_decoder":{"256":{"content":"a"},"0256":{"content":"b"}}})")
          .find("twice"),
      std::string::npos);
}

}  // namespace
}  // namespace megalith::text
