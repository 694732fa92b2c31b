#pragma once

// Which dense matrices (everything that is not a routed expert) are packed as int8.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "program/program.h"

namespace megalith::program {

enum class DensePart : std::uint8_t {
  kAttention,  ///< every projection of KDA and MLA but kv_b_proj
  kMlp,        ///< dense MLPs and shared experts
  kLatent,     ///< down and up projection around routed experts
  kRouter,     ///< the logits that choose experts
  kHead,       ///< lm_head
  kDraft,      ///< all matrices of the drafter but gate_proj and joint_proj of its Markov head
};
inline constexpr int kNumDenseParts = 6;
/// "attention", "mlp", "latent", "router", "head", "draft".
std::string_view DensePartName(DensePart part);

/// Part of a matrix (name without `.weight`). Empty for those that keep their stored format: routed
/// experts, kv_b_proj, which is read transposed and with float inputs, and the Markov head's
/// gate_proj and joint_proj, which are cut where no scale group need end, and small.
std::optional<DensePart> DensePartOf(std::string_view name);

/// Packed format of the bf16 matrices of each part: kBf16 or kInt8.
struct DenseFormats {
  std::array<WeightFormat, kNumDenseParts> part{};  ///< kBf16

  WeightFormat operator[](DensePart of) const { return part[static_cast<std::size_t>(of)]; }
  friend bool operator==(const DenseFormats&, const DenseFormats&) = default;
};

/// "bf16" or "int8", then optional overrides: "int8,head=bf16,router=int8". int8 alone leaves the
/// router at bf16: it is small, and a choice of other experts costs more than rounding.
/// kUsage naming the piece that cannot be.
Result<DenseFormats> ParseDenseFormats(std::string_view text);

/// The shortest text that parses to the same.
std::string DenseFormatsText(const DenseFormats& formats);

}  // namespace megalith::program
