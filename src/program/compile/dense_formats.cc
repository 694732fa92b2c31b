#include "program/compile/dense_formats.h"

#include <fmt/format.h>

namespace megalith::program {
namespace {

constexpr std::string_view kPartNames[kNumDenseParts] = {"attention", "mlp",  "latent",
                                                         "router",    "head", "draft"};

bool EndsWith(std::string_view name, std::string_view end) {
  return name.size() >= end.size() && name.substr(name.size() - end.size()) == end;
}
bool Contains(std::string_view name, std::string_view piece) {
  return name.find(piece) != std::string_view::npos;
}

DenseFormats AllInt8ButTheRouter() {
  DenseFormats formats;
  formats.part.fill(WeightFormat::kInt8);
  formats.part[static_cast<std::size_t>(DensePart::kRouter)] = WeightFormat::kBf16;
  return formats;
}

Result<WeightFormat> ParseFormat(std::string_view text) {
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kInt8}) {
    if (text == WeightFormatName(format)) return format;
  }
  return Fail(ErrorCode::kUsage, "dense formats: bf16 or int8 expected, '{}' found", text);
}

Result<DensePart> ParsePart(std::string_view text) {
  for (std::size_t i = 0; i < kNumDenseParts; ++i) {
    if (text == kPartNames[i]) return static_cast<DensePart>(i);
  }
  return Fail(ErrorCode::kUsage, "dense formats: '{}' is no part; parts are {}", text,
              fmt::join(kPartNames, ", "));
}

}  // namespace

std::string_view DensePartName(DensePart part) {
  return kPartNames[static_cast<std::size_t>(part)];
}

std::optional<DensePart> DensePartOf(std::string_view name) {
  if (Contains(name, ".experts.") || EndsWith(name, ".kv_b_proj")) return std::nullopt;
  if (name == "draft.markov_head.gate_proj" || name == "draft.markov_head.joint_proj") {
    return std::nullopt;
  }
  if (name.starts_with("draft.")) return DensePart::kDraft;
  if (name == "lm_head") return DensePart::kHead;
  if (Contains(name, ".self_attn.")) return DensePart::kAttention;
  if (Contains(name, ".mlp.") || Contains(name, ".shared_experts.")) return DensePart::kMlp;
  if (EndsWith(name, ".routed_expert_down_proj") || EndsWith(name, ".routed_expert_up_proj")) {
    return DensePart::kLatent;
  }
  if (EndsWith(name, ".block_sparse_moe.gate")) return DensePart::kRouter;
  return std::nullopt;
}

Result<DenseFormats> ParseDenseFormats(std::string_view text) {
  DenseFormats formats;
  for (std::size_t begin = 0, index = 0; begin <= text.size(); ++index) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view piece = text.substr(begin, end - begin);
    const std::size_t equals = piece.find('=');
    if (equals == std::string_view::npos) {
      if (index > 0) {
        return Fail(ErrorCode::kUsage, "dense formats: part=bf16 or part=int8 expected, '{}' found",
                    piece);
      }
      MEGALITH_ASSIGN_OR_RETURN(const WeightFormat format, ParseFormat(piece));
      if (format == WeightFormat::kInt8) formats = AllInt8ButTheRouter();
    } else {
      MEGALITH_ASSIGN_OR_RETURN(const DensePart part, ParsePart(piece.substr(0, equals)));
      MEGALITH_ASSIGN_OR_RETURN(formats.part[static_cast<std::size_t>(part)],
                                ParseFormat(piece.substr(equals + 1)));
    }
    begin = end + 1;
  }
  return formats;
}

std::string DenseFormatsText(const DenseFormats& formats) {
  std::string best;
  for (const WeightFormat base : {WeightFormat::kBf16, WeightFormat::kInt8}) {
    const DenseFormats start = base == WeightFormat::kInt8 ? AllInt8ButTheRouter() : DenseFormats{};
    std::string text(WeightFormatName(base));
    for (std::size_t i = 0; i < kNumDenseParts; ++i) {
      if (formats.part[i] == start.part[i]) continue;
      text += fmt::format(",{}={}", kPartNames[i], WeightFormatName(formats.part[i]));
    }
    if (best.empty() || text.size() < best.size()) best = std::move(text);
  }
  return best;
}

}  // namespace megalith::program
