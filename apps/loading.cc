#include "loading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "progress_bar.h"

namespace megalith::apps {

void AddLoadOptions(CLI::App& command, LoadOptions& options) {
  command
      .add_option("--lora-norm-eps", options.lora_norm_eps,
                  "eps of the q_a and kv_a norms: 1e-6 as the released code, or rms: rms_norm_eps "
                  "as most other engines")
      ->check(CLI::IsMember({"1e-6", "rms"}))
      ->capture_default_str();
  command
      .add_option("--huge-pages", options.huge_pages,
                  "Pages of the weights: off, madvise, reserved (vm.nr_hugepages)")
      ->check(CLI::IsMember({"off", "madvise", "reserved"}))
      ->capture_default_str();
}

Result<std::unique_ptr<engine::Engine>> LoadEngine(const std::string& directory, const Cli& cli,
                                                   const LoadOptions& load,
                                                   engine::EngineOptions options) {
  ProgressBar bar(cli.common.quiet);
  options.num_workers = cli.common.workers;
  options.lora_norm_uses_rms_eps = load.lora_norm_eps == "rms";
  MEGALITH_ASSIGN_OR_RETURN(options.huge_pages, ParseHugePages(load.huge_pages));
  const bool runs_kernels = options.executor == engine::ExecutorKind::kCpu;
  const bool is_default = options.activation_dtype == DType::kBf16 || !cli.common.isa.empty();
  if (runs_kernels && is_default) {
    MEGALITH_ASSIGN_OR_RETURN(options.isa, ChooseIsa(cli.common));
  }
  options.progress = bar.Callback();
  options.cancel = cli.cancel;
  return engine::Engine::Load(directory, options);
}

Result<std::vector<std::int32_t>> ParseIds(const std::string& text) {
  std::vector<std::int32_t> ids;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string_view piece(text.data() + begin, end - begin);
    constexpr std::string_view kSpace = " \t\r\n";
    piece.remove_prefix(std::min(piece.find_first_not_of(kSpace), piece.size()));
    while (!piece.empty() && kSpace.find(piece.back()) != std::string_view::npos) {
      piece.remove_suffix(1);
    }
    std::int32_t id = 0;
    const auto [rest, error] = std::from_chars(piece.data(), piece.data() + piece.size(), id);
    if (error != std::errc() || rest != piece.data() + piece.size() || id < 0) {
      return Fail(ErrorCode::kUsage, "token ids: numbers separated by commas expected, '{}' found",
                  piece);
    }
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

std::string FormatIds(const std::vector<std::int32_t>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

Result<std::string> ReadText(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Fail(ErrorCode::kNotFound, "{}: cannot be opened", path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return Fail(ErrorCode::kIo, "{}: cannot be read", path);
  return text;
}

}  // namespace megalith::apps
