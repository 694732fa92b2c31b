#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/generate.h"
#include "model/model.h"

namespace megalith::apps {

/// What --draft takes, as help and messages say it.
inline constexpr char kDraftForms[] = "DIR|ngram|DIR,ngram|auto|off";

/// --draft and --draft-rows.
struct DraftChoice {
  std::string drafter = "auto";  ///< one of kDraftForms
  std::string rows = "auto";     ///< a number, or "auto"
};

/// Adds --draft and --draft-rows.
void AddDraftOptions(CLI::App& command, DraftChoice& choice);

/// Who proposes drafts. Nobody: all empty.
struct DraftSources {
  bool automatic = false;  ///< what is beside the model
  std::string drafter;     ///< path
  bool text = false;       ///< n-grams

  bool any() const { return automatic || text || !drafter.empty(); }
};

/// One of kDraftForms. kUsage for a word that is none of them and names nothing here.
Result<DraftSources> ParseDraftSources(const std::string& text);

/// Most drafts of a step; `always` if that many are to be verified whenever they are there.
struct DraftRows {
  std::int32_t max_drafts = 0;
  bool always = false;
};

/// "auto" or a number. kUsage.
Result<DraftRows> ParseDraftRows(const std::string& text);

/// What a choice means for a model.
struct Drafting {
  std::string drafter;  ///< EngineOptions::drafter
  engine::DraftOptions options;
  std::string description;  ///< one line for people; empty if they asked for nothing

  /// Logs the description, if there is one.
  void Report() const;
};

/// `directory`: the model's folder; "auto" takes the drafter in its subfolder dspark, if there is
/// one, and n-grams beside it. kUsage for a choice that cannot be, kNotFound for a folder without
/// config.json, those of model::ReadDrafterConfig.
Result<Drafting> ResolveDrafting(const DraftChoice& choice, const std::string& directory,
                                 const model::Model& model);

/// "drafts: 143 of 364 accepted (39 %), of them 20 of 31 from the text; 3.75 tokens a round"; the
/// text is named beside a drafter only. Empty without drafting.
std::string DraftSummary(const engine::DraftStatistics& drafting);

/// Drafted, accepted, per position, and what the controller decided. Null without drafting.
nlohmann::ordered_json DraftJson(const engine::DraftStatistics& drafting);

}  // namespace megalith::apps
