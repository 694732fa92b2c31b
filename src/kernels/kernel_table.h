#pragma once

// The kernels of one instruction-set path, as a table of function pointers selected once at start.
// `Act` is the storage type of activations: Bf16 (every path) or float (portable only; no
// rounding). All kernels are pure functions of their arguments: no state, no allocation, calls may
// overlap. Numerics: numerics.h. "round" = to Act. The caller's thread holds a
// ScopedFlushDenormals. Pointers need the natural alignment of their type only, except where a
// scratch says more. No kernel reads or writes beyond the counts it is given (weights: beyond the
// padded panel).

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bf16.h"
#include "base/result.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"

namespace megalith::kernels {

enum class Isa : std::uint8_t {
  kPortable,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmx,
  kAmxEmulated,  ///< the kernels and bits of kAmx with its tiles in AVX-512 code: slow, for
                 ///< checking
};

/// acc[r][n] = dot(panel row n, x row r), n over num_panels * 16 outputs.
template <typename X>
struct MatmulArgs {
  const std::byte* panels;  ///< num_panels consecutive panels of `inputs` inputs
  std::int64_t num_panels;
  std::int64_t inputs;
  const X* x;             ///< [.., inputs], row stride x_stride; never read beyond `inputs`
  std::int64_t x_stride;  ///< elements
  const std::int32_t* row_indices;  ///< row r of the product reads x row row_indices[r]; null: r
  std::int64_t rows;                ///< >= 1
  float* acc;                       ///< [rows][acc_stride] f32, written
  std::int64_t acc_stride;          ///< elements, >= num_panels * 16
  float* scratch;  ///< private, MatmulScratchFloats(inputs) floats, 64-byte aligned
};
/// Rows are processed in blocks of this many; bits do not depend on it.
inline constexpr std::int64_t kMatmulRowBlock = 8;
/// The same for the tile kernels, which read many rows for every panel and keep the expanded
/// weights and the inputs of a chunk of 32 blocks in scratch.
inline constexpr std::int64_t kTileRowBlock = 256;
inline constexpr std::int64_t kTileChunkBlocks = 32;
inline std::int64_t MatmulScratchFloats(std::int64_t inputs) {
  const std::int64_t padded = PaddedInputs(inputs);
  const std::int64_t chunk =
      padded < kTileChunkBlocks * kBlockInputs ? padded : kTileChunkBlocks * kBlockInputs;
  // Of bf16, two to a float: two panels and the rows.
  const std::int64_t tiles = (2 * kPanelOutputs + kTileRowBlock) * chunk / 2;
  const std::int64_t rows = kMatmulRowBlock * padded;
  return rows > tiles ? rows : tiles;
}

template <typename Act>
struct AttnResNormArgs {
  const Act* const* sources;  ///< num_sources rows of [hidden]: blocks in push order, then prefix
  std::int64_t num_sources;   ///< 1: no mix, the row itself
  std::int64_t hidden;
  const float* fold;        ///< [hidden], unused if num_sources == 1
  const Bf16* norm_weight;  ///< [hidden]
  float eps;
  Act* out;        ///< [hidden]; may be one of the sources
  float* scratch;  ///< private, AttnResScratchFloats(num_sources) floats
};
inline std::int64_t AttnResScratchFloats(std::int64_t num_sources) {
  return RoundUp<std::int64_t>(num_sources, kLanes);
}

template <typename Act>
struct RmsNormArgs {
  const Act* in;
  std::int64_t count;
  const Bf16* weight;
  float eps;
  Act* out;  ///< may equal in
};

/// Heads of one row: RMS norm of each with a weight common to all, rounded as RmsNormArgs has it,
/// then rotation by the row's position. With x the rounded norm and h = head_dim / 2, for j < h:
///   out[j]     = round(x[j] * cos[j] - x[j + h] * sin[j])
///   out[j + h] = round(x[j + h] * cos[j] + x[j] * sin[j])
template <typename Act>
struct HeadNormRotaryArgs {
  std::int64_t heads;
  std::int64_t head_dim;  ///< even
  const Act* in;          ///< [heads][head_dim]
  std::int64_t in_stride;
  const Bf16* weight;  ///< [head_dim]
  float eps;
  // Of the position, from RotaryAngles (rotary.h).
  const float* cos;  ///< [head_dim / 2]
  const float* sin;  ///< [head_dim / 2]
  Act* out;          ///< [heads][head_dim]; may equal in, with its stride
  std::int64_t out_stride;
};

enum class GatedActivation : std::uint8_t { kSitu, kSilu };
struct GatedParameters {
  GatedActivation kind;
  float beta;
  float linear_beta;  ///< <= 0: up branch uncapped
};

/// One row: acc holds panels alternating gate, up (16 each); out[16 p + i] = round(act(round(gate),
/// round(up))) for the first `count` outputs.
template <typename Act>
struct GatedPairArgs {
  const float* acc;
  std::int64_t count;
  GatedParameters activation;
  Act* out;
};

/// One head of a run of rows of one sequence. `out` must not overlap the inputs. With a the decays
/// of a row, S the state and every product and sum as in the chunk form below, for chunks of one
/// row:
///   u = beta (v - (k * a) . S);  o = (q * a) . S + (q . k) u;  S = a * S + k u
///
/// The last num_drafts rows may be taken back: the state and the histories after each of them go to
/// memory of their own, and `state` and the histories end as they are before the first of them.
/// Taking rows back is then a choice of pointers. Outputs and states have the bits that a call per
/// row gives.
template <typename Act>
struct KdaHeadArgs {
  std::int64_t rows;
  std::int64_t head_dim;
  std::int64_t conv_kernel;
  // [rows][head_dim] each, row stride in elements; this head's columns.
  const Act* q;
  const Act* k;
  const Act* v;
  const Act* gate;
  const Act* decay;  ///< f_b output, before dt_bias
  const Act* beta;   ///< [rows], stride beta_stride: b_proj output before the sigmoid
  std::int64_t q_stride, k_stride, v_stride, gate_stride, decay_stride, beta_stride;
  // [conv_kernel][..]: tap t of channel d at taps[t * taps_stride + d]; tap conv_kernel - 1 is the
  // current row.
  const float* q_taps;
  const float* k_taps;
  const float* v_taps;
  std::int64_t taps_stride;
  float a_log;
  const float* dt_bias;       ///< [head_dim]
  const float* o_norm;        ///< [head_dim]
  float eps;                  ///< output norm
  float gate_lower_bound;     ///< < 0; 0 selects the softplus form
  bool zero_state;            ///< the run starts its sequence: ignore what state and history hold
  float* state;               ///< [head_dim][state_stride]: key major, updated
  std::int64_t state_stride;  ///< RoundUp(head_dim, 16); padding stays zero
  // Last conv_kernel - 1 inputs of the convolution, oldest first: element (age, channel d) at
  // history[age * history_stride + d]; updated.
  Act* q_history;
  Act* k_history;
  Act* v_history;
  std::int64_t history_stride;
  Act* out;  ///< [rows][head_dim], stride out_stride
  std::int64_t out_stride;
  float* scratch;               ///< private, KdaScratchFloats(head_dim) floats, 64-byte aligned
  std::int64_t num_drafts = 0;  ///< < rows
  // [num_drafts]: entry i is for row rows - num_drafts + i. Nothing that they point to overlaps
  // anything else here.
  float* const* draft_states = nullptr;  ///< each laid out as `state`; written, padding too
  /// Each a q history; the k and v histories lie at the distances from it that k_history and
  /// v_history have from q_history.
  Act* const* draft_histories = nullptr;
  /// Chunk form only: rows up to the first chunk border, 1 .. kKdaChunkRows.
  std::int64_t first_chunk_rows = 0;
};
inline constexpr std::int64_t KdaScratchFloats(std::int64_t head_dim) {
  return 2 * 7 * RoundUp<std::int64_t>(head_dim, kLanes);  // two rows
}

/// Rows of a chunk in the chunk form of KDA, and where its borders are: at multiples of it among a
/// sequence's positions. The chunk's own pairs of rows cost more the longer it is, reading and
/// writing the state less: 16 and 32 are equally fast, and 16 are a vector of lanes.
inline constexpr std::int64_t kKdaChunkRows = 16;

/// The chunk form: the recurrence of a chunk's rows i = 0 .. n - 1 written out, so that the state S
/// is read and written once a chunk and the rest are matrix products (num_drafts = 0). With
/// a_i the decays, P_i = a_0 * .. * a_i and, for j <= i, D_ij = k_j * a_(j + 1) * .. * a_i, all
/// products in ascending order of rows:
///   u_i = beta_i (v_i - ((k_i * P_i) . S + sum over j < i of (k_i . D_ij) u_j))
///   o_i = (q_i * P_i) . S + sum over j <= i of (q_i . D_ij) u_j
///   S   = P_(n - 1) * S + sum over i of D_(n - 1)i u_i
/// The dot products of rows k_i . D_ij and q_i . D_ij have the order of rule 2 of numerics.h, all
/// other sums are chains in ascending order (of d, then of rows). Decays are multiplied up, never
/// divided out, and no exponent is taken of a sum: nothing overflows however strong the decay.
inline std::int64_t KdaChunkScratchFloats(std::int64_t head_dim) {
  const std::int64_t padded = RoundUp<std::int64_t>(head_dim, kLanes);
  // Of one row: q, its decays and their product. Of all: v, D, k * P, q * P and what these two
  // give. Then the two matrices of dots, and beta.
  return (3 + 6 * kKdaChunkRows) * padded + (2 * kKdaChunkRows + 1) * kKdaChunkRows;
}

/// `heads` heads of `rows` rows of one sequence: row r over the positions 0 .. num_positions - 1 +
/// r. The context is cut into chunks, and these into parts, both counted from position 0. A part is
/// a softmax of its own: largest score, exponentials relative to it, their sum ("total"), latents
/// weighted with them. The parts of a chunk are merged in ascending order, by rescaling both to the
/// larger maximum; so are then the chunks; the total divides last. What is rounded and in which
/// order products add up is rule 6 of numerics.h. Bits of a row and head do not depend on which
/// others are in the call; together they read the cache once. Strides are elements.
///
/// mla_partial does one chunk of this: of each row that sees any of it, per head out[0 .. rank) =
/// weighted latents, not divided, out[rank] = maximum, out[rank + 1] = total. Other rows' outputs
/// stay as they are. mla_merge does the rest, so that together they give the bits of
/// mla_attention.
template <typename Act>
struct MlaAttentionArgs {
  std::int64_t heads;
  const float* latent_query;  ///< [rows][heads][rank]
  std::int64_t latent_query_stride;
  const Act* extra_query;  ///< [rows][heads][extra]
  std::int64_t extra_query_stride;
  std::int64_t rank;
  std::int64_t extra;
  const Act* cache;                ///< page pool of this layer: [pages][page_tokens][rank + extra]
  const std::int32_t* page_table;  ///< page of positions i * page_tokens ..
  std::int64_t page_tokens;
  std::int64_t num_positions;  ///< >= 1
  std::int64_t split;          ///< positions per part (program::kAttentionSplit)
  std::int64_t chunk;          ///< positions per chunk, whole parts (program::kAttentionChunk)
  float scale;
  float* out;  ///< [rows][heads][rank] f32
  std::int64_t out_stride;
  /// Private, 64-byte aligned: MlaScratchFloats(heads, rank, extra, split);
  /// mla_partial: MlaPartialScratchFloats.
  float* scratch;
  std::int64_t rows = 1;  ///< 1 .. kMaxMlaRows
  // Between rows; unused for a single one.
  std::int64_t latent_query_row_stride = 0, extra_query_row_stride = 0, out_row_stride = 0;
};
inline constexpr std::int64_t kMaxMlaHeadsAtOnce = 4;
inline constexpr std::int64_t kMaxMlaRows = 8;
/// Positions that are scored together divide it.
inline constexpr std::int64_t kMlaScoreBlock = 16;
/// Cached rows are requested so many positions before they are scored: the processor alone does not
/// look far enough ahead.
inline constexpr std::int64_t kMlaPositionsAhead = 32;
inline std::int64_t MlaScoreStride(std::int64_t split) {
  return RoundUp<std::int64_t>(split, kMlaScoreBlock);
}
/// Blocks of 32 elements of a query: those of the latent, then those of the extra key.
inline std::int64_t MlaQueryPairs(std::int64_t rank, std::int64_t extra) {
  return CeilDiv<std::int64_t>(rank, kBlockInputs) + CeilDiv<std::int64_t>(extra, kBlockInputs);
}
inline std::int64_t MlaPartialScratchFloats(std::int64_t heads, std::int64_t rank,
                                            std::int64_t extra, std::int64_t split) {
  const std::int64_t stride = MlaScoreStride(split);
  // Of a part: the queries of the heads at once, pointers to its positions, scores and output; then
  // maximum and total of the parts so far for every head of every row.
  return kMaxMlaHeadsAtOnce * MlaQueryPairs(rank, extra) * kBlockInputs +
         2 * (stride + kMlaPositionsAhead) +
         kMaxMlaHeadsAtOnce * (stride + RoundUp<std::int64_t>(rank, kLanes)) +
         2 * heads * kMaxMlaRows;
}
inline std::int64_t MlaScratchFloats(std::int64_t heads, std::int64_t rank, std::int64_t extra,
                                     std::int64_t split) {
  // Beside the chunks so far, the parts so far of a chunk.
  return MlaPartialScratchFloats(heads, rank, extra, split) +
         heads * kMaxMlaRows * (2 + RoundUp<std::int64_t>(rank, kLanes));
}

/// One head of one row: the chunks that mla_partial has computed one by one.
struct MlaMergeArgs {
  std::int64_t rank;
  std::int64_t num_chunks;  ///< >= 1
  /// [num_chunks], ascending: as mla_partial leaves them, with room for whole vectors.
  const float* const* partials;
  float* out;  ///< [rank]
};

/// One head of a run of rows in expanded form: keys and values of the head are made of the cached
/// latents, part by part, and all rows meet a part before the next. bf16 only, and other bits than
/// MlaAttention. With `dot` and round as the path has them for bf16 (rule 1 of numerics.h), for the
/// positions t of a part:
///   key_t   = round(dot(key rows of kv_b, latent_t)), then the extra key of t
///   value_t = round(dot(value rows of kv_b, latent_t))
///   score_t = dot(key_t, query) * scale; p_t = exp(score_t - largest of the part), 0 if t lies
///             after the row; high_t = round(p_t), low_t = round(p_t - high_t)
///   part    = dot(high, values) + dot(low, values), with t as the input of the dot
/// Parts end at multiples of `split` positions and merge in ascending order as those of a chunk of
/// MlaAttention do; there are no chunks. Bits of a row depend on its own position and the cache
/// only. (A value that is not finite also shows in the rows before it of the same run.)
struct MlaExpandedArgs {
  std::int64_t rows;            ///< row r is at position first_position + r
  std::int64_t first_position;  ///< positions before it are in the cache, and so are the rows' own
  const Bf16* query;            ///< [rows][nope + extra], row stride query_stride
  std::int64_t query_stride;
  std::int64_t nope;
  std::int64_t extra;
  std::int64_t rank;
  std::int64_t value_dim;
  /// Packed bf16 panels of this head: kv_b's key rows with latents as outputs and keys as inputs
  /// (as the absorbed form reads them), and its value rows.
  const Bf16* key_weights;    ///< panels of [rank] outputs over [nope] inputs
  const Bf16* value_weights;  ///< panels of [value_dim] outputs over [rank] inputs
  const Bf16* cache;          ///< as MlaAttentionArgs
  const std::int32_t* page_table;
  std::int64_t page_tokens;
  std::int64_t split;
  float scale;
  const Bf16* gate;  ///< [rows][value_dim]: out = round(round(o) * round(sigmoid(gate))); or null
  std::int64_t gate_stride;
  Bf16* out;  ///< [rows][value_dim]
  std::int64_t out_stride;
  void (*matmul)(const MatmulArgs<Bf16>&);  ///< of the path, for bf16 panels
  float*
      scratch;  ///< private, MlaExpandedScratch::floats (mla_expanded_scratch.h), 64-byte aligned
};
/// Attention of a drafter's block: `heads` query heads that share one key and value head, for every
/// row of the block, over the context and the block itself. Softmax in float over the keys in
/// ascending order, the block's last; `out` is rounded once. Bits of a row and head do not depend
/// on which others are in the call.
template <typename Act>
struct DraftAttentionArgs {
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t head_dim;
  const Act* q;  ///< [rows][heads][head_dim]
  std::int64_t q_row_stride, q_head_stride;
  // A ring: the key and the value of position t lie at (t % capacity) * context_stride.
  const Act* context_k;
  const Act* context_v;
  std::int64_t context_stride;
  std::int64_t capacity;
  // Every row sees the positions first_position .. end_position - 1: at most `capacity`, maybe
  // none.
  std::int64_t first_position, end_position;
  const Act* block_k;  ///< [rows][head_dim]
  const Act* block_v;  ///< [rows][head_dim]
  std::int64_t block_stride;
  bool causal;  ///< row r sees the block's rows 0 .. r; else it sees all
  float scale;
  Act* out;  ///< [rows][heads][head_dim]
  std::int64_t out_row_stride, out_head_stride;
  float* scratch;  ///< private, DraftAttentionScratchFloats(rows, heads, head_dim) floats
};
/// The softmax is cut after so many keys of the context, counted from first_position, and of the
/// block; what came before is rescaled to the largest score so far.
inline constexpr std::int64_t kDraftPartKeys = 64;
inline std::int64_t DraftAttentionScratchFloats(std::int64_t rows, std::int64_t heads,
                                                std::int64_t head_dim) {
  const std::int64_t queries = RoundUp<std::int64_t>(rows * heads, kLanes);
  return queries * (2 * head_dim + kDraftPartKeys + 4) +
         kDraftPartKeys * RoundUp<std::int64_t>(head_dim, kLanes);
}

/// One row. A score that is NaN ranks as -infinity.
struct RouterTopKArgs {
  const float* logits;  ///< [num_experts]
  const float* bias;    ///< [num_experts]
  std::int64_t num_experts;
  std::int64_t top_k;  ///< <= num_experts
  bool softmax;        ///< else sigmoid
  bool renormalize;
  float scaling_factor;
  std::int64_t num_groups;  ///< > 1 and > topk_groups: group-limited; divides num_experts
  std::int64_t topk_groups;
  std::int32_t* ids;  ///< [top_k], ascending
  float* weights;     ///< [top_k]
  float* scratch;     ///< private, RouterScratchFloats(num_experts, num_groups) floats
};
inline std::int64_t RouterScratchFloats(std::int64_t num_experts, std::int64_t num_groups) {
  return 2 * num_experts + num_groups;
}

template <typename Act>
struct KernelTable {
  Isa isa;
  DotNumerics numerics;  ///< of `matmul`
  // Indexed by PanelFormat.
  void (*matmul[kNumPanelFormats])(const MatmulArgs<Act>&);
  /// Multiply, then add; kSplitPairs order, quantised weights in float chains.
  void (*matmul_float[kNumPanelFormats])(const MatmulArgs<float>&);
  void (*attn_res_norm)(const AttnResNormArgs<Act>&);
  void (*rms_norm)(const RmsNormArgs<Act>&);
  void (*head_norm_rotary)(const HeadNormRotaryArgs<Act>&);
  void (*gated_pair)(const GatedPairArgs<Act>&);
  /// out[i] = round(in[i])
  void (*store)(const float* in, std::int64_t count, Act* out);
  /// out[i] = round(residual[i] + round(acc[i]))
  void (*add_residual)(const float* acc, const Act* residual, std::int64_t count, Act* out);
  /// out[i] = round(residual[i] + round(acc[i] + aux[i]))
  void (*add_shared_residual)(const float* acc, const float* aux, const Act* residual,
                              std::int64_t count, Act* out);
  /// out[i] = round(round(acc[i]) * round(sigmoid(gate[i])))
  void (*sigmoid_gate)(const float* acc, const Act* gate, std::int64_t count, Act* out);
  /// sum[i] = sum[i] + weight * round(acc[i])
  void (*weighted_add)(const float* acc, float weight, std::int64_t count, float* sum);
  void (*kda_head)(const KdaHeadArgs<Act>&);
  void (*kda_chunks)(const KdaHeadArgs<Act>&);  ///< the chunk form: other bits
  void (*mla_attention)(const MlaAttentionArgs<Act>&);
  void (*mla_partial)(const MlaAttentionArgs<Act>&, std::int64_t chunk);
  void (*mla_merge)(const MlaMergeArgs&);
  void (*mla_expanded)(const MlaExpandedArgs&);  ///< null for float activations
  void (*draft_attention)(const DraftAttentionArgs<Act>&);
  void (*router_top_k)(const RouterTopKArgs&);
};

std::string_view IsaName(Isa isa);
/// Of the matmuls of bf16 activations; needs no support for the path.
DotNumerics NumericsOf(Isa isa);
/// "portable", "avx2", "avx512", "avx512_bf16", "amx", "amx_emulated"; kUsage with the list of
/// names otherwise.
Result<Isa> ParseIsa(std::string_view name);
/// Whether this CPU and operating system can run the path.
bool IsaSupported(Isa isa);
/// The supported paths, slowest first; without kAmxEmulated, which runs on request only.
std::vector<Isa> SupportedIsas();
/// The best supported path, or the one named by the environment variable MEGALITH_FORCE_ISA (an
/// error if it is unknown or unsupported).
Result<Isa> SelectIsa();
/// Requires IsaSupported(isa).
const KernelTable<Bf16>& Bf16Kernels(Isa isa);
/// The portable kernels without activation rounding.
const KernelTable<float>& Float32Kernels();

}  // namespace megalith::kernels
