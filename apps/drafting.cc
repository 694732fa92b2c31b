#include "drafting.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "base/log.h"
#include "engine/draft_report.h"
#include "model/dspark.h"
#include "program/program.h"

namespace megalith::apps {
namespace {

namespace fs = std::filesystem;

/// Of a block that K3's published drafter proposes, what its published engine verifies.
constexpr std::int32_t kDefaultRows = 8;
constexpr std::int32_t kMaxRows = program::kMaxDrafts + 1;
constexpr std::string_view kBesideNgrams = ",ngram";

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// A link to nothing is something, too.
bool IsThere(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

/// The drafter of a folder, whose weights are wanted, too.
Result<model::Drafter> ReadDrafter(const std::string& folder, const model::Model& model) {
  std::error_code ignored;
  if (fs::is_regular_file(folder, ignored)) {
    return Fail(ErrorCode::kBadFile, "--draft: the folder of a drafter expected, '{}' is a file",
                folder);
  }
  if (!Exists(folder)) {
    return Fail(ErrorCode::kNotFound, "--draft: there is no folder '{}'", folder);
  }
  if (!Exists(fs::path(folder) / "config.json")) {
    return Fail(ErrorCode::kNotFound,
                "--draft: the folder of a drafter expected, '{}' has no config.json", folder);
  }
  MEGALITH_ASSIGN_OR_RETURN(model::DrafterConfig config, model::ReadDrafterConfig(folder, model));
  return std::move(config.drafter);
}

std::string Describe(const Drafting& drafting, bool automatic) {
  std::string who = drafting.drafter;
  if (drafting.options.proposer) who += who.empty() ? "n-grams of the text" : " and n-grams";
  const bool always = drafting.options.always.has_value();
  return fmt::format("drafts from {}, {}{} rows a step{}{}", who, always ? "" : "up to ",
                     drafting.options.max_drafts + 1, always ? "" : ", as many as pay",
                     automatic ? "; --draft off for none" : "");
}

}  // namespace

void AddDraftOptions(CLI::App& command, DraftChoice& choice) {
  command
      .add_option("--draft", choice.drafter,
                  "Who proposes tokens for the model to check, which never changes the text: the "
                  "folder of a DSpark drafter; ngram: what followed earlier in the text; "
                  "DIR,ngram: whichever promises more; auto: MODEL/dspark,ngram if there is such a "
                  "drafter, else off; off")
      ->type_name(kDraftForms)
      ->capture_default_str();
  command
      .add_option(
          "--draft-rows", choice.rows,
          "Rows of a step that checks drafts, the newest token included: a number, or auto: "
          "up to 8, as many as pay at the moment, none if drafting would lose")
      ->type_name("N|auto")
      ->capture_default_str();
}

Result<DraftSources> ParseDraftSources(const std::string& text) {
  constexpr std::array<std::string_view, 4> kWords = {"off", "auto", "ngram", ""};
  DraftSources sources;
  if (text == "off") return sources;
  sources.automatic = text == "auto";
  sources.text = text == "auto" || text == "ngram" || text.ends_with(kBesideNgrams);
  if (text == "auto" || text == "ngram") return sources;
  sources.drafter = text.substr(0, text.size() - (sources.text ? kBesideNgrams.size() : 0));
  const bool is_word = std::find(kWords.begin(), kWords.end(), sources.drafter) != kWords.end();
  const bool is_path = sources.drafter.find('/') != std::string::npos || IsThere(sources.drafter);
  if (is_word || !is_path) {
    return Fail(ErrorCode::kUsage, "--draft: {} expected, '{}' given{}", kDraftForms, text,
                is_word ? "" : fmt::format("; there is no folder '{}'", sources.drafter));
  }
  return sources;
}

Result<DraftRows> ParseDraftRows(const std::string& text) {
  if (text == "auto") return DraftRows{.max_drafts = kDefaultRows - 1};
  std::int32_t rows = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, rows);
  if (error != std::errc() || rest != end || rows < 1 || rows > kMaxRows) {
    return Fail(ErrorCode::kUsage,
                "--draft-rows: auto or a number from 1 to {} expected, '{}' given", kMaxRows, text);
  }
  return DraftRows{.max_drafts = rows - 1, .always = true};
}

Result<Drafting> ResolveDrafting(const DraftChoice& choice, const std::string& directory,
                                 const model::Model& model) {
  MEGALITH_ASSIGN_OR_RETURN(const DraftRows rows, ParseDraftRows(choice.rows));
  MEGALITH_ASSIGN_OR_RETURN(DraftSources sources, ParseDraftSources(choice.drafter));
  Drafting drafting;
  if (!sources.any()) {
    if (choice.rows != "auto") drafting.description = "no drafts: --draft off";
    return drafting;
  }
  if (rows.max_drafts == 0) {
    drafting.description = "no drafts: --draft-rows 1";
    return drafting;
  }
  if (sources.automatic) {
    const fs::path beside = fs::path(directory) / "dspark";
    if (!IsThere(beside)) {
      drafting.description = fmt::format(
          "no drafts: there is no drafter {}; --draft ngram needs none", beside.string());
      return drafting;
    }
    sources.drafter = beside.string();
  }
  std::int32_t max_drafts = rows.max_drafts;
  if (!sources.drafter.empty()) {
    const auto drafter = ReadDrafter(sources.drafter, model);
    if (!drafter) {
      return Fail(drafter.error().code, "{}{}", drafter.error().message,
                  sources.automatic ? " (--draft off does without it)" : "");
    }
    // States for more would never be used.
    if (!sources.text) {
      max_drafts =
          static_cast<std::int32_t>(std::min<std::int64_t>(max_drafts, drafter->MaxDrafts()));
    }
  }
  drafting.drafter = sources.drafter;
  drafting.options.drafter = !sources.drafter.empty();
  if (sources.text) drafting.options.proposer = engine::MakeNgramProposer();
  drafting.options.max_drafts = max_drafts;
  if (rows.always) drafting.options.always = max_drafts;
  drafting.description = Describe(drafting, sources.automatic);
  return drafting;
}

void Drafting::Report() const {
  if (!description.empty()) Log(LogLevel::kInfo, description);
}

std::string DraftSummary(const engine::DraftStatistics& drafting) {
  if (!engine::CanDraft(drafting) || drafting.rounds == 0) return {};
  if (drafting.drafted == 0) {
    return fmt::format("drafts: none in {} rounds ({})", drafting.rounds, drafting.last_reason);
  }
  const auto share = [](std::int64_t part, std::int64_t all) {
    return static_cast<double>(part) / static_cast<double>(all);
  };
  const bool both = drafting.drafted_from_text > 0 && drafting.drafted_from_text < drafting.drafted;
  return fmt::format("drafts: {} of {} accepted ({:.0f} %){}; {:.2f} tokens a round",
                     drafting.accepted, drafting.drafted,
                     100.0 * share(drafting.accepted, drafting.drafted),
                     both ? fmt::format(", of them {} of {} from the text",
                                        drafting.accepted_from_text, drafting.drafted_from_text)
                          : std::string(),
                     share(drafting.rounds + drafting.accepted, drafting.rounds));
}

nlohmann::ordered_json DraftJson(const engine::DraftStatistics& drafting) {
  if (!engine::CanDraft(drafting)) return nullptr;
  nlohmann::ordered_json json;
  engine::ForEachDraftField(drafting,
                            [&json](const char* name, const auto& value) { json[name] = value; });
  return json;
}

}  // namespace megalith::apps
