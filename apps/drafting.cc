#include "drafting.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "program/program.h"

namespace megalith::apps {
namespace {

/// Of a block that K3's published drafter proposes, what its published engine verifies.
constexpr std::int32_t kDefaultRows = 8;
constexpr std::string_view kNgrams = "ngram";
constexpr std::string_view kBesideNgrams = ",ngram";
constexpr std::int32_t kMaxRows = program::kMaxDrafts + 1;

/// Empty for "auto".
Result<std::optional<std::int32_t>> ParseRows(const std::string& text) {
  if (text == "auto") return std::nullopt;
  std::int32_t rows = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, rows);
  if (error != std::errc() || rest != end || rows < 1 || rows > kMaxRows) {
    return Fail(ErrorCode::kUsage,
                "--draft-rows: auto or a number from 1 to {} expected, '{}' given", kMaxRows, text);
  }
  return rows;
}

bool HasConfig(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / "config.json", ignored);
}

}  // namespace

void AddDraftOptions(CLI::App& command, DraftChoice& choice) {
  command
      .add_option("--draft", choice.drafter,
                  "Who proposes tokens for the model to check, which never changes the text: the "
                  "folder of a DSpark drafter; ngram: what followed earlier in the text; "
                  "DIR,ngram: whichever promises more; auto: MODEL/dspark,ngram if there is such a "
                  "drafter, else off; off")
      ->type_name("DIR|ngram|DIR,ngram|auto|off")
      ->capture_default_str();
  command
      .add_option(
          "--draft-rows", choice.rows,
          "Rows of a step that checks drafts, the newest token included: a number, or auto: "
          "up to 8, as many as pay at the moment, none if drafting would lose")
      ->type_name("N|auto")
      ->capture_default_str();
}

Result<Drafting> ResolveDrafting(const DraftChoice& choice, const std::string& directory) {
  MEGALITH_ASSIGN_OR_RETURN(const std::optional<std::int32_t> rows, ParseRows(choice.rows));
  Drafting drafting;
  const std::int32_t max_drafts = rows.value_or(kDefaultRows) - 1;
  if (choice.drafter == "off" || max_drafts == 0) return drafting;
  std::string drafter = choice.drafter;
  if (drafter == "auto") {
    const std::filesystem::path inside = std::filesystem::path(directory) / "dspark";
    if (!HasConfig(inside)) return drafting;
    drafter = inside.string().append(kBesideNgrams);
  }
  drafting.options.drafter = drafter != kNgrams;
  if (!drafting.options.drafter || drafter.ends_with(kBesideNgrams)) {
    drafting.options.proposer = engine::MakeNgramProposer();
    drafter.resize(drafter.size() - std::min(drafter.size(), kBesideNgrams.size()));
  }
  if (drafting.options.drafter && !HasConfig(drafter)) {
    return Fail(ErrorCode::kNotFound,
                "--draft: the folder of a drafter, ngram, both with a comma, auto or off expected; "
                "'{}' has no config.json",
                drafter);
  }
  drafting.drafter = drafter;
  drafting.options.max_drafts = max_drafts;
  if (rows) drafting.options.always = max_drafts;
  return drafting;
}

std::string DraftSummary(const engine::GenerateResult& result) {
  const engine::DraftStatistics& drafting = result.drafting;
  if (drafting.drafted == 0) return {};
  return fmt::format(
      "drafts: {} of {} accepted ({:.0f} %), {:.2f} tokens a round", drafting.accepted,
      drafting.drafted,
      100.0 * static_cast<double>(drafting.accepted) / static_cast<double>(drafting.drafted),
      static_cast<double>(drafting.rounds + drafting.accepted) /
          static_cast<double>(drafting.rounds));
}

nlohmann::ordered_json DraftJson(const engine::GenerateResult& result) {
  const engine::DraftStatistics& drafting = result.drafting;
  if (drafting.rounds_by_drafts.size() <= 1) return nullptr;
  return {{"rounds", drafting.rounds},
          {"drafted", drafting.drafted},
          {"accepted", drafting.accepted},
          {"drafted_from_text", drafting.drafted_from_text},
          {"accepted_from_text", drafting.accepted_from_text},
          {"drafted_by_position", drafting.position_proposed},
          {"accepted_by_position", drafting.position_accepted},
          {"rounds_by_drafts", drafting.rounds_by_drafts},
          {"switches_on", drafting.switches_on},
          {"switches_off", drafting.switches_off},
          {"probes", drafting.probes},
          {"expected_speedup", drafting.expected_speedup},
          {"last_decision", std::string(drafting.last_reason)}};
}

}  // namespace megalith::apps
