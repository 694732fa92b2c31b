// Kernels that are no matmul, with the shapes of Kimi K3.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/align.h"
#include "bench/kernel_cases.h"
#include "bench/tokens.h"
#include "kernels/mla_expanded_scratch.h"

namespace megalith::bench {
namespace {

using kernels::Isa;
using kernels::KernelTable;

constexpr std::int64_t kHidden = 7168;
constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kConvKernel = 4;
constexpr std::int64_t kRank = 512;
constexpr std::int64_t kExtra = 64;
constexpr std::int64_t kPageTokens = 64;
constexpr std::int64_t kSplit = 512;
constexpr std::int64_t kChunk = 2048;
constexpr std::int64_t kPartialStride = 528;
constexpr std::int64_t kHeadsAtOnce = 4;
constexpr std::int64_t kExpertWidth = 3072;
constexpr std::int64_t kExperts = 896;
constexpr std::int64_t kTopK = 16;
// The drafter.
constexpr std::int64_t kDraftRows = 8;
constexpr std::int64_t kDraftHeads = 96;
constexpr std::int64_t kDraftHeadsPerKey = 6;
constexpr std::int64_t kDraftHeadDim = 64;
constexpr std::int64_t kDraftWindow = 2048;

/// Buffers that live as long as the case that uses them.
class Buffers {
 public:
  Bf16* Act(std::int64_t count) {
    acts_.push_back(std::make_unique<std::vector<Bf16>>());
    for (std::int64_t i = 0; i < count; ++i) {
      acts_.back()->push_back(
          ToBf16(static_cast<float>(ArbitraryToken(5, i, 2001) - 1000) / 1000.0f));
    }
    return acts_.back()->data();
  }
  /// 64-byte aligned.
  float* Float(std::int64_t count) {
    floats_.push_back(std::make_unique<std::vector<float>>(static_cast<std::size_t>(count) + 16));
    std::vector<float>& all = *floats_.back();
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<float>(ArbitraryToken(6, static_cast<std::int64_t>(i), 2001) - 1000) /
               1000.0f;
    }
    return reinterpret_cast<float*>(
        RoundUp<std::uintptr_t>(reinterpret_cast<std::uintptr_t>(all.data()), 64));
  }
  std::int32_t* Int(std::int64_t count) {
    ints_.push_back(
        std::make_unique<std::vector<std::int32_t>>(static_cast<std::size_t>(count), 0));
    return ints_.back()->data();
  }

 private:
  std::vector<std::unique_ptr<std::vector<Bf16>>> acts_;
  std::vector<std::unique_ptr<std::vector<float>>> floats_;
  std::vector<std::unique_ptr<std::vector<std::int32_t>>> ints_;
};

KernelCase Named(std::string kernel, std::string shape, Isa isa, std::int64_t rows) {
  KernelCase item;
  item.result.kernel = std::move(kernel);
  item.result.shape = std::move(shape);
  item.result.isa = isa;
  item.result.rows = rows;
  return item;
}

/// A head's state is read and written once for a run of rows, and written once for every draft.
KernelCase KdaHead(Isa isa, std::int64_t rows, std::int64_t num_drafts, bool chunks,
                   ColdMemory& states) {
  auto buffers = std::make_shared<Buffers>();
  const std::int64_t width = rows * kHeadDim;
  kernels::KdaHeadArgs<Bf16> args{};
  args.rows = rows;
  args.head_dim = kHeadDim;
  args.conv_kernel = kConvKernel;
  args.q = buffers->Act(width);
  args.k = buffers->Act(width);
  args.v = buffers->Act(width);
  args.gate = buffers->Act(width);
  args.decay = buffers->Act(width);
  args.beta = buffers->Act(rows);
  args.q_stride = args.k_stride = args.v_stride = args.gate_stride = args.decay_stride = kHeadDim;
  args.beta_stride = 1;
  args.q_taps = buffers->Float(kConvKernel * kHeadDim);
  args.k_taps = buffers->Float(kConvKernel * kHeadDim);
  args.v_taps = buffers->Float(kConvKernel * kHeadDim);
  args.taps_stride = kHeadDim;
  args.a_log = 0.5f;
  args.dt_bias = buffers->Float(kHeadDim);
  args.o_norm = buffers->Float(kHeadDim);
  args.eps = 1e-5f;
  args.gate_lower_bound = -5.0f;
  args.state_stride = kHeadDim;
  constexpr std::int64_t kHistory = (kConvKernel - 1) * kHeadDim;
  args.q_history = buffers->Act(3 * kHistory);
  args.k_history = args.q_history + kHistory;
  args.v_history = args.k_history + kHistory;
  args.history_stride = kHeadDim;
  auto draft_states = std::make_shared<std::vector<float*>>(static_cast<std::size_t>(num_drafts));
  auto draft_histories = std::make_shared<std::vector<Bf16*>>();
  for (std::int64_t i = 0; i < num_drafts; ++i) {
    draft_histories->push_back(buffers->Act(3 * kHistory));
  }
  args.num_drafts = num_drafts;
  args.draft_states = draft_states->data();
  args.draft_histories = draft_histories->data();
  args.out = buffers->Act(width);
  args.out_stride = kHeadDim;
  args.first_chunk_rows = kernels::kKdaChunkRows;
  args.scratch = buffers->Float(chunks ? kernels::KdaChunkScratchFloats(kHeadDim)
                                       : kernels::KdaScratchFloats(kHeadDim));
  constexpr std::size_t kStateBytes = kHeadDim * kHeadDim * sizeof(float);
  KernelCase item =
      Named(chunks ? "kda_chunks" : "kda_head",
            fmt::format("head {}, rows {}, drafts {}", kHeadDim, rows, num_drafts), isa, rows);
  item.result.bytes_per_call = static_cast<double>(2 + num_drafts) * kStateBytes;
  item.call = [args, buffers, draft_states, draft_histories, &states,
               kernel = chunks ? kernels::Bf16Kernels(isa).kda_chunks
                               : kernels::Bf16Kernels(isa).kda_head]() mutable {
    args.state = reinterpret_cast<float*>(states.Next(kStateBytes));
    for (float*& state : *draft_states) {
      state = reinterpret_cast<float*>(states.Next(kStateBytes));
    }
    kernel(args);
  };
  return item;
}

/// One row over the whole context, or a chunk of it, with room for what mla_partial leaves.
KernelCase MlaAttention(Isa isa, std::int64_t positions, bool is_partial, ColdMemory& states) {
  auto buffers = std::make_shared<Buffers>();
  kernels::MlaAttentionArgs<Bf16> args{};
  args.heads = kHeadsAtOnce;
  args.latent_query = buffers->Float(kHeadsAtOnce * kRank);
  args.latent_query_stride = kRank;
  args.extra_query = buffers->Act(kHeadsAtOnce * kExtra);
  args.extra_query_stride = kExtra;
  args.rank = kRank;
  args.extra = kExtra;
  args.page_tokens = kPageTokens;
  args.num_positions = positions;
  args.split = kSplit;
  args.chunk = kChunk;
  args.scale = 0.07f;
  std::int32_t* pages = buffers->Int(CeilDiv(positions, kPageTokens));
  for (std::int64_t i = 0; i < CeilDiv(positions, kPageTokens); ++i) {
    pages[i] = static_cast<std::int32_t>(i);
  }
  args.page_table = pages;
  args.out_stride = kPartialStride;
  args.out = buffers->Float(kHeadsAtOnce * kPartialStride);
  args.scratch = buffers->Float(kernels::MlaScratchFloats(kHeadsAtOnce, kRank, kExtra, kSplit));
  const std::size_t bytes =
      static_cast<std::size_t>(RoundUp(positions, kPageTokens)) * (kRank + kExtra) * sizeof(Bf16);
  KernelCase item = Named(is_partial ? "mla_partial" : "mla_attention",
                          fmt::format("{} heads, {} positions", kHeadsAtOnce, positions), isa, 1);
  item.result.bytes_per_call = static_cast<double>(bytes);
  item.result.flops_per_call =
      2.0 * static_cast<double>(kHeadsAtOnce * positions) * static_cast<double>(2 * kRank + kExtra);
  const KernelTable<Bf16>& table = kernels::Bf16Kernels(isa);
  item.call = [args, buffers, &states, bytes, is_partial, &table]() mutable {
    args.cache = reinterpret_cast<const Bf16*>(states.Next(bytes));
    if (is_partial) {
      table.mla_partial(args, 0);
    } else {
      table.mla_attention(args);
    }
  };
  return item;
}

/// One head of one row. What other workers have computed counts as not cached.
KernelCase MlaMerge(Isa isa, std::int64_t chunks, ColdMemory& states) {
  auto buffers = std::make_shared<Buffers>();
  auto partials = std::make_shared<std::vector<const float*>>(static_cast<std::size_t>(chunks));
  kernels::MlaMergeArgs args{};
  args.rank = kRank;
  args.num_chunks = chunks;
  args.partials = partials->data();
  args.out = buffers->Float(kRank);
  const std::size_t bytes = static_cast<std::size_t>(chunks * kPartialStride) * sizeof(float);
  KernelCase item = Named("mla_merge", fmt::format("1 head, {} chunks", chunks), isa, 1);
  item.result.bytes_per_call = static_cast<double>(bytes);
  item.call = [args, buffers, partials, &states, bytes,
               kernel = kernels::Bf16Kernels(isa).mla_merge] {
    const auto* first = reinterpret_cast<const float*>(states.Next(bytes));
    for (std::size_t i = 0; i < partials->size(); ++i) {
      (*partials)[i] = first + static_cast<std::ptrdiff_t>(i) * kPartialStride;
    }
    kernel(args);
  };
  return item;
}

/// One head of a fast run whose last row is at the last position.
KernelCase MlaExpanded(Isa isa, std::int64_t rows, std::int64_t positions, ColdMemory& states) {
  auto buffers = std::make_shared<Buffers>();
  kernels::MlaExpandedArgs args{};
  args.rows = rows;
  args.first_position = positions - rows;
  args.nope = kHeadDim;
  args.extra = kExtra;
  args.rank = kRank;
  args.value_dim = kHeadDim;
  args.query = buffers->Act(rows * (kHeadDim + kExtra));
  args.query_stride = kHeadDim + kExtra;
  args.key_weights = buffers->Act(kRank * kHeadDim);
  args.value_weights = buffers->Act(kRank * kHeadDim);
  args.page_tokens = kPageTokens;
  args.split = kSplit;
  args.scale = 0.07f;
  std::int32_t* pages = buffers->Int(CeilDiv(positions, kPageTokens));
  for (std::int64_t i = 0; i < CeilDiv(positions, kPageTokens); ++i) {
    pages[i] = static_cast<std::int32_t>(i);
  }
  args.page_table = pages;
  args.out = buffers->Act(rows * kHeadDim);
  args.out_stride = kHeadDim;
  const kernels::KernelTable<Bf16>& table = kernels::Bf16Kernels(isa);
  args.matmul = table.matmul[static_cast<std::size_t>(kernels::PanelFormat::kBf16)];
  args.scratch = buffers->Float(
      kernels::MlaExpandedScratch(rows, kHeadDim, kExtra, kRank, kHeadDim, kSplit).floats);
  const std::size_t bytes =
      static_cast<std::size_t>(RoundUp(positions, kPageTokens)) * (kRank + kExtra) * sizeof(Bf16);
  KernelCase item = Named(
      "mla_expanded", fmt::format("1 head, {} rows to position {}", rows, positions), isa, rows);
  item.result.bytes_per_call = static_cast<double>(bytes);
  const std::int64_t pairs = rows * positions - rows * (rows - 1) / 2;
  item.result.flops_per_call =
      2.0 * static_cast<double>(positions * kRank * 2 * kHeadDim + pairs * (2 * kHeadDim + kExtra));
  item.call = [args, buffers, &states, bytes, kernel = table.mla_expanded]() mutable {
    args.cache = reinterpret_cast<const Bf16*>(states.Next(bytes));
    kernel(args);
  };
  return item;
}

/// One key head of the drafter.
KernelCase DraftAttention(Isa isa, ColdMemory& states) {
  auto buffers = std::make_shared<Buffers>();
  constexpr std::int64_t kWidth = kDraftHeadsPerKey * kDraftHeadDim;
  kernels::DraftAttentionArgs<Bf16> args{};
  args.rows = kDraftRows;
  args.heads = kDraftHeadsPerKey;
  args.head_dim = kDraftHeadDim;
  args.q = buffers->Act(kDraftRows * kWidth);
  args.q_row_stride = args.out_row_stride = kWidth;
  args.q_head_stride = args.out_head_stride = kDraftHeadDim;
  args.context_stride = args.block_stride = kDraftHeadDim;
  args.capacity = args.end_position = kDraftWindow;
  args.block_k = buffers->Act(kDraftRows * kDraftHeadDim);
  args.block_v = buffers->Act(kDraftRows * kDraftHeadDim);
  args.causal = true;
  args.scale = 0.125f;
  args.out = buffers->Act(kDraftRows * kWidth);
  args.scratch = buffers->Float(
      kernels::DraftAttentionScratchFloats(kDraftRows, kDraftHeadsPerKey, kDraftHeadDim));
  constexpr std::size_t kContextBytes = kDraftWindow * kDraftHeadDim * sizeof(Bf16);
  KernelCase item = Named("draft_attention",
                          fmt::format("{} heads, {} positions", kDraftHeadsPerKey, kDraftWindow),
                          isa, kDraftRows);
  item.result.bytes_per_call = 2.0 * kContextBytes;
  item.result.flops_per_call =
      4.0 * static_cast<double>(kDraftRows * kWidth * (kDraftWindow + kDraftRows));
  item.call = [args, buffers, &states,
               kernel = kernels::Bf16Kernels(isa).draft_attention]() mutable {
    args.context_k = reinterpret_cast<const Bf16*>(states.Next(kContextBytes));
    args.context_v = reinterpret_cast<const Bf16*>(states.Next(kContextBytes));
    kernel(args);
  };
  return item;
}

KernelCase HeadNormRotary(Isa isa) {
  auto buffers = std::make_shared<Buffers>();
  kernels::HeadNormRotaryArgs<Bf16> args{};
  args.heads = kDraftHeads;
  args.head_dim = kDraftHeadDim;
  args.in = buffers->Act(kDraftHeads * kDraftHeadDim);
  args.in_stride = args.out_stride = kDraftHeadDim;
  args.weight = buffers->Act(kDraftHeadDim);
  args.eps = 1e-5f;
  args.cos = buffers->Float(kDraftHeadDim / 2);
  args.sin = buffers->Float(kDraftHeadDim / 2);
  args.out = buffers->Act(kDraftHeads * kDraftHeadDim);
  KernelCase item =
      Named("head_norm_rotary", fmt::format("{} heads of {}", kDraftHeads, kDraftHeadDim), isa, 1);
  item.call = [args, buffers, kernel = kernels::Bf16Kernels(isa).head_norm_rotary] {
    kernel(args);
  };
  return item;
}

KernelCase AttnResNorm(Isa isa, std::int64_t num_sources) {
  auto buffers = std::make_shared<Buffers>();
  auto sources = std::make_shared<std::vector<const Bf16*>>();
  for (std::int64_t i = 0; i < num_sources; ++i) sources->push_back(buffers->Act(kHidden));
  kernels::AttnResNormArgs<Bf16> args{};
  args.sources = sources->data();
  args.num_sources = num_sources;
  args.hidden = kHidden;
  args.fold = buffers->Float(kHidden);
  args.norm_weight = buffers->Act(kHidden);
  args.eps = 1e-5f;
  args.out = buffers->Act(kHidden);
  args.scratch = buffers->Float(kernels::AttnResScratchFloats(num_sources));
  KernelCase item =
      Named("attn_res_norm", fmt::format("{} wide, {} sources", kHidden, num_sources), isa, 1);
  item.call = [args, buffers, sources, kernel = kernels::Bf16Kernels(isa).attn_res_norm] {
    kernel(args);
  };
  return item;
}

KernelCase RmsNorm(Isa isa) {
  auto buffers = std::make_shared<Buffers>();
  kernels::RmsNormArgs<Bf16> args{};
  args.in = buffers->Act(kHidden);
  args.count = kHidden;
  args.weight = buffers->Act(kHidden);
  args.eps = 1e-5f;
  args.out = buffers->Act(kHidden);
  KernelCase item = Named("rms_norm", fmt::format("{} wide", kHidden), isa, 1);
  item.call = [args, buffers, kernel = kernels::Bf16Kernels(isa).rms_norm] { kernel(args); };
  return item;
}

KernelCase GatedPair(Isa isa) {
  auto buffers = std::make_shared<Buffers>();
  kernels::GatedPairArgs<Bf16> args{};
  args.acc = buffers->Float(2 * kExpertWidth);
  args.count = kExpertWidth;
  args.activation = {kernels::GatedActivation::kSitu, 1.0f, 8.0f};
  args.out = buffers->Act(kExpertWidth);
  KernelCase item = Named("gated_pair", fmt::format("{} wide", kExpertWidth), isa, 1);
  item.call = [args, buffers, kernel = kernels::Bf16Kernels(isa).gated_pair] { kernel(args); };
  return item;
}

KernelCase RouterTopK(Isa isa) {
  auto buffers = std::make_shared<Buffers>();
  kernels::RouterTopKArgs args{};
  args.logits = buffers->Float(kExperts);
  args.bias = buffers->Float(kExperts);
  args.num_experts = kExperts;
  args.top_k = kTopK;
  args.renormalize = true;
  args.scaling_factor = 1.0f;
  args.num_groups = 1;
  args.topk_groups = 1;
  args.ids = buffers->Int(kTopK);
  args.weights = buffers->Float(kTopK);
  args.scratch = buffers->Float(kernels::RouterScratchFloats(kExperts, 1));
  KernelCase item = Named("router_top_k", fmt::format("{} of {}", kTopK, kExperts), isa, 1);
  item.call = [args, buffers, kernel = kernels::Bf16Kernels(isa).router_top_k] { kernel(args); };
  return item;
}

}  // namespace

std::vector<KernelCase> OtherCases(ColdMemory& states, const KernelOptions& options) {
  std::vector<KernelCase> cases;
  for (const Isa isa : options.isas) {
    cases.push_back(KdaHead(isa, 1, 0, false, states));
    cases.push_back(KdaHead(isa, kDraftRows, kDraftRows - 1, false, states));
    cases.push_back(KdaHead(isa, 64, 0, false, states));
    cases.push_back(KdaHead(isa, 64, 0, true, states));
    for (const std::int64_t positions : {1024, 16384}) {
      cases.push_back(MlaAttention(isa, positions, false, states));
    }
    cases.push_back(MlaAttention(isa, kChunk, true, states));
    cases.push_back(MlaMerge(isa, 64, states));
    cases.push_back(MlaExpanded(isa, 256, 2048, states));
    cases.push_back(DraftAttention(isa, states));
    cases.push_back(HeadNormRotary(isa));
    cases.push_back(AttnResNorm(isa, 1));
    cases.push_back(AttnResNorm(isa, 4));
    cases.push_back(RmsNorm(isa));
    cases.push_back(GatedPair(isa));
    cases.push_back(RouterTopK(isa));
  }
  std::erase_if(cases, [&options, &states](const KernelCase& item) {
    return (!options.only.empty() && item.result.kernel.find(options.only) == std::string::npos) ||
           item.result.bytes_per_call > static_cast<double>(states.size_bytes());
  });
  return cases;
}

}  // namespace megalith::bench
