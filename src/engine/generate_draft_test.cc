// Drafting changes nothing: whatever is proposed, the tokens and the state are those of decoding
// token by token.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>

#include "engine/generate.h"
#include "exec/device_memory.h"
#include "tools/temp_dir.h"

namespace megalith::engine {
namespace {

constexpr char kNano[] = MEGALITH_SOURCE_DIR "/models/k3-nano";
constexpr char kDrafter[] = MEGALITH_SOURCE_DIR "/models/k3-nano/dspark";
constexpr std::int32_t kVocabSize = 4096;

std::unique_ptr<Engine> Load(EngineOptions options) {
  options.max_positions = 512;
  auto engine = Engine::Load(kNano, options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return nullptr;
  }
  return std::move(*engine);
}

EngineOptions Drafting(std::int32_t max_drafts, std::int32_t workers = 2) {
  EngineOptions options;
  options.num_workers = workers;
  options.drafter = kDrafter;
  options.max_drafts = max_drafts;
  return options;
}

std::vector<std::int32_t> RandomPrompt(std::mt19937& random, std::size_t length) {
  std::vector<std::int32_t> prompt(length);
  for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(random() % 3840);
  return prompt;
}

GenerateOptions Greedy(std::int64_t max_tokens) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  return options;
}

/// The recurrent state and convolution history of slot 0 in every layer, and its cache rows.
std::vector<std::byte> StateOf(const Engine& engine, std::size_t length) {
  const exec::DeviceMemory& memory = const_cast<Engine&>(engine).executor().memory();
  const program::StateLayout& layout = memory.program(0)->state;
  std::vector<std::byte> bytes;
  const auto add = [&bytes](std::span<const std::byte> part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  for (std::int32_t layer = 0; layer < layout.num_kda_layers; ++layer) {
    add(std::as_bytes(memory.KdaState(0, layer)));
    add(memory.ConvState(0, layer));
  }
  for (std::int32_t layer = 0; layer < layout.num_mla_layers; ++layer) {
    for (std::size_t position = 0; position < length; ++position) {
      add(memory.CacheRow(0, layer, static_cast<std::int32_t>(position)));
    }
  }
  return bytes;
}

struct Outcome {
  std::vector<std::int32_t> ids;
  FinishReason reason;
  std::vector<std::int32_t> run;
  std::vector<std::byte> state;
  DraftStatistics drafting;
};

Outcome Generated(Engine& engine, const std::vector<std::int32_t>& prompt,
                  const GenerateOptions& options) {
  Sequence sequence(engine, 0);
  auto result = Generate(sequence, prompt, options, {});
  if (!result) {
    ADD_FAILURE() << result.error().message;
    return {};
  }
  return {result->ids, result->finish_reason, sequence.tokens(),
          StateOf(engine, sequence.tokens().size()), result->drafting};
}

void ExpectSame(const Outcome& drafted, const Outcome& plain, const std::string& what) {
  EXPECT_EQ(drafted.ids, plain.ids) << what;
  EXPECT_EQ(drafted.reason, plain.reason) << what;
  EXPECT_EQ(drafted.run, plain.run) << what;
  EXPECT_TRUE(drafted.state == plain.state) << what << ": the states differ";
}

TEST(GenerateDraft, TheDrafterChangesNothing) {
  const auto plain = Load({.num_workers = 2});
  const auto engine = Load(Drafting(7));
  ASSERT_TRUE(plain != nullptr && engine != nullptr);
  std::mt19937 random(1);
  for (const std::size_t length : {1U, 5U, 40U, 300U}) {
    const std::vector<std::int32_t> prompt = RandomPrompt(random, length);
    GenerateOptions options = Greedy(64);
    const Outcome expected = Generated(*plain, prompt, options);
    ExpectSame(Generated(*engine, prompt, options), expected, "no drafts");
    options.drafting.max_drafts = 7;
    for (const std::int32_t always : {1, 2, 3, 5, 7}) {
      options.drafting.always = always;
      const Outcome drafted = Generated(*engine, prompt, options);
      ExpectSame(drafted, expected, fmt::format("{} drafts, prompt of {}", always, length));
      EXPECT_GT(drafted.drafting.drafted, 0) << always;
    }
  }
}

// A token that ends the text inside a block ends the count, too.
TEST(GenerateDraft, DraftsBehindTheEndDoNotCount) {
  const auto engine = Load(Drafting(7));
  ASSERT_TRUE(engine != nullptr);
  std::mt19937 random(3);
  const std::vector<std::int32_t> prompt = RandomPrompt(random, 5);
  const std::vector<std::int32_t> ids = Generated(*engine, prompt, Greedy(40)).ids;
  GenerateOptions options = Greedy(40);
  options.drafting = {.max_drafts = 7, .always = 7, .drafter = false};
  options.drafting.proposer = [&](std::span<const std::int32_t> tokens, std::int32_t max_drafts,
                                  DraftProposal* proposal) {
    const std::size_t known = tokens.size() - prompt.size();
    for (std::size_t i = known; i < ids.size() && max_drafts-- > 0; ++i) {
      proposal->drafts.push_back(ids[i]);
    }
  };
  for (std::size_t end = 1; end < 20; ++end) {
    options.stop_ids = {ids[end]};
    const Outcome drafted = Generated(*engine, prompt, options);
    EXPECT_EQ(drafted.drafting.rounds + drafted.drafting.accepted,
              static_cast<std::int64_t>(drafted.ids.size()) - 1)
        << "ends with token " << end;
  }
}

/// The matrix and bias of a Markov head's linear layer.
struct MarkovLayer {
  std::string head, name;
  std::size_t outputs, inputs;
  std::vector<Bf16> weight = std::vector<Bf16>(outputs * inputs);
  std::vector<Bf16> bias = std::vector<Bf16>(outputs);
};

/// k3-nano's drafter, with another type of Markov head and the layer behind its tensors.
void WriteDrafter(const tools::TempDir& directory, const MarkovLayer& layer) {
  directory.CopyFrom(kDrafter);
  std::string config = directory.Read("config.json");
  const std::string vanilla = "\"vanilla\"";
  const std::size_t type = config.find(vanilla);
  ASSERT_NE(type, std::string::npos);
  directory.Write("config.json", config.replace(type, vanilla.size(), '"' + layer.head + '"'));
  const std::string file = directory.Read("model.safetensors");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  std::string header = file.substr(sizeof(header_bytes), header_bytes);
  std::string data = file.substr(sizeof(header_bytes) + header_bytes);
  header.erase(header.rfind('}'));
  const auto add = [&](const char* ending, const std::string& shape,
                       const std::vector<Bf16>& values) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Bf16));
    header += fmt::format(R"(,"{}{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})",
                          layer.name, ending, shape, begin, data.size());
  };
  add(".weight", fmt::format("{},{}", layer.outputs, layer.inputs), layer.weight);
  add(".bias", fmt::format("{}", layer.outputs), layer.bias);
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  header_bytes = header.size();
  std::string size(sizeof(header_bytes), '\0');
  std::memcpy(size.data(), &header_bytes, sizeof(header_bytes));
  directory.Write("model.safetensors", size + header + data);
}

/// A gate that is always open is the vanilla head; an output that follows the embedding alone is
/// nearly so, whatever the state does. Both are as good as what k3-nano's drafter has learnt.
TEST(GenerateDraft, OtherMarkovHeadsChangeNothing) {
  constexpr std::size_t kHidden = 192;
  constexpr std::size_t kRank = 16;
  MarkovLayer open_gate{"gated", "markov_head.gate_proj", kRank, kHidden + kRank};
  std::fill(open_gate.bias.begin(), open_gate.bias.end(), ToBf16(40.0f));
  MarkovLayer recurrent{"rnn", "markov_head.joint_proj", 3 * kRank, 2 * kRank + kHidden};
  std::fill_n(recurrent.weight.begin(), 2 * kRank * recurrent.inputs, ToBf16(0.25f));
  for (std::size_t i = 0; i < kRank; ++i) {
    recurrent.weight[(2 * kRank + i) * recurrent.inputs + kRank + i] = ToBf16(1.0f);
  }
  const auto vanilla = Load(Drafting(7));
  ASSERT_TRUE(vanilla != nullptr);
  for (const MarkovLayer& layer : {open_gate, recurrent}) {
    SCOPED_TRACE(layer.head);
    const tools::TempDir directory;
    WriteDrafter(directory, layer);
    EngineOptions drafting = Drafting(7);
    drafting.drafter = directory.path();
    const auto engine = Load(drafting);
    ASSERT_TRUE(engine != nullptr);
    for (const float temperature : {0.0f, 0.7f}) {
      std::mt19937 random(3);
      for (const std::int32_t always : {1, 3, 7}) {
        const std::vector<std::int32_t> prompt = RandomPrompt(random, 20);
        GenerateOptions options = Greedy(64);
        options.sampling.temperature = temperature;
        options.sampling.seed = 5;
        const Outcome plain = Generated(*vanilla, prompt, options);
        options.drafting.max_drafts = 7;
        options.drafting.always = always;
        const Outcome expected = Generated(*vanilla, prompt, options);
        const Outcome drafted = Generated(*engine, prompt, options);
        ExpectSame(drafted, plain, fmt::format("{} drafts, temperature {}", always, temperature));
        EXPECT_GT(drafted.drafting.accepted, 8);
        if (layer.head == "gated") {
          EXPECT_EQ(drafted.drafting.accepted, expected.drafting.accepted);
          EXPECT_EQ(drafted.drafting.drafted, expected.drafting.drafted);
        }
      }
    }
  }
}

/// Proposals that are right for a while, then wrong, of any length.
TEST(GenerateDraft, AnyProposalIsHarmless) {
  const auto engine = Load(Drafting(7));
  ASSERT_TRUE(engine != nullptr);
  std::mt19937 random(2);
  std::int64_t accepted = 0;
  for (int round = 0; round < 12; ++round) {
    const std::vector<std::int32_t> prompt = RandomPrompt(random, 1 + random() % 20);
    GenerateOptions options = Greedy(1 + static_cast<std::int64_t>(random() % 60));
    const Outcome plain = Generated(*engine, prompt, options);
    options.drafting.max_drafts = 1 + static_cast<std::int32_t>(random() % 7);
    options.drafting.always = options.drafting.max_drafts;
    options.drafting.drafter = round % 2 == 0;  // beside it, or alone
    options.drafting.proposer = [&](std::span<const std::int32_t> tokens, std::int32_t max_drafts,
                                    DraftProposal* proposal) {
      const std::size_t known = tokens.size() - prompt.size();
      const std::size_t count = random() % (static_cast<std::size_t>(max_drafts) + 3);
      for (std::size_t i = 0; i < count; ++i) {
        const bool right = random() % 4 != 0 && known + i < plain.ids.size();
        proposal->drafts.push_back(right ? plain.ids[known + i]
                                         : static_cast<std::int32_t>(random() % (kVocabSize + 9)) -
                                               4);
      }
    };
    const Outcome drafted = Generated(*engine, prompt, options);
    ExpectSame(drafted, plain, fmt::format("round {}", round));
    accepted += drafted.drafting.accepted;
  }
  EXPECT_GT(accepted, 50);
}

}  // namespace
}  // namespace megalith::engine
