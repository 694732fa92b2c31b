#pragma once

// The Program under construction. SegmentBuilder collects one segment's instructions phase by phase
// (a phase is one operation spread over the workers); ordering them is left to Synchronize,
// fetching their weights ahead to ScheduleFetches.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "program/compile/compile.h"
#include "program/compile/partition.h"
#include "program/program.h"

namespace megalith::program {

/// An instruction and the phase it belongs to.
struct PhasedInstruction {
  std::int32_t phase = 0;
  Instruction instruction;
};

class ProgramBuilder {
 public:
  ProgramBuilder(const model::Model& source_model, const CompileOptions& compile_options)
      : model(source_model), options(compile_options) {}

  const model::Model& model;
  const CompileOptions& options;
  Program program;

  /// Whether runs that take the fast form fit in a step and are wanted.
  bool HasFastRuns() const { return options.fast_prefill && options.max_rows >= kFastRunRows; }
  /// Whether workers share attention out over the context, too, not by heads alone. Not for many
  /// rows, which make much of what they have read, and for which partial results would be large.
  bool DividesContext() const;
  /// A buffer of step rows with the activation dtype, or another.
  std::uint32_t AddBuffer(std::string name, BufferKind kind, DType dtype, std::int64_t columns);
  std::uint32_t AddRows(std::string name, std::int64_t columns) {
    return AddBuffer(std::move(name), BufferKind::kRows, options.activation_dtype, columns);
  }
  /// Rows that a buffer of this kind holds.
  std::int64_t MaxRows(BufferKind kind) const;
  /// Start and end of a set of buffers that may share memory with another such set: returns the
  /// arena position, and continues from a given one.
  std::int64_t arena_position() const { return arena_position_; }
  void set_arena_position(std::int64_t position) { arena_position_ = position; }
  std::int64_t arena_high() const { return arena_high_; }

  /// The table of that name, added on first use; every one has a row per token.
  std::int32_t AddTable(std::string name, std::int64_t columns);
  /// The tensor of that name and shape, added on first use. The same name may have two shapes in
  /// two layer kinds (g_proj).
  std::uint32_t AddTensor(std::string name, std::int64_t outputs, std::int64_t inputs,
                          std::int64_t num_experts = 0);

  /// Rows of a value that few instructions compute and all workers read. With one row every worker
  /// computes it for itself, in its own copy, which takes no longer than waiting for the one worker
  /// that would have the row, and saves a join.
  std::uint32_t AddCopiedRows(std::string name, BufferKind kind, std::int64_t columns);
  /// The columns of a buffer; of the first copy if every worker has its own.
  Operand All(std::uint32_t buffer) const;
  bool IsCopied(std::uint32_t buffer) const { return copies_.contains(buffer); }
  /// The same columns in the worker's copy; other buffers' operands stay as they are.
  Operand OwnCopy(Operand operand, std::int32_t worker) const;

  // Ranks.
  std::int32_t num_ranks() const { return options.ranks.NumRanks(); }
  /// Which columns of a buffer each rank computes; what EmitExchange completes.
  void SetColumnsOfRanks(std::uint32_t buffer, std::vector<Range> columns) {
    columns_of_ranks_[buffer] = std::move(columns);
  }
  const std::vector<Range>& ColumnsOfRanks(std::uint32_t buffer) const;
  /// This rank reads no other rows of the tensor.
  void SetRowsOfTensor(std::uint32_t tensor, Range rows);
  /// This rank's share of `count` heads that are shared out whole.
  Range OwnHeads(std::int64_t count) const {
    return SplitEvenly(count, num_ranks())[static_cast<std::size_t>(options.rank)];
  }

 private:
  struct Copies {
    std::int64_t columns;  ///< of one copy
    std::int64_t stride;   ///< columns between copies
  };
  std::map<std::uint32_t, Copies> copies_;                        // by buffer
  std::map<std::uint32_t, std::vector<Range>> columns_of_ranks_;  // by buffer
  std::int64_t arena_position_ = 0;
  std::int64_t arena_high_ = 0;
};

/// A matrix product before it is split: which part of a tensor, and where its outputs go.
struct Product {
  std::uint32_t tensor = kNone;
  std::uint32_t pair_tensor = kNone;
  bool transposed = false;
  std::int64_t first_output = 0;  ///< in the stored matrix
  std::int64_t num_outputs = 0;
  std::int64_t first_input = 0;
  std::int64_t num_inputs = 0;
  Operand in;                 ///< all inputs
  std::uint32_t out = kNone;  ///< output n goes to column out_begin + n
  std::int64_t out_begin = 0;
  Epilogue epilogue = Epilogue::kStore;
  std::uint32_t aux = kNone;       ///< same columns as out
  std::uint32_t residual = kNone;  ///< same columns as out
  bool restarts_residual = false;
  /// Of Programs with fast runs: leaves these rows out, and the packed panels in this buffer from a
  /// column on.
  std::uint32_t panels = kNone;
  std::int64_t panels_begin = 0;
  Register trip = Register::kRows;
  std::optional<Activation> activation;  ///< of kGatedPair; empty: the model's
};

/// Levels what ranks, and within this rank workers, have to read between two joins.
struct Leveler {
  explicit Leveler(const ProgramBuilder& builder)
      : ranks(builder.num_ranks()), workers(builder.options.num_workers) {}
  LoadLeveler ranks;
  LoadLeveler workers;
};

/// Mailboxes of a job: all ranks, and the ranks of a group if there are several groups of several.
inline constexpr std::int32_t kAllRanksMailbox = 0;
inline constexpr std::int32_t kGroupMailbox = 1;

/// Values of which each rank has computed its own columns.
struct ExchangePlan {
  std::string name;
  std::vector<std::uint32_t> buffers;  ///< kNone does not count
  Register trip = Register::kRows;
  std::uint32_t plan = kNone;  ///< buffer of the route plan, if some hold pairs
  /// Experts whose pairs each rank has computed, by rank; empty: all of them.
  std::vector<Range> experts;
  std::int32_t mailbox = kAllRanksMailbox;
};

/// Outputs of a range of panels; the last panel may be partly padding.
Range OutputsOfPanels(Range panels, std::int64_t num_outputs);

class SegmentBuilder {
 public:
  SegmentBuilder(ProgramBuilder& builder, std::string name);

  ProgramBuilder& builder;
  Segment segment;
  std::vector<std::vector<PhasedInstruction>> streams;  // per worker

  std::int32_t num_workers() const { return builder.options.num_workers; }

  void BeginPhase(std::string name);
  const std::vector<std::string>& phase_names() const { return phase_names_; }
  /// For passes that renumber the phases of `streams`.
  void set_phase_names(std::vector<std::string> names) { phase_names_ = std::move(names); }

  /// Index of a vector of `count` elements; its dtype is that of the checkpoint.
  std::uint32_t AddVector(std::string name, DType dtype, std::int64_t count,
                          std::int64_t stored_count = 0);
  /// AttnRes fold: norm weight times projection.
  std::uint32_t AddFold(std::string norm_name, std::string proj_name, std::int64_t count);
  std::uint32_t AddTaps(std::string name, std::int64_t channels, std::int64_t taps);

  /// All rows of a matrix times all columns of `in`.
  Product Whole(std::string name, std::int64_t outputs, std::uint32_t in, std::uint32_t out);

  /// Operands in copied buffers become the worker's own copy.
  void Emit(std::int32_t worker, Instruction instruction);
  /// One instruction for each worker that can have a row, with its share of the rows; for every
  /// worker, with all rows, if the result is copied.
  void EmitOwnRows(const Instruction& instruction);
  /// Outputs [16 * panels.begin, 16 * panels.end) of the product, on one worker.
  void EmitProduct(std::int32_t worker, const Product& product, Range panels);
  /// This rank's part of the product on all workers, level with what `leveler` has handed out
  /// before.
  void EmitLevel(const Product& product, Leveler& leveler);
  /// The product on every rank, level over the workers: for matrices that cost less to read
  /// everywhere than their outputs cost to exchange.
  void EmitOnEveryRank(const Product& product, Leveler& leveler);
  /// The part of a product of heads x width outputs that belongs to this rank's heads.
  Product OfOwnHeads(const Product& product, std::int64_t heads);
  /// Products of the same shape (one per head), cut anywhere so that every worker gets the same
  /// number of panels. `aligned`: whole products per worker.
  void EmitPerHead(const std::vector<Product>& heads, bool aligned);

  // Every rank's columns for all ranks, in two halves so that other work can hide the wait. Nothing
  // for a job of one rank.
  void EmitExchange(const ExchangePlan& plan) {
    BeginExchange(plan);
    FinishExchange(plan);
  }
  /// Phases: own columns are put, and published.
  void BeginExchange(const ExchangePlan& plan);
  /// Phase: those of the others are received.
  void FinishExchange(const ExchangePlan& plan);

  /// A tile of an expert tensor; offset counts from the start of this worker's expert block.
  std::uint32_t AddExpertTile(std::int32_t worker, const Product& product, Range panels);

 private:
  std::uint32_t AddTile(std::int32_t worker, const Product& product, Range panels,
                        std::int64_t* position);
  std::uint32_t AddVector(Vector vector);
  Product OutputsOfRank(const Product& product, const std::vector<Range>& outputs);
  Instruction ExchangeInstruction(Opcode opcode, const ExchangePlan& plan, std::int32_t rank) const;

  std::map<std::int32_t, std::int32_t> num_exchanges_;  // by mailbox
  std::vector<std::string> phase_names_;
};

}  // namespace megalith::program
