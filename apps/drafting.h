#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "engine/generate.h"

namespace megalith::apps {

/// --draft and --draft-rows.
struct DraftChoice {
  std::string drafter = "auto";  ///< a folder, "ngram", both with a comma, "auto" or "off"
  std::string rows = "auto";     ///< a number, or "auto"
};

/// Adds --draft and --draft-rows.
void AddDraftOptions(CLI::App& command, DraftChoice& choice);

/// What a choice means for a model.
struct Drafting {
  std::string drafter;  ///< EngineOptions::drafter
  engine::DraftOptions options;
};

/// `directory`: the model's folder; "auto" takes the drafter in its subfolder dspark, if there is
/// one, and n-grams beside it. kUsage for rows that cannot be; kNotFound for a folder without
/// config.json.
Result<Drafting> ResolveDrafting(const DraftChoice& choice, const std::string& directory);

/// "drafts: 52 rounds, 143 of 364 accepted (39 %), 3.75 tokens a round"; empty if nothing was
/// drafted.
std::string DraftSummary(const engine::GenerateResult& result);

/// Drafted, accepted, per position, and what the controller decided. Null without drafting.
nlohmann::ordered_json DraftJson(const engine::GenerateResult& result);

}  // namespace megalith::apps
