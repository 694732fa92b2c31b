#include "base/file.h"
#include "text/hf_tokenizer.h"
#include "text/read_file.h"
#include "text/tokenizer.h"

namespace megalith::text {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
// The tokenizer.json of a vocabulary of 160,000 tokens with its merges is about 20 MB.
constexpr std::size_t kMaxHfTokenizerBytes = std::size_t{256} << 20;

// Also what cannot be looked at exists: reading it says why.
bool Exists(const std::filesystem::path& path) { return !IsAbsent(path.string()); }

}  // namespace

Result<Tokenizer> Tokenizer::Load(const std::filesystem::path& model_dir,
                                  std::optional<std::int64_t> vocab_size) {
  const auto ranks_path = model_dir / "tiktoken.model";
  const auto config_path = model_dir / "tokenizer_config.json";
  const auto hf_path = model_dir / "tokenizer.json";

  if (!Exists(ranks_path)) {
    if (Exists(hf_path)) {
      return Fail(
          ErrorCode::kNotFound,
          "{}: not found. The folder has a tokenizer.json, which is not read: the "
          "publisher's rank file tiktoken.model (and tokenizer_config.json) is needed; copy "
          "it from the original model",
          ranks_path.string());
    }
    return Fail(ErrorCode::kNotFound,
                "{}: not found. A tokenizer needs the files tiktoken.model and "
                "tokenizer_config.json",
                ranks_path.string());
  }
  if (!Exists(config_path)) {
    return Fail(ErrorCode::kNotFound,
                "{}: not found. It names the special tokens above the ranks of tiktoken.model",
                config_path.string());
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::string ranks,
                            ReadSmallFile(ranks_path, Vocabulary::kMaxFileBytes));
  MEGALITH_ASSIGN_OR_RETURN(const std::string config, ReadSmallFile(config_path, kMaxConfigBytes));
  MEGALITH_ASSIGN_OR_RETURN(Tokenizer tokenizer, Create(ranks, ranks_path.string(), config,
                                                        config_path.string(), vocab_size));
  if (Exists(hf_path)) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string hf, ReadSmallFile(hf_path, kMaxHfTokenizerBytes));
    MEGALITH_RETURN_IF_ERROR(CheckHfTokenizer(tokenizer, hf, hf_path.string()));
  }
  return tokenizer;
}

}  // namespace megalith::text
