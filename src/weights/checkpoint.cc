#include "weights/checkpoint.h"

#include <cstring>

#include "model/config.h"
#include "model/drafter_tensors.h"
#include "model/dspark.h"
#include "weights/census.h"
#include "weights/quote.h"

namespace megalith::weights {
namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101u;
constexpr std::uint64_t kHighBits = 0x8080808080808080u;

/// A byte of `word` is zero.
bool HasZeroByte(std::uint64_t word) { return ((word - kOnes) & ~word & kHighBits) != 0; }

bool IsBadScale(std::byte scale) { return scale == std::byte{0} || scale == std::byte{255}; }

}  // namespace

struct Checkpoint::State {
  std::string directory;
  model::Model model;
  model::TensorRules rules;
  std::optional<ShardSet> shards;
  NamePrefix prefix;
  Census census;
  std::string drafter_directory;
  std::optional<model::Drafter> drafter;
  model::TensorRules drafter_rules;
  Census drafter_census;

  Status OpenDrafter();
  std::optional<TensorView> Lookup(std::string_view name) const;
};

/// The shards are open.
Status Checkpoint::State::OpenDrafter() {
  MEGALITH_ASSIGN_OR_RETURN(model::DrafterConfig config,
                            model::ReadDrafterConfig(drafter_directory, model));
  drafter = std::move(config.drafter);
  drafter_rules = model::MakeDrafterTensorRules(*drafter);
  MEGALITH_ASSIGN_OR_RETURN(drafter_census,
                            TakeDrafterCensus(*shards, *drafter, drafter_rules, drafter_directory));
  auto& warnings = census.warnings;
  warnings.insert(warnings.end(), config.warnings.begin(), config.warnings.end());
  for (std::string& warning : drafter_census.warnings) {
    warning = fmt::format("{}: {}", drafter_directory, warning);
    warnings.push_back(warning);
  }
  return {};
}

std::optional<TensorView> Checkpoint::State::Lookup(std::string_view name) const {
  std::string stored;
  if (name.starts_with(kDrafterPrefix.body) && drafter) {
    if (drafter->tie_word_embeddings && name == "draft.lm_head.weight") {
      name = "draft.embed_tokens.weight";
    }
    stored = name;
  } else {
    if (model.tie_word_embeddings && name == "lm_head.weight") name = "embed_tokens.weight";
    FullName(prefix, name, &stored);
  }
  const auto id = shards->Find(stored);
  if (!id || !shards->IsIndexed(*id)) return std::nullopt;
  return shards->At(*id);
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::Open(const std::string& directory,
                                    const std::string& drafter_directory) {
  auto state = std::make_unique<State>();
  state->directory = directory;
  state->drafter_directory = drafter_directory;
  MEGALITH_ASSIGN_OR_RETURN(model::Config config, model::ReadConfig(directory));
  state->model = std::move(config.model);
  state->rules = model::MakeTensorRules(state->model);
  std::vector<ShardFolder> folders = {{directory, {}}};
  if (!drafter_directory.empty()) {
    folders.push_back({drafter_directory, std::string(kDrafterPrefix.body)});
  }
  MEGALITH_ASSIGN_OR_RETURN(state->shards, ShardSet::Open(folders));
  MEGALITH_ASSIGN_OR_RETURN(state->prefix, DetectPrefix(*state->shards, directory));
  MEGALITH_ASSIGN_OR_RETURN(state->census, TakeCensus(*state->shards, state->prefix, state->model,
                                                      state->rules, directory));
  auto& warnings = state->census.warnings;
  const auto& shard_warnings = state->shards->warnings();
  warnings.insert(warnings.begin(), shard_warnings.begin(), shard_warnings.end());
  warnings.insert(warnings.begin(), config.warnings.begin(), config.warnings.end());
  if (!drafter_directory.empty()) MEGALITH_RETURN_IF_ERROR(state->OpenDrafter());
  return Checkpoint(std::move(state));
}

const std::string& Checkpoint::directory() const { return state_->directory; }
const model::Model& Checkpoint::model() const { return state_->model; }
const model::TensorRules& Checkpoint::rules() const { return state_->rules; }
const ShardSet& Checkpoint::shards() const { return *state_->shards; }
const Census& Checkpoint::census() const { return state_->census; }
const model::Drafter* Checkpoint::drafter() const {
  return state_->drafter ? &*state_->drafter : nullptr;
}
const model::TensorRules& Checkpoint::drafter_rules() const { return state_->drafter_rules; }
const Census& Checkpoint::drafter_census() const { return state_->drafter_census; }
const std::string& Checkpoint::drafter_directory() const { return state_->drafter_directory; }
std::string_view Checkpoint::prefix() const { return state_->prefix.body; }

Result<TensorView> Checkpoint::Find(std::string_view name) const {
  const auto view = state_->Lookup(name);
  if (!view) {
    return Fail(ErrorCode::kBadTensor, "{}: no tensor {}", state_->directory, Quote(name));
  }
  return *view;
}

Result<MatrixView> Checkpoint::FindMatrix(std::string_view name) const {
  MatrixView matrix;
  std::string full(name);
  full += ".weight";
  if (const auto weight = state_->Lookup(full)) {
    if (weight->shape.size() != 2 || weight->dtype != DType::kBf16) {
      return Fail(ErrorCode::kBadTensor, "{}: {} is no BF16 matrix", state_->directory,
                  Quote(full));
    }
    matrix.format = MatrixFormat::kBf16;
    matrix.rows = weight->shape[0];
    matrix.columns = weight->shape[1];
    matrix.weight = *weight;
    return matrix;
  }
  // The census has checked codes and scales of every matrix of the model against each other.
  MEGALITH_ASSIGN_OR_RETURN(matrix.weight, Find(std::string(name) + ".weight_packed"));
  MEGALITH_ASSIGN_OR_RETURN(matrix.scale, Find(std::string(name) + ".weight_scale"));
  matrix.format = MatrixFormat::kMxfp4;
  if (matrix.weight.shape.size() != 2 || matrix.scale.shape.size() != 2) {
    return Fail(ErrorCode::kBadTensor, "{}: {} is no MXFP4 matrix", state_->directory, Quote(name));
  }
  matrix.rows = matrix.weight.shape[0];
  matrix.columns = 2 * matrix.weight.shape[1];
  return matrix;
}

std::optional<std::size_t> FindBadMxfp4Scale(std::span<const std::byte> scales) {
  std::size_t at = 0;
  // Eight at a time: the scales of a full checkpoint are 85 GB.
  for (; at + sizeof(std::uint64_t) <= scales.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, scales.data() + at, sizeof(word));
    if (HasZeroByte(word) || HasZeroByte(~word)) break;
  }
  for (; at < scales.size(); ++at) {
    if (IsBadScale(scales[at])) return at;
  }
  return std::nullopt;
}

}  // namespace megalith::weights
