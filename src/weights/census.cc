#include "weights/census.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "weights/family_names.h"
#include "weights/quote.h"

namespace megalith::weights {
namespace {

using model::TensorKind;
using model::TensorRule;

constexpr std::size_t kMaxListed = 8;
constexpr std::int64_t kMxfp4Group = 32;
constexpr NamePrefix kNested{"language_model.model.", "language_model."};
constexpr NamePrefix kBare{"model.", ""};
constexpr std::string_view kHeadStem = "lm_head";

/// Parts of multimodal checkpoints that a text model does not use.
constexpr std::array<std::string_view, 2> kSkippedPrefixes = {"vision_tower.", "mm_projector."};

std::string ShapeText(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// A count and the first few lines.
class Listing {
 public:
  void Add(std::string line) {
    if (++count_ <= kMaxListed) lines_.push_back(std::move(line));
  }
  std::size_t count() const { return count_; }
  const std::vector<std::string>& lines() const { return lines_; }
  std::string Text(std::string_view what) const {
    return fmt::format("{} {}: {}{}", count_, what, fmt::join(lines_, "; "),
                       count_ > kMaxListed ? "; ..." : "");
  }

 private:
  std::size_t count_ = 0;
  std::vector<std::string> lines_;
};

/// Why a tensor that no rule asks for contradicts the config, or nothing: nobody knows the name.
using WhyUnused = std::function<std::optional<std::string>(std::string_view name)>;

class CensusTaker {
 public:
  CensusTaker(const ShardSet& shards, const NamePrefix& prefix, std::size_t folder)
      : shards_(shards),
        prefix_(prefix),
        is_drafter_(folder == kDrafterFolder),
        range_(shards.FolderTensors(folder)),
        found_(range_.second - range_.first, false) {}

  void Visit(const TensorRule& rule, std::string_view name) {
    note_.clear();
    if (rule.kind == TensorKind::kMatrix) {
      VisitMatrix(rule, name);
      return;
    }
    if (const auto id = Take(name, "")) {
      Check(*id, rule, shards_.At(*id).shape, rule.dtype);
      Count(rule, *id, std::nullopt);
    } else {
      Absent(name, "");
    }
  }

  /// A head beside tied embeddings: the released code uses the embedding and so does this one.
  void VisitTiedHead(std::int64_t vocab_size, std::int64_t hidden_size) {
    const auto id = Take("lm_head", ".weight");
    if (!id) return;
    TensorRule rule;
    rule.kind = TensorKind::kMatrix;
    rule.shape = {vocab_size, hidden_size};
    Check(*id, rule, shards_.At(*id).shape, DType::kBf16);
    census_.warnings.push_back(fmt::format(
        "{}: not used, tie_word_embeddings is true: the embedding is the head", StoredName(*id)));
  }

  Result<Census> Finish(const WhyUnused& why_unused, std::string_view directory);

 private:
  std::optional<std::size_t> Take(std::string_view name, std::string_view ending) {
    FullName(prefix_, name, &stored_name_);
    stored_name_ += ending;
    const auto id = shards_.Find(stored_name_);
    if (!id || *id < range_.first || *id >= range_.second) return std::nullopt;
    found_[*id - range_.first] = true;
    if (!shards_.IsIndexed(*id)) {
      note_ = fmt::format(" ({} lies in {}, but the index does not list it)", StoredName(*id),
                          ShardName(*id));
      return std::nullopt;
    }
    return id;
  }

  void VisitMatrix(const TensorRule& rule, std::string_view name) {
    const auto weight = Take(name, ".weight");
    const auto packed = Take(name, ".weight_packed");
    const auto scale = Take(name, ".weight_scale");
    if (weight && (packed || scale)) {
      wrong_.Add(fmt::format("{} is stored both as .weight and as {}", StoredStem(name),
                             packed ? ".weight_packed" : ".weight_scale"));
      return;
    }
    if (is_drafter_ && (packed || scale)) {
      wrong_.Add(fmt::format("{}: a drafter's matrices must be BF16 (.weight)",
                             StoredName(packed ? *packed : *scale)));
      return;
    }
    if (weight) {
      Check(*weight, rule, shards_.At(*weight).shape, DType::kBf16);
      Count(rule, *weight, std::nullopt);
      ++census_.num_bf16_matrices;
      return;
    }
    if (!packed && !scale) {
      Absent(name, ".weight");
      return;
    }
    if (!packed || !scale) {
      Absent(name, packed ? ".weight_scale" : ".weight_packed");
      return;
    }
    const std::int64_t rows = rule.shape[0];
    const std::int64_t columns = rule.shape[1];
    if (columns % kMxfp4Group != 0) {
      wrong_.Add(fmt::format("{}: {} columns are not a multiple of {}", StoredName(*packed),
                             columns, kMxfp4Group));
      return;
    }
    CheckShape(*packed, std::array{rows, columns / 2}, DType::kU8);
    CheckShape(*scale, std::array{rows, columns / kMxfp4Group}, DType::kU8);
    Count(rule, *packed, *scale);
    ++census_.num_mxfp4_matrices;
  }

  void Check(std::size_t id, const TensorRule& rule, std::span<const std::int64_t> found,
             DType dtype) {
    const std::span<const std::int64_t> shape = rule.shape;
    if (rule.kind == TensorKind::kConvTaps && found.size() == 2) {
      CheckShape(id, std::array{shape[0], shape[2]}, dtype);
    } else if (rule.kind == TensorKind::kPerHead && found.size() == 1 && found[0] >= shape[0]) {
      CheckShape(id, found, dtype);  // entries past the heads are padding
    } else {
      CheckShape(id, shape, dtype);
    }
  }

  void CheckShape(std::size_t id, std::span<const std::int64_t> shape, DType dtype) {
    const TensorView view = shards_.At(id);
    if (view.dtype == dtype &&
        std::equal(shape.begin(), shape.end(), view.shape.begin(), view.shape.end())) {
      return;
    }
    wrong_.Add(fmt::format("{} in {}: {} {} expected, {} {} found", StoredName(id), ShardName(id),
                           DTypeName(dtype), ShapeText(shape), DTypeName(view.dtype),
                           ShapeText(view.shape)));
  }

  void Count(const TensorRule& rule, std::size_t id, std::optional<std::size_t> scale) {
    const TensorView view = shards_.At(id);
    model::StoredSize& part = census_.parts[static_cast<std::size_t>(rule.part)];
    part.num_tensors += scale ? 2 : 1;
    census_.num_expected += scale ? 2 : 1;
    part.num_bytes += view.num_bytes + (scale ? shards_.At(*scale).num_bytes : 0);
    const auto elements = view.num_bytes / static_cast<std::uint64_t>(DTypeBytes(view.dtype));
    part.num_parameters += scale ? 2 * elements : elements;
  }

  /// As the file spells it: a drafter's prefix is the set's.
  std::string_view StoredName(std::size_t id) const {
    const std::string_view name = shards_.At(id).name;
    return is_drafter_ ? name.substr(prefix_.body.size()) : name;
  }
  std::string StoredStem(std::string_view name) const {
    if (is_drafter_) return std::string(name);
    std::string stem;
    FullName(prefix_, name, &stem);
    return stem;
  }
  void Absent(std::string_view name, std::string_view ending) {
    absent_.Add(StoredStem(name) + std::string(ending) + note_);
  }
  /// Of a name under another prefix, the name itself.
  std::string_view WithoutPrefix(std::string_view stored) const {
    std::string_view rest = stored;
    if (rest.starts_with(prefix_.body)) return rest.substr(prefix_.body.size());
    if (rest.starts_with(prefix_.head)) rest.remove_prefix(prefix_.head.size());
    return rest.starts_with(kHeadStem) ? rest : stored;
  }
  /// The tensors that no rule asked for: skipped, contradicting the config, or unknown.
  void SortUnneeded(const WhyUnused& why_unused);
  std::string_view ShardName(std::size_t id) const {
    return shards_.ShardName(shards_.At(id).shard);
  }

  const ShardSet& shards_;
  NamePrefix prefix_;
  bool is_drafter_;
  std::pair<std::size_t, std::size_t> range_;  // of tensors: the folder's
  std::vector<bool> found_;                    // from range_.first on
  std::string stored_name_;
  std::string note_;  // why a tensor that is there counts as absent
  Census census_;
  Listing absent_;
  Listing wrong_;
  Listing unused_;
  Listing unknown_;
};

bool IsSkipped(std::string_view name) {
  return std::any_of(kSkippedPrefixes.begin(), kSkippedPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

void CensusTaker::SortUnneeded(const WhyUnused& why_unused) {
  for (std::size_t id = range_.first; id < range_.second; ++id) {
    if (found_[id - range_.first]) continue;
    const TensorView view = shards_.At(id);
    if (IsSkipped(view.name)) {
      ++census_.num_skipped;
      census_.skipped_bytes += view.num_bytes;
      continue;
    }
    // What the index does not list is no part of the model, whatever its name.
    const std::string_view name = WithoutPrefix(view.name);
    const auto reason = shards_.IsIndexed(id) ? why_unused(name) : std::nullopt;
    if (reason) {
      unused_.Add(fmt::format("{} in {} ({})", Quote(StoredName(id)), ShardName(id), *reason));
    } else {
      unknown_.Add(
          fmt::format("{} in {}: unknown tensor, ignored", Quote(StoredName(id)), ShardName(id)));
    }
  }
}

Result<Census> CensusTaker::Finish(const WhyUnused& why_unused, std::string_view directory) {
  SortUnneeded(why_unused);
  std::string problems;
  const auto add = [&](const Listing& listing, std::string_view what) {
    if (listing.count() == 0) return;
    if (!problems.empty()) problems += ". ";
    problems += listing.Text(what);
  };
  add(absent_, "tensors are absent");
  add(wrong_, "tensors are wrong");
  add(unused_, "tensors contradict config.json, which has no use for them");
  if (!problems.empty()) return Fail(ErrorCode::kBadTensor, "{}: {}", directory, problems);
  Census census = std::move(census_);
  const Listing& unknown = unknown_;
  census.num_unknown = unknown.count();
  census.warnings.insert(census.warnings.end(), unknown.lines().begin(), unknown.lines().end());
  if (unknown.count() > unknown.lines().size()) {
    census.warnings.push_back(
        fmt::format("{} more unknown tensors", unknown.count() - unknown.lines().size()));
  }
  return census;
}

}  // namespace

Result<NamePrefix> DetectPrefix(const ShardSet& shards, std::string_view directory) {
  std::optional<std::size_t> nested;
  std::optional<std::size_t> bare;
  const auto [first, last] = shards.FolderTensors(kModelFolder);
  for (std::size_t id = first; id < last; ++id) {
    const std::string_view name = shards.At(id).name;
    if (name.starts_with(kNested.head)) {
      if (!nested) nested = id;
    } else if (name.starts_with(kBare.body) || name.starts_with("lm_head.")) {
      if (!bare) bare = id;
    }
    if (nested && bare) break;
  }
  if (nested && bare) {
    const TensorView a = shards.At(*nested);
    const TensorView b = shards.At(*bare);
    return Fail(ErrorCode::kBadTensor,
                "{}: names with and without language_model. are mixed: {} in {}, {} in {}",
                directory, Quote(a.name), shards.ShardName(a.shard), Quote(b.name),
                shards.ShardName(b.shard));
  }
  if (!nested && !bare) {
    return Fail(ErrorCode::kBadTensor, "{}: no tensor is named {}... or {}...", directory,
                kNested.body, kBare.body);
  }
  return nested ? kNested : kBare;
}

void FullName(const NamePrefix& prefix, std::string_view name, std::string* out) {
  out->assign(name.starts_with(kHeadStem) ? prefix.head : prefix.body);
  out->append(name);
}

Result<Census> TakeCensus(const ShardSet& shards, const NamePrefix& prefix,
                          const model::Model& model, const model::TensorRules& rules,
                          std::string_view directory) {
  CensusTaker taker(shards, prefix, kModelFolder);
  model::ForEachTensor(rules, [&](const TensorRule& rule, std::int64_t, std::int64_t,
                                  std::string_view name) { taker.Visit(rule, name); });
  if (model.tie_word_embeddings) taker.VisitTiedHead(model.vocab_size, model.hidden_size);
  const FamilyNames family(model);
  return taker.Finish([&](std::string_view name) { return family.WhyUnused(name); }, directory);
}

Result<Census> TakeDrafterCensus(const ShardSet& shards, const model::Drafter& drafter,
                                 const model::TensorRules& rules, std::string_view directory) {
  CensusTaker taker(shards, kDrafterPrefix, kDrafterFolder);
  model::ForEachTensor(rules, [&](const TensorRule& rule, std::int64_t, std::int64_t,
                                  std::string_view name) { taker.Visit(rule, name); });
  if (drafter.tie_word_embeddings) taker.VisitTiedHead(drafter.vocab_size, drafter.hidden_size);
  const DrafterNames family(drafter);
  return taker.Finish([&](std::string_view name) { return family.WhyUnused(name); }, directory);
}

}  // namespace megalith::weights
