// megalith tokenize and detokenize: text to token ids and back.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli.h"
#include "commands.h"
#include "console.h"
#include "default_model.h"
#include "loading.h"
#include "text/stream_decoder.h"

namespace megalith::apps {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string text;
  std::string file;
  std::string ids;
  bool specials = false;
  bool json = false;
};

Status Tokenize(const TokenizeOptions& options, bool has_text) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::Load(directory));
  std::string input = options.text;
  if (!has_text) {
    MEGALITH_ASSIGN_OR_RETURN(input, ReadText(options.file.empty() ? "-" : options.file));
  }
  MEGALITH_ASSIGN_OR_RETURN(
      const std::vector<std::int32_t> ids,
      options.specials ? tokenizer.EncodeWithSpecials(input) : tokenizer.Encode(input));
  if (!options.json) {
    Put("{}\n", FormatIds(ids));
    return {};
  }
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (const std::int32_t id : ids) pieces.push_back(std::string(tokenizer.TokenBytes(id)));
  const nlohmann::ordered_json json = {{"ids", ids}, {"count", ids.size()}, {"pieces", pieces}};
  // A piece may be part of a character.
  Put("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return {};
}

Status Detokenize(const TokenizeOptions& options, bool has_ids) {
  MEGALITH_ASSIGN_OR_RETURN(const std::string directory, ResolveModel(options.model));
  MEGALITH_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::Load(directory));
  std::string input = options.ids;
  if (!has_ids) {
    MEGALITH_ASSIGN_OR_RETURN(input, ReadText(options.file.empty() ? "-" : options.file));
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids, ParseIds(input));
  if (options.json) {
    MEGALITH_ASSIGN_OR_RETURN(const std::string shown,
                              text::DecodeText(tokenizer, ids, text::SpecialText::kShow));
    Put("{}\n", nlohmann::ordered_json{{"text", shown}, {"count", ids.size()}}.dump());
    return {};
  }
  MEGALITH_ASSIGN_OR_RETURN(const std::string bytes, tokenizer.DecodeBytes(ids));
  // Exactly the tokens' bytes: what was tokenized comes back unchanged, without a line end.
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  return {};
}

}  // namespace

void RegisterTokenize(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<TokenizeOptions>();
  const auto text_option = std::make_shared<CLI::Option*>(nullptr);
  CLI::App* command = AddCommand(
      app, cli, "tokenize", "Print the token ids of a text (stdin if none is given)",
      "megalith tokenize models/k3-nano -p \"And the king said\"\n"
      "megalith tokenize models/k3-nano --json < chapter.txt\n"
      "megalith tokenize models/k3-nano --specials -p \"<|open|>think<|sep|>\"",
      [options, text_option] { return Tokenize(*options, (*text_option)->count() > 0); });
  AddModelArgument(*command, options->model);
  *text_option = command->add_option("-p,--text", options->text, "The text")->type_name("TEXT");
  command->add_option("--file", options->file, "File with the text; - is stdin")
      ->type_name("F")
      ->excludes(*text_option);
  command->add_flag("--specials", options->specials,
                    "Names of special tokens become their ids; without, they are plain text");
  command->add_flag("--json", options->json, "One JSON object: ids, count, pieces");
}

void RegisterDetokenize(CLI::App& app, Cli& cli) {
  const auto options = std::make_shared<TokenizeOptions>();
  const auto ids_option = std::make_shared<CLI::Option*>(nullptr);
  CLI::App* command = AddCommand(
      app, cli, "detokenize", "Print the bytes of token ids (stdin if none are given)",
      "megalith detokenize models/k3-nano --ids 3077,259,2124\n"
      "megalith tokenize -p \"unto the king\" | megalith detokenize",
      [options, ids_option] { return Detokenize(*options, (*ids_option)->count() > 0); });
  AddModelArgument(*command, options->model);
  *ids_option = command->add_option("--ids", options->ids, "Token ids, separated by commas")
                    ->type_name("IDS");
  command->add_option("--file", options->file, "File with the ids; - is stdin")
      ->type_name("F")
      ->excludes(*ids_option);
  command->add_flag("--json", options->json, "One JSON object; invalid UTF-8 becomes U+FFFD");
}

}  // namespace megalith::apps
