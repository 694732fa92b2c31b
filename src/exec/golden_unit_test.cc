// k3-unit's trace: every intermediate value of one KDA and one MLA layer for 8 tokens, in fp32. The
// test that says which operation is wrong.

#include <gtest/gtest.h>

#include <set>

#include "exec/device_memory.h"
#include "exec/testing/golden.h"

namespace megalith::exec::testing {
namespace {

struct Traced {
  std::int32_t layer;
  const char* buffer;  ///< ours
  const char* tensor;  ///< file in the trace
};

constexpr Traced kTraced[] = {
    {0, "mixer_in", "L0.input_layernorm"},
    {0, "kda_q", "L0.q_proj"},
    {0, "kda_k", "L0.k_proj"},
    {0, "kda_v", "L0.v_proj"},
    {0, "kda_gate", "L0.g_proj"},
    {0, "kda_decay_a", "L0.f_a_proj"},
    {0, "kda_decay", "L0.f_b_proj"},
    {0, "kda_beta", "L0.b_proj"},
    {0, "kda_out", "L0.o_proj_input"},
    {0, "prefix_mid", "L0.self_attn"},  // layer 0 restarts the residual
    {0, "ffn_in", "L0.post_attention_layernorm"},
    {0, "mlp_activated", "L0.mlp_act"},
    {0, "prefix", "L0.prefix_sum"},
    {0, "blocks", "L0.block_residual"},
    {1, "mixer_in", "L1.input_layernorm"},
    {1, "mla_q_a", "L1.q_a_proj"},
    {1, "mla_q_a_norm", "L1.q_a_layernorm"},
    {1, "mla_q", "L1.q_b_proj"},
    {1, "mla_kv_a", "L1.kv_a_proj_with_mqa"},
    {1, "mla_gate", "L1.g_proj"},
    {1, "mla_out", "L1.o_proj_input"},
    {1, "ffn_in", "L1.post_attention_layernorm"},
    {1, "router_scores", "L1.router_logits"},
    {1, "router_weights", "L1.router_weights"},
    {1, "latent", "L1.routed_expert_down_proj"},
    {1, "routed", "L1.routed_sum"},
    {1, "routed_norm", "L1.routed_expert_norm"},
    {1, "shared_out", "L1.shared_experts"},
    {1, "prefix", "L1.prefix_sum"},
};

constexpr char kDirectory[] = MEGALITH_TEST_DATA "/golden/k3-unit";
const std::vector<std::int32_t> kTokens = {462, 420, 252, 187, 345, 40, 303, 344};  // index.json
constexpr double kLimit = 1e-4;

std::string TracePath(const std::string& tensor) {
  return std::string(kDirectory) + "/golden/trace/" + tensor + ".npy";
}

/// Elements of a trace file in order, whatever its shape.
std::vector<float> Flat(const std::string& tensor) {
  const auto rows = LoadRows(TracePath(tensor));
  if (!rows) {
    ADD_FAILURE() << rows.error().message;
    return {};
  }
  std::vector<float> flat;
  for (const auto& row : *rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

class GoldenUnit : public ::testing::Test {
 protected:
  void Run(LayerTrace& trace) {
    std::set<std::string> names;  // each once
    for (const Traced& traced : kTraced) names.insert(traced.buffer);
    ExecutorSpec spec;
    spec.directory = kDirectory;
    spec.reference = true;
    spec.activation_dtype = DType::kF32;
    spec.row_buckets = {8};
    // Buffers a layer kind does not have keep what the other kind left there; they are not asked
    // for.
    spec.observer = trace.Observer({names.begin(), names.end()});
    trace.set_rows(static_cast<std::int64_t>(kTokens.size()));
    auto executor = MakeExecutor(spec);
    ASSERT_TRUE(executor.has_value()) << executor.error().message;
    executor_ = std::move(*executor);
    auto logits = Feed(*executor_, 0, kTokens, 8);
    ASSERT_TRUE(logits.has_value()) << logits.error().message;
    logits_ = std::move(*logits);
  }

  std::unique_ptr<Executor> executor_;
  LogitRows logits_;
};

TEST_F(GoldenUnit, EveryTracedValueMatches) {
  LayerTrace trace;
  Run(trace);
  for (const Traced& traced : kTraced) {
    const std::vector<float> want = Flat(traced.tensor);
    const LogitRows& rows = trace.Rows(traced.layer, traced.buffer);
    ASSERT_EQ(rows.size(), kTokens.size()) << traced.buffer;
    const std::size_t columns = want.size() / rows.size();
    double error = 0.0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      ASSERT_GE(rows[row].size(), columns) << traced.tensor;
      for (std::size_t i = 0; i < columns; ++i) {
        error =
            std::max(error, std::abs(static_cast<double>(rows[row][i]) - want[row * columns + i]));
      }
    }
    EXPECT_LE(error, kLimit) << traced.tensor << " (" << traced.buffer << ")";
  }
  const Distance logits = Compare(*LoadRows(TracePath("logits")), logits_);
  EXPECT_LE(logits.max_abs, 1e-3);
}

TEST_F(GoldenUnit, StateAfterTheLastTokenMatches) {
  LayerTrace trace;
  Run(trace);
  // [token, head, key, value]: the last token's quarter.
  const std::vector<float> states = Flat("L0.kda_state");
  const std::span<const float> state = executor_->memory().KdaState(0, 0);
  const std::size_t last = states.size() - states.size() / kTokens.size();
  ASSERT_EQ(state.size(), states.size() - last);  // head_dim 64 needs no padding
  for (std::size_t i = 0; i < state.size(); ++i) {
    ASSERT_NEAR(state[i], states[last + i], kLimit) << "element " << i;
  }
}

TEST_F(GoldenUnit, CacheHoldsTheNormedLatentAndTheRawExtraKey) {
  LayerTrace trace;
  Run(trace);
  const auto latents = LoadRows(TracePath("L1.kv_a_layernorm"));
  const auto projected = LoadRows(TracePath("L1.kv_a_proj_with_mqa"));
  ASSERT_TRUE(latents && projected);
  for (std::size_t token = 0; token < kTokens.size(); ++token) {
    const auto bytes = executor_->memory().CacheRow(0, 0, static_cast<std::int32_t>(token));
    const auto* row = reinterpret_cast<const float*>(bytes.data());
    const std::vector<float>& latent = (*latents)[token];
    for (std::size_t i = 0; i < latent.size(); ++i) EXPECT_NEAR(row[i], latent[i], kLimit);
    for (std::size_t i = latent.size(); i < (*projected)[token].size(); ++i) {
      EXPECT_NEAR(row[i], (*projected)[token][i], kLimit);
    }
  }
}

}  // namespace
}  // namespace megalith::exec::testing
