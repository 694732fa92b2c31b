#include "program/compile/builder.h"

#include <algorithm>

#include "base/align.h"
#include "base/check.h"
#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "program/attention_division.h"
#include "program/exchange.h"

namespace megalith::program {
namespace {

constexpr std::int64_t kRowAlignment = 32;    // elements: rows start on a cache line for bf16
constexpr std::int64_t kArenaAlignment = 64;  // bytes

kernels::PanelFormat ToPanelFormat(WeightFormat format) {
  switch (format) {
    case WeightFormat::kMxfp4:
      return kernels::PanelFormat::kMxfp4;
    case WeightFormat::kInt8:
      return kernels::PanelFormat::kInt8;
    case WeightFormat::kBf16:
      break;
  }
  return kernels::PanelFormat::kBf16;
}

/// Bytes of `outputs` rows of `inputs` elements in their format, without padding.
std::int64_t SourceBytes(WeightFormat format, std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t groups = CeilDiv<std::int64_t>(inputs, kernels::kBlockInputs);
  switch (format) {
    case WeightFormat::kMxfp4:
      return outputs * (inputs / 2 + groups);
    case WeightFormat::kInt8:
      return outputs * (inputs + groups * DTypeBytes(DType::kBf16));
    case WeightFormat::kBf16:
      break;
  }
  return outputs * inputs * DTypeBytes(DType::kBf16);
}

std::int64_t ProductPanelBytes(const ProgramBuilder& builder, const Product& product) {
  const Tensor& tensor = builder.program.tensors[product.tensor];
  return kernels::PanelBytes(ToPanelFormat(tensor.format), product.num_inputs) *
         (product.pair_tensor == kNone ? 1 : 2);
}

std::int64_t NumPanels(const Product& product) {
  return CeilDiv<std::int64_t>(product.num_outputs, kernels::kPanelOutputs);
}

}  // namespace

bool ProgramBuilder::DividesContext() const {
  return options.num_workers > 1 && options.max_rows <= kernels::kMaxMlaRows &&
         options.max_positions > kUndividedPositions;
}

std::uint32_t ProgramBuilder::AddBuffer(std::string name, BufferKind kind, DType dtype,
                                        std::int64_t columns) {
  Buffer buffer{.name = std::move(name), .kind = kind, .dtype = dtype, .columns = columns};
  buffer.row_stride = RoundUp(std::max<std::int64_t>(columns, 1), kRowAlignment);
  buffer.rows = MaxRows(kind);
  const bool is_table = kind == BufferKind::kSingle || kind == BufferKind::kStepInput;
  if (is_table || IsState(kind)) buffer.row_stride = std::max<std::int64_t>(columns, 1);
  if (const std::int64_t bytes = BufferBytes(buffer); bytes > 0) {
    buffer.offset = arena_position_;
    arena_position_ = RoundUp(arena_position_ + bytes, kArenaAlignment);
    arena_high_ = std::max(arena_high_, arena_position_);
  }
  program.buffers.push_back(std::move(buffer));
  return static_cast<std::uint32_t>(program.buffers.size() - 1);
}

std::int64_t ProgramBuilder::MaxRows(BufferKind kind) const {
  switch (kind) {
    case BufferKind::kRows:
      return options.max_rows;
    case BufferKind::kLogitRows:
      return options.max_logit_rows;
    case BufferKind::kPairs:
      return options.max_rows * model.moe.num_experts_per_token;
    case BufferKind::kDraftRuns:
      return program.draft.max_runs;
    case BufferKind::kDraftRows:
      return std::int64_t{program.draft.max_runs} * program.draft.block_rows;
    default:
      return 1;
  }
}

std::int32_t ProgramBuilder::AddTable(std::string name, std::int64_t columns) {
  const auto found = std::find_if(program.tables.begin(), program.tables.end(),
                                  [&](const Table& table) { return table.name == name; });
  const auto index = static_cast<std::int32_t>(found - program.tables.begin());
  if (found == program.tables.end()) {
    program.tables.push_back({std::move(name), program.vocab_size, columns});
  }
  return index;
}

std::uint32_t ProgramBuilder::AddTensor(std::string name, std::int64_t outputs, std::int64_t inputs,
                                        std::int64_t num_experts) {
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& tensor = program.tensors[i];
    if (tensor.name == name && tensor.outputs == outputs && tensor.inputs == inputs) {
      return static_cast<std::uint32_t>(i);
    }
  }
  WeightFormat format = num_experts > 0 ? WeightFormat::kMxfp4 : WeightFormat::kBf16;
  if (options.weight_format) format = options.weight_format(name);
  if (const auto part = DensePartOf(name); part && format == WeightFormat::kBf16) {
    format = options.dense[*part];
  }
  program.tensors.push_back(
      {std::move(name), format, outputs, inputs, num_experts, 0, outputs, 0, num_experts});
  return static_cast<std::uint32_t>(program.tensors.size() - 1);
}

std::uint32_t ProgramBuilder::AddCopiedRows(std::string name, BufferKind kind,
                                            std::int64_t columns) {
  if (MaxRows(kind) > 1 || options.num_workers == 1) {
    return AddBuffer(std::move(name), kind, options.activation_dtype, columns);
  }
  const std::int64_t stride = RoundUp(columns, kRowAlignment);
  const std::uint32_t buffer = AddBuffer(std::move(name), kind, options.activation_dtype,
                                         (options.num_workers - 1) * stride + columns);
  copies_[buffer] = {columns, stride};
  return buffer;
}

Operand ProgramBuilder::All(std::uint32_t buffer) const {
  const auto copies = copies_.find(buffer);
  return {buffer, 0,
          copies == copies_.end() ? program.buffers[buffer].columns : copies->second.columns};
}

Operand ProgramBuilder::OwnCopy(Operand operand, std::int32_t worker) const {
  if (const auto copies = copies_.find(operand.buffer); copies != copies_.end()) {
    operand.begin += worker * copies->second.stride;
    operand.end += worker * copies->second.stride;
  }
  return operand;
}

const std::vector<Range>& ProgramBuilder::ColumnsOfRanks(std::uint32_t buffer) const {
  const auto columns = columns_of_ranks_.find(buffer);
  MEGALITH_CHECK(columns != columns_of_ranks_.end());
  return columns->second;
}

void ProgramBuilder::SetRowsOfTensor(std::uint32_t tensor, Range rows) {
  program.tensors[tensor].first_row = rows.begin;
  program.tensors[tensor].num_rows = rows.size();
}

Range OutputsOfPanels(Range panels, std::int64_t num_outputs) {
  return {std::min(panels.begin * kernels::kPanelOutputs, num_outputs),
          std::min(panels.end * kernels::kPanelOutputs, num_outputs)};
}

SegmentBuilder::SegmentBuilder(ProgramBuilder& program_builder, std::string name)
    : builder(program_builder) {
  segment.name = std::move(name);
  segment.streams.resize(static_cast<std::size_t>(num_workers()));
  streams.resize(static_cast<std::size_t>(num_workers()));
}

void SegmentBuilder::BeginPhase(std::string name) { phase_names_.push_back(std::move(name)); }

std::uint32_t SegmentBuilder::AddVector(Vector vector) {
  const std::int64_t bytes = vector.count * DTypeBytes(vector.dtype);
  vector.offset = segment.vector_bytes;
  segment.vector_bytes = RoundUp(segment.vector_bytes + bytes, kArenaAlignment);
  segment.vectors.push_back(std::move(vector));
  return static_cast<std::uint32_t>(segment.vectors.size() - 1);
}

std::uint32_t SegmentBuilder::AddVector(std::string name, DType dtype, std::int64_t count,
                                        std::int64_t stored_count) {
  Vector vector;
  vector.name = std::move(name);
  vector.dtype = dtype;
  vector.count = count;
  vector.stored_count = stored_count == 0 ? count : stored_count;
  vector.source_bytes = vector.stored_count * DTypeBytes(dtype);
  return AddVector(std::move(vector));
}

std::uint32_t SegmentBuilder::AddFold(std::string norm_name, std::string proj_name,
                                      std::int64_t count) {
  Vector vector;
  vector.name = std::move(norm_name);
  vector.second_name = std::move(proj_name);
  vector.layout = VectorLayout::kFold;
  vector.dtype = DType::kF32;
  vector.count = vector.stored_count = count;
  vector.source_bytes = 2 * count * DTypeBytes(DType::kBf16);
  return AddVector(std::move(vector));
}

std::uint32_t SegmentBuilder::AddTaps(std::string name, std::int64_t channels, std::int64_t taps) {
  Vector vector;
  vector.name = std::move(name);
  vector.layout = VectorLayout::kTransposed;
  vector.dtype = DType::kF32;
  vector.count = vector.stored_count = channels * taps;
  vector.taps = taps;
  vector.source_bytes = vector.count * DTypeBytes(DType::kF32);
  return AddVector(std::move(vector));
}

Product SegmentBuilder::Whole(std::string name, std::int64_t outputs, std::uint32_t in,
                              std::uint32_t out) {
  Product product;
  product.in = builder.All(in);
  product.num_outputs = outputs;
  product.num_inputs = product.in.end;
  product.tensor = builder.AddTensor(std::move(name), outputs, product.num_inputs);
  product.out = out;
  return product;
}

void SegmentBuilder::Emit(std::int32_t worker, Instruction instruction) {
  for (Operand& operand : instruction.operands) operand = builder.OwnCopy(operand, worker);
  streams[static_cast<std::size_t>(worker)].push_back(
      {static_cast<std::int32_t>(phase_names_.size()) - 1, instruction});
}

void SegmentBuilder::EmitOwnRows(const Instruction& instruction) {
  const OpcodeInfo& info = Info(instruction.opcode);
  bool copied = false;
  for (std::size_t i = 0; i < info.operand_access.size(); ++i) {
    if (info.operand_access[i] == Access::kWrite) {
      copied = copied || builder.IsCopied(instruction.operands[i].buffer);
    }
  }
  const std::int64_t rows = builder.MaxRows(RowsOf(instruction.trip));
  const auto shares =
      static_cast<std::int32_t>(copied ? 1 : std::min<std::int64_t>(rows, num_workers()));
  for (std::int32_t worker = 0; worker < (copied ? num_workers() : shares); ++worker) {
    Instruction own = instruction;
    own.rows = {copied ? 0 : worker, shares};
    Emit(worker, own);
  }
}

std::uint32_t SegmentBuilder::AddTile(std::int32_t worker, const Product& product, Range panels,
                                      std::int64_t* position) {
  const Tensor& tensor = builder.program.tensors[product.tensor];
  const std::int64_t skipped = panels.begin * kernels::kPanelOutputs;
  Tile tile;
  tile.tensor = product.tensor;
  tile.pair_tensor = product.pair_tensor;
  tile.transposed = product.transposed;
  tile.first_output = product.first_output + skipped;
  tile.num_outputs = std::min(panels.end * kernels::kPanelOutputs, product.num_outputs) - skipped;
  tile.first_input = product.first_input;
  tile.num_inputs = product.num_inputs;
  const std::int64_t matrices = product.pair_tensor == kNone ? 1 : 2;
  tile.num_panels = panels.size() * matrices;
  tile.offset = *position;
  tile.bytes = panels.size() * ProductPanelBytes(builder, product);
  tile.source_bytes = SourceBytes(tensor.format, tile.num_outputs, tile.num_inputs) * matrices;
  *position += tile.bytes;
  Stream& stream = segment.streams[static_cast<std::size_t>(worker)];
  stream.tiles.push_back(tile);
  return static_cast<std::uint32_t>(stream.tiles.size() - 1);
}

std::uint32_t SegmentBuilder::AddExpertTile(std::int32_t worker, const Product& product,
                                            Range panels) {
  return AddTile(worker, product, panels,
                 &segment.streams[static_cast<std::size_t>(worker)].expert_stride_bytes);
}

void SegmentBuilder::EmitProduct(std::int32_t worker, const Product& product, Range panels) {
  if (panels.size() == 0) return;
  Instruction instruction;
  instruction.opcode = Opcode::kMatmul;
  instruction.epilogue = product.epilogue;
  const bool situ = builder.model.activation.kind == model::HiddenAct::kSitu;
  instruction.activation =
      product.activation.value_or(situ ? Activation::kSitu : Activation::kSilu);
  instruction.trip = product.trip;
  instruction.tile = AddTile(worker, product, panels,
                             &segment.streams[static_cast<std::size_t>(worker)].weight_bytes);
  const Tile& tile = segment.streams[static_cast<std::size_t>(worker)].tiles[instruction.tile];
  const std::int64_t begin = product.out_begin + tile.first_output - product.first_output;
  const std::int64_t end = begin + tile.num_outputs;
  instruction.operands[0] = product.in;
  instruction.operands[1] = {product.out, begin, end};
  if (product.aux != kNone) instruction.operands[2] = {product.aux, begin, end};
  if (product.residual != kNone) instruction.operands[3] = {product.residual, begin, end};
  instruction.imm[0] = product.restarts_residual ? 1 : 0;
  if (product.panels != kNone) {
    const std::int64_t panel = ProductPanelBytes(builder, product) / DTypeBytes(DType::kBf16);
    instruction.operands[4] = {product.panels, product.panels_begin + panels.begin * panel,
                               product.panels_begin + panels.end * panel};
    instruction.imm[1] = 1;
  }
  Emit(worker, instruction);
}

void SegmentBuilder::EmitLevel(const Product& product, Leveler& leveler) {
  std::vector<Range> outputs =
      leveler.ranks.Split(NumPanels(product), ProductPanelBytes(builder, product));
  for (Range& range : outputs) range = OutputsOfPanels(range, product.num_outputs);
  EmitOnEveryRank(OutputsOfRank(product, outputs), leveler);
}

void SegmentBuilder::EmitOnEveryRank(const Product& product, Leveler& leveler) {
  if (product.num_outputs == 0) return;
  const std::vector<Range> ranges =
      leveler.workers.Split(NumPanels(product), ProductPanelBytes(builder, product));
  for (std::int32_t worker = 0; worker < num_workers(); ++worker) {
    EmitProduct(worker, product, ranges[static_cast<std::size_t>(worker)]);
  }
}

Product SegmentBuilder::OfOwnHeads(const Product& product, std::int64_t heads) {
  const std::int64_t width = product.num_outputs / heads;
  std::vector<Range> outputs = SplitEvenly(heads, builder.num_ranks());
  for (Range& range : outputs) range = {range.begin * width, range.end * width};
  return OutputsOfRank(product, outputs);
}

/// `outputs`: of each rank, counted from the product's first.
Product SegmentBuilder::OutputsOfRank(const Product& product, const std::vector<Range>& outputs) {
  const Range own = outputs[static_cast<std::size_t>(builder.options.rank)];
  std::vector<Range> columns = outputs;
  for (Range& range : columns) {
    range = {range.begin + product.out_begin, range.end + product.out_begin};
  }
  builder.SetColumnsOfRanks(product.out, std::move(columns));
  Product part = product;
  part.first_output += own.begin;
  part.num_outputs = own.size();
  part.out_begin += own.begin;
  for (const std::uint32_t tensor : {part.tensor, part.pair_tensor}) {
    if (tensor == kNone) continue;
    builder.SetRowsOfTensor(tensor, {part.first_output, part.first_output + part.num_outputs});
  }
  return part;
}

/// Fills in what belongs to the message of one rank.
Instruction SegmentBuilder::ExchangeInstruction(Opcode opcode, const ExchangePlan& plan,
                                                std::int32_t rank) const {
  Instruction instruction;
  instruction.opcode = opcode;
  instruction.trip = plan.trip;
  instruction.imm[0] = plan.mailbox;
  instruction.imm[1] = num_exchanges_.at(plan.mailbox) - 1;
  const std::uint32_t mailbox =
      builder.program.mailboxes[static_cast<std::size_t>(plan.mailbox)].buffer;
  instruction.operands[0] = {mailbox, 0, 1};
  if (plan.plan != kNone) {
    const Range experts = plan.experts.empty() ? Range{0, builder.model.moe.num_experts}
                                               : plan.experts[static_cast<std::size_t>(rank)];
    instruction.operands[1] = builder.All(plan.plan);
    instruction.imm[3] = static_cast<std::int32_t>(experts.begin);
    instruction.imm[4] = static_cast<std::int32_t>(experts.end);
  }
  std::size_t part = kFirstExchangePart;
  for (const std::uint32_t buffer : plan.buffers) {
    if (buffer == kNone) continue;
    const Range columns = builder.ColumnsOfRanks(buffer)[static_cast<std::size_t>(rank)];
    // Of a small matrix some ranks have nothing.
    if (columns.size() > 0) {
      instruction.operands[part] = {buffer, columns.begin, columns.end};
    }
    ++part;
  }
  return instruction;
}

void SegmentBuilder::BeginExchange(const ExchangePlan& plan) {
  if (builder.num_ranks() == 1) return;
  ++num_exchanges_[plan.mailbox];
  BeginPhase(plan.name + "_fill");
  EmitOwnRows(ExchangeInstruction(Opcode::kExchangeFill, plan, builder.options.rank));
  BeginPhase(plan.name + "_publish");
  Emit(0, ExchangeInstruction(Opcode::kExchangePublish, plan, builder.options.rank));
}

/// The copying is shared out by rows, and by sources if there are more workers than rows.
void SegmentBuilder::FinishExchange(const ExchangePlan& plan) {
  if (builder.num_ranks() == 1) return;
  BeginPhase(plan.name + "_receive");
  const Mailbox& mailbox = builder.program.mailboxes[static_cast<std::size_t>(plan.mailbox)];
  const auto row_shares = static_cast<std::int32_t>(
      std::min<std::int64_t>(builder.MaxRows(RowsOf(plan.trip)), num_workers()));
  const std::int32_t source_shares = num_workers() / row_shares;
  std::int32_t turn = 0;
  for (std::int32_t i = 1; i < mailbox.num_ranks; ++i) {
    // Beginning behind this rank, so that not all ranks read the same one's slots at once.
    const std::int32_t source =
        mailbox.first_rank + (builder.options.rank - mailbox.first_rank + i) % mailbox.num_ranks;
    Instruction receive = ExchangeInstruction(Opcode::kExchangeReceive, plan, source);
    receive.imm[2] = source;
    for (std::int32_t share = 0; share < row_shares; ++share) {
      receive.rows = {share, row_shares};
      Emit(turn * row_shares + share, receive);
    }
    turn = (turn + 1) % source_shares;
  }
}

void SegmentBuilder::EmitPerHead(const std::vector<Product>& heads, bool aligned) {
  if (heads.empty()) return;
  const std::int64_t panels = NumPanels(heads.front());
  const auto num_heads = static_cast<std::int64_t>(heads.size());
  const std::vector<Range> ranges = aligned ? SplitEvenly(num_heads, num_workers())
                                            : SplitEvenly(num_heads * panels, num_workers());
  for (std::int32_t worker = 0; worker < num_workers(); ++worker) {
    Range range = ranges[static_cast<std::size_t>(worker)];
    if (aligned) range = {range.begin * panels, range.end * panels};
    for (std::int64_t head = range.begin / panels; head * panels < range.end; ++head) {
      const Range own{std::max(range.begin - head * panels, std::int64_t{0}),
                      std::min(range.end - head * panels, panels)};
      EmitProduct(worker, heads[static_cast<std::size_t>(head)], own);
    }
  }
}

}  // namespace megalith::program
