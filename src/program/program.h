#pragma once

// A Program: what every worker of one device does in one step, as plain data. No pointers, no code,
// no model: the same bytes are run by the reference interpreter and the CPU engine, checked by the
// verifier and printed by `megalith compile --dump`. docs/program.md explains it with an example.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "program/opcodes.h"

namespace megalith::program {

enum class Opcode : std::uint8_t {
#define X(name, text, operands, scope, meaning) name,
  MEGALITH_OPCODES(X)
#undef X
};
#define X(name, text, operands, scope, meaning) +1
inline constexpr int kNumOpcodes = 0 MEGALITH_OPCODES(X);
#undef X

enum class RowScope : std::uint8_t { kNoRows, kOwnRows, kAllRows };
enum class Access : std::uint8_t { kRead, kWrite, kUpdate };

/// One row of the opcode table.
struct OpcodeInfo {
  std::string_view name;
  std::vector<std::string_view> operand_names;
  std::vector<Access> operand_access;
  RowScope scope;
  std::string_view meaning;
};
const OpcodeInfo& Info(Opcode opcode);

/// Positions per part of split attention: fixed, so that bits do not depend on context or workers.
inline constexpr int kAttentionSplit = 512;
/// Positions per chunk, whole parts: parts are merged into their chunk, then chunks. A chunk of a
/// head is the smallest piece that workers share out (attention_division.h).
inline constexpr int kAttentionChunk = 2048;

/// A run of at least so many rows, without drafts, takes the fast form of its mixers where an
/// instruction offers it (CompileOptions::fast_prefill): other bits.
inline constexpr std::int32_t kFastRunRows = 64;

/// What kMatmul does with its accumulators. `out` columns follow the tile's outputs unless said.
enum class Epilogue : std::uint8_t {
  kStore,              ///< out = round(acc) (no rounding if out is f32)
  kGatedPair,          ///< panels alternate gate, up: out = round(activation(round(g), round(u)))
  kAddResidual,        ///< out = round(residual + round(acc)); if imm[0] = 1 (mixer output) and the
                       ///< visit pushes a block, the residual restarts: out = round(acc)
  kAddSharedResidual,  ///< out = round(residual + round(acc + aux)), aux f32
  kSigmoidGate,        ///< out = round(round(acc) * round(sigmoid(aux)))
  kAddDraftBase,  ///< out = acc + aux, both f32; aux row: the run's block row of the visit's slot
};

/// The activation of kGatedPair and kExpertGateUp.
enum class Activation : std::uint8_t {
  kSitu,  ///< beta * tanh(g / beta) * sigmoid(g) * linear_beta * tanh(u / linear_beta)
  kSilu,  ///< g * sigmoid(g) * u
};

/// How the elements of a weight matrix are stored in the packed arena: as in the checkpoint, but
/// kInt8 is made of bf16 when the weights are packed (int8 codes, a bf16 scale per 32 inputs).
enum class WeightFormat : std::uint8_t { kBf16, kMxfp4, kInt8 };
std::string_view WeightFormatName(WeightFormat format);

inline constexpr std::uint32_t kNone = 0xffffffffu;

/// Most drafted tokens of a run, and most that are proposed at once.
inline constexpr std::int32_t kMaxDrafts = 31;

/// Values known only when a step runs. Each is the trip count of some instructions.
enum class Register : std::uint8_t {
  kOne,
  kRows,
  kLogitRows,
  kActiveExperts,
  kDraftRuns,  ///< runs after which the drafter proposes tokens
  kDraftRows,  ///< their block slots: runs * Program::draft.block_rows
};
inline constexpr int kNumRegisters = 6;
std::string_view RegisterName(Register value);

struct RegisterBound {
  std::int64_t max_value = 0;  ///< checked when the step is submitted (or by kRoutePlan)
};

/// What a buffer's row index means, and so how many rows it has.
enum class BufferKind : std::uint8_t {
  kRows,       ///< one row per row of the step
  kLogitRows,  ///< one row per requested logit row
  kPairs,      ///< one row per (row, chosen expert)
  kDraftRuns,  ///< one row per drafting run
  kDraftRows,  ///< one row per block slot of a drafting run
  kSingle,     ///< one row: tables
  // Of these two a slot has StateLayout::states_per_slot, a ring: see Run::num_drafts.
  kKdaState,   ///< per slot and KDA layer: [heads][head_dim keys][RoundUp(head_dim, 16) values] f32
  kConvState,  ///< per slot and KDA layer: [heads][kernel - 1, oldest first][q, k, v][head_dim]
  kMlaCache,   ///< per page and MLA layer: [page tokens][rank + extra]
  kDraftCache,  ///< per slot, one buffer per draft layer: a ring of StateLayout::draft_positions
                ///< rows [k, v][heads][head_dim]; position t at t mod draft_positions
  kStepInput,   ///< written by the host between steps: rows, runs, page tables
  kMailbox,     ///< stands for this rank's slots of a mailbox, whose memory is the fabric's
};
bool IsState(BufferKind kind);
/// State of which a visit binds one layer (Visit::state_index).
bool IsLayerState(BufferKind kind);
/// The kind of buffer whose rows the register counts; kSingle if it counts none.
BufferKind RowsOf(Register value);

struct Buffer {
  std::string name;
  BufferKind kind = BufferKind::kRows;
  DType dtype = DType::kBf16;
  std::int64_t columns = 0;     ///< elements of one row (state: of one slot and layer)
  std::int64_t row_stride = 0;  ///< elements between rows, >= columns
  std::int64_t rows = 0;        ///< most rows it can hold (state: 1)
  std::int64_t offset = 0;  ///< bytes into the activation arena; unused for state and host input.
                            ///< Buffers that are never live together may overlap.
};

// The plan that kRoutePlan writes (i32, one row) for E experts and P = max_rows * top_k pairs:
//   [0, E)            ids of the active experts, ascending; register active_experts says how many
//   [E, 2E + 1)       first pair of each active expert; one more entry ends the last
//   [2E + 1, + P)     row of each pair; pairs of one expert in ascending row order
//   [2E + 1 + P, + P) routing weight of each pair, the bits of a float
inline constexpr std::int64_t PlanColumns(std::int64_t num_experts, std::int64_t num_pairs) {
  return 2 * num_experts + 1 + 2 * num_pairs;
}

/// Bytes a buffer occupies in the activation arena; 0 for state and host input.
std::int64_t BufferBytes(const Buffer& buffer);

/// Counters live on their own cache lines and are never zeroed. Every visit that signals a counter
/// does so exactly `signals_per_visit` times.
enum class CounterScope : std::uint8_t {
  kSegment,  ///< signalled in the visits of one segment; a wait refers to the same visit
  kProgram,  ///< signalled in every visit; a wait refers to the previous visit (layer hand-over)
  kHost,     ///< signalled once per step by the host (step start)
  kDone,     ///< signalled by every worker at step end, awaited by the host
};
struct Counter {
  std::string name;
  CounterScope scope = CounterScope::kSegment;
  std::uint32_t segment = kNone;  ///< for kSegment
  std::int32_t signals_per_visit = 0;
};

/// A matrix of the checkpoint. Names hold `{layer}` and `{expert}` where they vary.
struct Tensor {
  std::string name;  ///< without `.weight` / `.weight_packed`
  WeightFormat format = WeightFormat::kBf16;
  std::int64_t outputs = 0;      ///< rows as stored
  std::int64_t inputs = 0;       ///< columns as stored
  std::int64_t num_experts = 0;  ///< 0: no {expert} in the name
  // What this rank reads: all columns of these rows, of these experts.
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t first_expert = 0;
  std::int64_t own_experts = 0;
};

/// Which part of the model this Program's rank computes (docs/cluster.md). Ranks are numbered group
/// by group: rank = group * (num_ranks / expert_groups) + part. Every matrix is split by outputs
/// over all ranks; the routed experts are dealt out to the groups and split within each.
struct Sharding {
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::int32_t expert_groups = 1;     ///< expert parallelism; the rest is tensor parallelism
  std::int64_t first_kda_head = 0;    ///< of those whose state this rank keeps
  std::int64_t first_draft_head = 0;  ///< key heads of the drafter likewise

  std::int32_t RanksPerGroup() const { return num_ranks / expert_groups; }
  std::int32_t Group() const { return rank / RanksPerGroup(); }
};

/// Ranks that exchange with each other through one mailbox, again and again: each puts for all, and
/// receives from all others.
struct Mailbox {
  std::uint32_t buffer = kNone;  ///< of kMailbox: makes the slots' use an access like others
  std::int32_t first_rank = 0;
  std::int32_t num_ranks = 0;
};

/// A contiguous piece of packed weights that one worker reads: `num_panels` panels of 16 outputs
/// over all inputs. Panel p holds outputs first_output + 16 p ...; the last may be partly padding.
struct Tile {
  std::uint32_t tensor = kNone;
  std::uint32_t pair_tensor = kNone;  ///< kGatedPair: panels alternate tensor, pair_tensor
  bool transposed = false;  ///< outputs are columns of the stored matrix, inputs are its rows
  std::int64_t first_output = 0;
  std::int64_t num_outputs = 0;  ///< of one tensor, without padding
  std::int64_t first_input = 0;
  std::int64_t num_inputs = 0;
  std::int64_t num_panels = 0;  ///< padded; both tensors of a pair counted
  std::int64_t offset = 0;  ///< bytes from the visit's weight base of this worker; for expert tiles
                            ///< from the base of the chosen expert's block
  std::int64_t bytes = 0;   ///< packed
  std::int64_t source_bytes = 0;  ///< the same weights in their format, without padding
};

/// A small read-only array that any worker may read: norm weights, taps, biases.
enum class VectorLayout : std::uint8_t {
  kAsStored,    ///< copied with its dtype
  kFold,        ///< f32: name * second_name element by element (both widened first)
  kTransposed,  ///< f32 [channels, taps] stored, [taps][channels] here
};
struct Vector {
  std::string name;
  std::string second_name;
  VectorLayout layout = VectorLayout::kAsStored;
  DType dtype = DType::kBf16;
  std::int64_t count = 0;         ///< elements that are read
  std::int64_t stored_count = 0;  ///< elements in the checkpoint (A_log is stored padded)
  std::int64_t taps = 0;          ///< for kTransposed
  std::int64_t offset = 0;        ///< bytes from the visit's vector base
  std::int64_t source_bytes = 0;
};

/// A range of columns [begin, end) of one buffer, in elements.
struct Operand {
  std::uint32_t buffer = kNone;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Rows first, first + step, first + 2 step, ... below the trip count.
struct RowSet {
  std::int32_t first = 0;
  std::int32_t step = 1;
};

inline constexpr int kMaxOperands = 10;
inline constexpr int kMaxVectors = 6;

struct Instruction {
  Opcode opcode = Opcode::kWait;
  Epilogue epilogue = Epilogue::kStore;
  Activation activation = Activation::kSitu;
  Register trip = Register::kOne;
  bool releases_slot = false;
  std::uint32_t wait_counter = kNone;
  std::int32_t wait_amount = 0;  ///< signals of the awaited visit that must have arrived
  std::uint32_t signal_counter = kNone;
  std::int32_t signal_amount = 0;
  std::uint32_t tile = kNone;  ///< index into the segment's tiles of this worker
  std::uint32_t slot = kNone;
  RowSet rows;
  std::array<std::uint32_t, kMaxVectors> vectors{kNone, kNone, kNone, kNone, kNone, kNone};
  std::array<Operand, kMaxOperands> operands{};
  std::array<std::int32_t, 5> imm{};
  std::array<float, 3> scalar{};
};

struct PrologueEntry {
  std::uint32_t tile = kNone;
  std::uint32_t slot = kNone;
};

/// What one worker does in one visit of a segment.
struct Stream {
  std::vector<Instruction> instructions;
  std::vector<Tile> tiles;
  std::vector<PrologueEntry> prologue;   ///< tiles that the previous visit has requested already
  std::int64_t weight_bytes = 0;         ///< packed, without experts
  std::int64_t expert_stride_bytes = 0;  ///< packed size of this worker's part of one expert
};

/// One layer kind (or embedding, or head): streams, independent of the layer they are applied to.
struct Segment {
  std::string name;
  std::vector<Stream> streams;  ///< one per worker
  std::vector<Vector> vectors;
  std::int64_t vector_bytes = 0;
};

/// A segment applied to one layer.
struct Visit {
  std::uint32_t segment = kNone;
  std::int32_t layer = -1;      ///< fills {layer}; -1 for embedding and head
  std::int32_t ordinal = 0;     ///< how many visits of the same segment came before in the step
  std::int32_t num_blocks = 0;  ///< AttnRes blocks that exist when the visit begins
  bool pushes_block = false;
  std::int32_t state_index = -1;    ///< which KDA (or MLA) layer's state, counted within its kind
  std::int32_t capture_index = -1;  ///< which part of the drafter's input the incoming residual is
  std::int32_t draft_slot = -1;     ///< which token of the block is chosen
  bool shares_weights = false;      ///< binds what the visit of the same segment before it bound
  std::vector<std::int64_t> weight_base;  ///< per worker: bytes into its weight arena
  std::vector<std::int64_t> expert_base;  ///< per worker
  std::int64_t vector_base = 0;           ///< bytes into the vector arena
  /// Per mailbox: exchanges of the visits before. Those of a visit are numbered on from there.
  std::vector<std::int64_t> first_exchange;
};

/// The state a sequence keeps between steps, and the shared page pool.
struct StateLayout {
  std::int32_t num_slots = 0;
  std::int32_t num_kda_layers = 0;
  std::int32_t num_mla_layers = 0;
  std::int32_t page_tokens = 0;
  std::int32_t num_pages = 0;        ///< in the pool, shared by all slots and MLA layers
  std::int32_t max_positions = 0;    ///< longest sequence
  std::int32_t states_per_slot = 1;  ///< recurrent states of a slot: drafts of a run + 1
  std::int32_t draft_positions = 0;  ///< of a slot in the draft caches; 0: no drafter
};

/// How the drafter proposes tokens after a step (docs/design/drafting.md). All 0 without a drafter.
struct DraftShape {
  std::int32_t max_runs = 0;    ///< runs that may draft in one step; 0: their context is kept only
  std::int32_t num_drafts = 0;  ///< tokens proposed per run
  std::int32_t block_rows = 0;  ///< slots of a run's block: the anchor and masks
  std::int32_t first_slot =
      0;  ///< slot that predicts the first token: 0, or 1 after an idle anchor
  std::int32_t mask_token = 0;
  std::int32_t num_captures = 0;  ///< residuals of the target that make up the drafter's input
};

/// A table that stays as stored, bf16: rows are read by token id.
struct Table {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  friend bool operator==(const Table&, const Table&) = default;
};

/// On-chip store of one worker: slots of equal size for weight tiles fetched ahead.
struct Store {
  std::int32_t num_slots = 0;
  std::int64_t slot_bytes = 0;
};

struct Program {
  std::string model_name;
  std::int32_t num_workers = 0;
  std::int32_t max_rows = 0;  ///< the row bucket
  std::int32_t max_logit_rows = 0;
  std::int32_t vocab_size = 0;
  DType activation_dtype = DType::kBf16;
  float situ_beta = 0.0f;
  float situ_linear_beta = 0.0f;  ///< <= 0: up branch uncapped
  std::array<RegisterBound, kNumRegisters> registers{};
  std::vector<Buffer> buffers;
  std::vector<Counter> counters;
  std::vector<Tensor> tensors;
  std::vector<Segment> segments;
  std::vector<Visit> visits;
  std::vector<std::int64_t> weight_arena_bytes;  ///< per worker
  std::int64_t vector_arena_bytes = 0;
  std::int64_t activation_arena_bytes = 0;
  StateLayout state;
  Store store;
  DraftShape draft;
  std::vector<Table> tables;  ///< [0]: the embedding
  std::int64_t hidden_size = 0;
  Sharding sharding;
  std::vector<Mailbox> mailboxes;
};

// Plain sums over a Program, used by reports and tests.

/// Bytes of checkpoint weights one step with `rows` rows reads, `active_experts` experts per MoE
/// layer; one embedding row per row. docs/program.md lists what is counted.
struct StepBytes {
  std::int64_t dense_source = 0;  ///< as stored in the checkpoint
  std::int64_t expert_source = 0;
  std::int64_t vector_source = 0;
  std::int64_t embedding_source = 0;
  std::int64_t packed = 0;  ///< the same as packed, padding included
  std::int64_t Source() const {
    return dense_source + expert_source + vector_source + embedding_source;
  }
};
StepBytes CountStepBytes(const Program& program, std::int64_t rows, std::int64_t active_experts);

std::int64_t CountInstructions(const Program& program);

/// Exchanges of one visit of the segment through the mailbox.
std::int64_t CountExchanges(const Segment& segment, std::int64_t mailbox);
/// Of a step, all mailboxes.
std::int64_t CountExchanges(const Program& program);

}  // namespace megalith::program
