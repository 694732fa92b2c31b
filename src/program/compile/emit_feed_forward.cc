#include "base/align.h"
#include "kernels/layout.h"
#include "program/compile/layers.h"

namespace megalith::program {
namespace {

/// gate_proj and up_proj as one product with alternating panels.
Product GateUp(SegmentBuilder& segment, const std::string& prefix, std::int64_t width,
               std::uint32_t in, std::uint32_t out) {
  Product product = segment.Whole(prefix + "gate_proj", width, in, out);
  product.pair_tensor = segment.builder.AddTensor(prefix + "up_proj", width, product.num_inputs);
  product.epilogue = Epilogue::kGatedPair;
  return product;
}

/// The experts' two products. Every worker owns a slice of each expert's width, so any choice of
/// experts gives every worker the same work; with groups of ranks, any choice inside a group.
class ExpertEmitter {
 public:
  ExpertEmitter(SegmentBuilder& segment, const LayerBuffers& buffers)
      : segment_(segment), buffers_(buffers), moe_(segment.builder.model.moe) {
    const std::string prefix = "layers.{layer}.block_sparse_moe.experts.{expert}.";
    const std::int64_t width = segment.builder.model.ExpertWidth();
    const std::int64_t inner = moe_.moe_intermediate_size;
    gate_up_.tensor = segment.builder.AddTensor(prefix + "w1", inner, width, moe_.num_experts);
    gate_up_.pair_tensor = segment.builder.AddTensor(prefix + "w3", inner, width, moe_.num_experts);
    gate_up_.num_outputs = inner;
    gate_up_.num_inputs = width;
    down_.tensor = segment.builder.AddTensor(prefix + "w2", width, inner, moe_.num_experts);
    down_.num_outputs = width;
    down_.num_inputs = inner;
    const std::int32_t groups = segment.builder.options.ranks.expert_parallel;
    const std::int32_t per_group = segment.builder.options.ranks.tensor_parallel;
    for (std::int32_t rank = 0; rank < segment.builder.num_ranks(); ++rank) {
      experts_.push_back(
          SplitEvenly(moe_.num_experts, groups)[static_cast<std::size_t>(rank / per_group)]);
    }
    SetPart(gate_up_, buffers.moe.expert_activated);
    SetPart(down_, groups > 1 ? buffers.moe.expert_out : buffers.moe.routed);
  }

  bool HasGroups() const { return segment_.builder.options.ranks.expert_parallel > 1; }
  bool SplitsExperts() const { return segment_.builder.options.ranks.tensor_parallel > 1; }
  /// Experts of each rank's group.
  const std::vector<Range>& experts() const { return experts_; }

  void EmitGateUp(std::uint32_t in) {
    Emit(Opcode::kExpertGateUp, gate_up_, in, buffers_.moe.expert_activated);
  }
  void EmitDown() {
    Emit(Opcode::kExpertDown, down_, buffers_.moe.expert_activated,
         HasGroups() ? buffers_.moe.expert_out : buffers_.moe.routed);
  }
  /// The sum over experts of all groups; workers share out the columns.
  void EmitSum() {
    ProgramBuilder& builder = segment_.builder;
    Instruction sum;
    sum.opcode = Opcode::kExpertSum;
    sum.trip = Register::kRows;
    sum.imm[0] = static_cast<std::int32_t>(moe_.num_experts);
    sum.imm[1] = static_cast<std::int32_t>(moe_.num_experts_per_token);
    sum.operands[0] = builder.All(buffers_.moe.ids);
    sum.operands[1] = builder.All(buffers_.moe.plan);
    const std::vector<Range> columns =
        SplitEvenly(builder.All(buffers_.moe.expert_out).end, segment_.num_workers());
    for (std::int32_t worker = 0; worker < segment_.num_workers(); ++worker) {
      const Range range = columns[static_cast<std::size_t>(worker)];
      if (range.size() == 0) continue;
      sum.operands[2] = {buffers_.moe.expert_out, range.begin, range.end};
      sum.operands[3] = {buffers_.moe.routed, range.begin, range.end};
      segment_.Emit(worker, sum);
    }
  }

 private:
  /// This rank's slice of the product's outputs and its group's experts; `out` gets the columns.
  void SetPart(Product& product, std::uint32_t out) {
    ProgramBuilder& builder = segment_.builder;
    const std::int32_t per_group = builder.options.ranks.tensor_parallel;
    const std::vector<Range> panels =
        SplitEvenly(CeilDiv<std::int64_t>(product.num_outputs, kernels::kPanelOutputs), per_group);
    std::vector<Range> columns;
    for (std::int32_t rank = 0; rank < builder.num_ranks(); ++rank) {
      columns.push_back(
          OutputsOfPanels(panels[static_cast<std::size_t>(rank % per_group)], product.num_outputs));
    }
    const auto rank = static_cast<std::size_t>(builder.options.rank);
    for (const std::uint32_t index : {product.tensor, product.pair_tensor}) {
      if (index == kNone) continue;
      builder.SetRowsOfTensor(index, columns[rank]);
      builder.program.tensors[index].first_expert = experts_[rank].begin;
      builder.program.tensors[index].own_experts = experts_[rank].size();
    }
    product.first_output = columns[rank].begin;
    product.num_outputs = columns[rank].size();
    builder.SetColumnsOfRanks(out, std::move(columns));
  }
  void Emit(Opcode opcode, const Product& product, std::uint32_t in, std::uint32_t out) {
    ProgramBuilder& builder = segment_.builder;
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.trip = Register::kActiveExperts;
    instruction.activation = builder.model.activation.kind == model::HiddenAct::kSitu
                                 ? Activation::kSitu
                                 : Activation::kSilu;
    instruction.imm[0] = static_cast<std::int32_t>(moe_.num_experts);
    instruction.imm[1] = static_cast<std::int32_t>(moe_.num_experts_per_token);
    const Range experts = experts_[static_cast<std::size_t>(builder.options.rank)];
    instruction.imm[2] = opcode == Opcode::kExpertDown && HasGroups() ? 1 : 0;
    instruction.imm[3] = static_cast<std::int32_t>(experts.begin);
    instruction.imm[4] = static_cast<std::int32_t>(experts.end);
    const std::int64_t panels = CeilDiv<std::int64_t>(product.num_outputs, kernels::kPanelOutputs);
    const std::vector<Range> ranges = SplitEvenly(panels, segment_.num_workers());
    for (std::int32_t worker = 0; worker < segment_.num_workers(); ++worker) {
      const Range range = ranges[static_cast<std::size_t>(worker)];
      if (range.size() == 0) continue;
      instruction.tile = segment_.AddExpertTile(worker, product, range);
      const Tile& tile =
          segment_.segment.streams[static_cast<std::size_t>(worker)].tiles[instruction.tile];
      instruction.operands[0] = builder.All(in);
      instruction.operands[1] = builder.All(buffers_.moe.plan);
      instruction.operands[2] = {out, tile.first_output, tile.first_output + tile.num_outputs};
      segment_.Emit(worker, instruction);
    }
  }

  SegmentBuilder& segment_;
  const LayerBuffers& buffers_;
  const model::MoeConfig& moe_;
  Product gate_up_;
  Product down_;
  std::vector<Range> experts_;  // of each rank's group
};

}  // namespace

void EmitDenseFeedForward(SegmentBuilder& segment, const LayerBuffers& buffers) {
  const model::Model& model = segment.builder.model;
  Leveler leveler(segment.builder);
  segment.BeginPhase("mlp_gate_up");
  segment.EmitLevel(GateUp(segment, "layers.{layer}.mlp.", model.intermediate_size,
                           buffers.shared.ffn_in, buffers.dense.activated),
                    leveler);
  segment.EmitExchange({.name = "activated", .buffers = {buffers.dense.activated}});
  segment.BeginPhase("mlp_down");
  Product down = segment.Whole("layers.{layer}.mlp.down_proj", model.hidden_size,
                               buffers.dense.activated, buffers.shared.prefix);
  down.epilogue = Epilogue::kAddResidual;
  down.residual = buffers.shared.prefix_mid;
  segment.EmitLevel(down, leveler);
  segment.EmitExchange({.name = "layer_out", .buffers = {buffers.shared.prefix}});
}

void EmitMoe(SegmentBuilder& segment, const LayerBuffers& buffers) {
  ProgramBuilder& builder = segment.builder;
  const model::Model& model = builder.model;
  const model::MoeConfig& moe = model.moe;
  const MoeBuffers& own = buffers.moe;
  const std::string prefix = "layers.{layer}.block_sparse_moe.";
  const std::uint32_t x = buffers.shared.ffn_in;
  const bool has_latent = moe.routed_expert_hidden_size.has_value();
  const bool has_shared = moe.num_shared_experts > 0;
  const bool one_rank = builder.num_ranks() == 1;
  Leveler leveler(builder);

  // The router comes first so that the experts are chosen in the shadow of the shared path.
  segment.BeginPhase("router");
  segment.EmitLevel(segment.Whole(prefix + "gate", moe.num_experts, x, own.scores), leveler);
  if (has_latent) {
    segment.BeginPhase("latent_down");
    segment.EmitLevel(
        segment.Whole(prefix + "routed_expert_down_proj", model.ExpertWidth(), x, own.latent),
        leveler);
  }

  const std::int64_t shared_width = moe.num_shared_experts * moe.moe_intermediate_size;
  const auto emit_shared_gate_up = [&] {
    segment.BeginPhase("shared_gate_up");
    segment.EmitLevel(
        GateUp(segment, prefix + "shared_experts.", shared_width, x, own.shared_activated),
        leveler);
  };
  const ExchangePlan routing{.name = "routing", .buffers = {own.scores, own.latent}};
  segment.BeginExchange(routing);
  if (has_shared && !one_rank) emit_shared_gate_up();
  segment.FinishExchange(routing);

  segment.BeginPhase("router_top_k");
  Instruction top_k;
  top_k.opcode = Opcode::kRouterTopK;
  top_k.trip = Register::kRows;
  top_k.vectors[0] =
      segment.AddVector(prefix + "gate.e_score_correction_bias", DType::kF32, moe.num_experts);
  top_k.imm = {static_cast<std::int32_t>(moe.num_experts_per_token), moe.renormalize ? 1 : 0,
               moe.router_activation == model::RouterActivation::kSoftmax ? 1 : 0,
               static_cast<std::int32_t>(moe.num_expert_group),
               static_cast<std::int32_t>(moe.topk_group)};
  top_k.scalar[0] = moe.routed_scaling_factor;
  top_k.operands[0] = builder.All(own.scores);
  top_k.operands[1] = builder.All(own.ids);
  top_k.operands[2] = builder.All(own.weights);
  segment.EmitOwnRows(top_k);

  segment.BeginPhase("route_plan");
  Instruction plan;
  plan.opcode = Opcode::kRoutePlan;
  plan.trip = Register::kRows;
  plan.imm[0] = static_cast<std::int32_t>(moe.num_experts);
  plan.imm[1] = static_cast<std::int32_t>(moe.num_experts_per_token);
  plan.operands[0] = builder.All(own.ids);
  plan.operands[1] = builder.All(own.weights);
  plan.operands[2] = builder.All(own.plan);
  segment.Emit(0, plan);

  if (has_shared && one_rank) emit_shared_gate_up();

  ExpertEmitter experts(segment, buffers);
  segment.BeginPhase("expert_gate_up");
  experts.EmitGateUp(has_latent ? own.latent : x);
  if (!experts.HasGroups()) {
    segment.EmitExchange({.name = "activated",
                          .buffers = {own.expert_activated, own.shared_activated},
                          .plan = own.plan});
  } else if (experts.SplitsExperts()) {
    // Only ranks of one group have parts of the same experts.
    segment.EmitExchange({.name = "group_activated",
                          .buffers = {own.expert_activated},
                          .plan = own.plan,
                          .experts = experts.experts(),
                          .mailbox = kGroupMailbox});
  }
  segment.BeginPhase("expert_down");
  experts.EmitDown();

  // The columns of the shared down projection and those of the latent up projection are split
  // alike, so their sum needs no join. What is between the experts and the latter hides a wait: of
  // a norm that few workers compute, the norm; of one that every worker computes, the experts
  // themselves.
  const auto emit_shared_down = [&] {
    Leveler down_leveler(builder);
    segment.BeginPhase("shared_down");
    segment.EmitLevel(segment.Whole(prefix + "shared_experts.down_proj", model.hidden_size,
                                    own.shared_activated, own.shared_out),
                      down_leveler);
  };
  const bool norm_is_copied = moe.latent_moe_use_norm && builder.IsCopied(own.routed_norm);
  const bool shared_first = !one_rank || norm_is_copied;
  if (experts.HasGroups()) {
    segment.EmitExchange({.name = "expert_out",
                          .buffers = {own.expert_out, own.shared_activated},
                          .plan = own.plan,
                          .experts = experts.experts()});
    segment.BeginPhase("expert_sum");
    experts.EmitSum();
    if (has_shared) emit_shared_down();
  } else {
    const ExchangePlan routed_sum{.name = "routed", .buffers = {own.routed}};
    segment.BeginExchange(routed_sum);
    if (has_shared && shared_first) emit_shared_down();
    segment.FinishExchange(routed_sum);
  }
  std::uint32_t routed = own.routed;
  if (moe.latent_moe_use_norm) {
    segment.BeginPhase("routed_norm");
    Instruction norm;
    norm.opcode = Opcode::kRmsNorm;
    norm.trip = Register::kRows;
    norm.vectors[0] =
        segment.AddVector(prefix + "routed_expert_norm.weight", DType::kBf16, model.ExpertWidth());
    norm.scalar[0] = model.rms_norm_eps;
    norm.operands[0] = builder.All(own.routed);
    norm.operands[1] = builder.All(own.routed_norm);
    segment.EmitOwnRows(norm);
    routed = own.routed_norm;
  }

  if (has_shared && !shared_first) emit_shared_down();
  segment.BeginPhase("latent_up");
  Product up = segment.Whole(prefix + "routed_expert_up_proj", model.hidden_size, routed,
                             buffers.shared.prefix);
  up.residual = buffers.shared.prefix_mid;
  up.epilogue = has_shared ? Epilogue::kAddSharedResidual : Epilogue::kAddResidual;
  if (has_shared) up.aux = own.shared_out;
  Leveler up_leveler(builder);
  segment.EmitLevel(up, up_leveler);
  segment.EmitExchange({.name = "layer_out", .buffers = {buffers.shared.prefix}});
}

}  // namespace megalith::program
