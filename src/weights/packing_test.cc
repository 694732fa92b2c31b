#include "weights/packing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "base/bf16.h"
#include "tools/temp_dir.h"

namespace megalith::weights {
namespace {

using kernels::PanelElement;
using kernels::PanelFormat;

const std::string kUnit = std::string(MEGALITH_TEST_DATA) + "/golden/k3-unit";
// In k3-unit: hidden 256, KDA 4 x 64 in layer 0, MLA in layer 1, experts 16 of width 96, latent
// 128.
const char kQuery[] = "layers.0.self_attn.q_proj";                    // bf16 [256, 256]
const char kGate[] = "layers.0.mlp.gate_proj";                        // bf16 [384, 256]
const char kUp[] = "layers.0.mlp.up_proj";                            // bf16 [384, 256]
const char kExpert[] = "layers.1.block_sparse_moe.experts.3.w1";      // mxfp4 [96, 128]
const char kExpertPair[] = "layers.1.block_sparse_moe.experts.3.w3";  // mxfp4 [96, 128]

class Packing : public ::testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint = Checkpoint::Open(kUnit);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    checkpoint_.emplace(*std::move(checkpoint));
  }

  const Checkpoint& checkpoint() const { return *checkpoint_; }

  /// Element of a matrix as stored, decoded without the packing code.
  float Stored(const std::string& name, std::int64_t row, std::int64_t column) const {
    const MatrixView view = *checkpoint().FindMatrix(name);
    const auto weight = *checkpoint().MapTensor(view.weight);
    if (view.format == MatrixFormat::kBf16) {
      Bf16 value;
      std::memcpy(&value, weight.data() + (row * view.columns + column) * 2, 2);
      return ToFloat(value);
    }
    const auto scale = *checkpoint().MapTensor(view.scale);
    const auto byte =
        static_cast<unsigned>(weight[static_cast<std::size_t>((row * view.columns + column) / 2)]);
    const unsigned code = column % 2 == 0 ? byte & 15u : byte >> 4;
    const auto exponent = static_cast<std::uint8_t>(
        scale[static_cast<std::size_t>(row * (view.columns / 32) + column / 32)]);
    return kernels::DecodeMxfp4(static_cast<std::uint8_t>(code), exponent);
  }

  std::vector<std::byte> Pack(const PanelJob& job) const {
    std::vector<std::byte> packed(static_cast<std::size_t>(PackedBytes(job)), std::byte{0xee});
    const Status status = PackPanels(checkpoint(), job, packed);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
    return packed;
  }

  void ExpectRefused(const PanelJob& job, ErrorCode code, const char* names) const {
    std::vector<std::byte> packed(static_cast<std::size_t>(PackedBytes(job)));
    const Status status = PackPanels(checkpoint(), job, packed);
    ASSERT_FALSE(status.has_value()) << names;
    EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(code)) << status.error().message;
    EXPECT_NE(status.error().message.find(names), std::string::npos) << status.error().message;
  }

  std::optional<Checkpoint> checkpoint_;
};

PanelJob Bf16Job(const char* name, std::int64_t rows, std::int64_t columns) {
  PanelJob job;
  job.tensor = name;
  job.stored_rows = rows;
  job.stored_columns = columns;
  job.num_outputs = rows;
  job.num_inputs = columns;
  return job;
}

PanelJob ExpertJob() {
  PanelJob job = Bf16Job(kExpert, 96, 128);
  job.format = PanelFormat::kMxfp4;
  return job;
}

TEST_F(Packing, Bf16SliceWithTailMatchesStored) {
  PanelJob job = Bf16Job(kQuery, 256, 256);
  job.first_output = 48;
  job.num_outputs = 23;  // one whole panel and 7 outputs
  job.first_input = 10;
  job.num_inputs = 41;  // padded to 64
  ASSERT_EQ(NumPanels(job), 2);
  const auto packed = Pack(job);
  const std::int64_t panel_bytes = kernels::PanelBytes(job.format, job.num_inputs);
  for (int n = 0; n < 32; ++n) {
    const std::byte* panel = packed.data() + n / 16 * panel_bytes;
    for (std::int64_t k = 0; k < 64; ++k) {
      const bool inside = n < 23 && k < 41;
      const float want = inside ? Stored(kQuery, 48 + n, 10 + k) : 0.0f;
      ASSERT_EQ(PanelElement(job.format, panel, 41, n % 16, k), want) << n << " " << k;
    }
  }
}

TEST_F(Packing, Int8IsMadeOfBf16) {
  PanelJob job = Bf16Job(kQuery, 256, 256);
  job.format = PanelFormat::kInt8;
  job.first_output = 48;
  job.num_outputs = 23;
  job.first_input = 64;
  job.num_inputs = 96;
  const auto packed = Pack(job);
  const std::int64_t panel_bytes = kernels::PanelBytes(job.format, job.num_inputs);
  for (int n = 0; n < 32; ++n) {
    const std::byte* panel = packed.data() + n / 16 * panel_bytes;
    for (std::int64_t k = 0; k < 96; ++k) {
      const float want = n < 23 ? Stored(kQuery, 48 + n, 64 + k) : 0.0f;
      const float scale = kernels::PanelScale(job.format, panel, 96, n % 16, k / 32);
      ASSERT_NEAR(PanelElement(job.format, panel, 96, n % 16, k), want, 0.501f * scale)
          << n << " " << k;
    }
  }
}

TEST_F(Packing, TransposedMatrixSwapsRowsAndColumns) {
  PanelJob job = Bf16Job(kGate, 384, 256);
  job.transposed = true;
  job.first_output = 16;  // columns
  job.num_outputs = 20;
  job.first_input = 100;  // rows
  job.num_inputs = 64;
  const auto packed = Pack(job);
  const std::int64_t panel_bytes = kernels::PanelBytes(job.format, 64);
  for (int n = 0; n < 20; ++n) {
    for (std::int64_t k = 0; k < 64; ++k) {
      ASSERT_EQ(PanelElement(job.format, packed.data() + n / 16 * panel_bytes, 64, n % 16, k),
                Stored(kGate, 100 + k, 16 + n));
    }
  }
}

TEST_F(Packing, PairAlternatesPanels) {
  PanelJob job = Bf16Job(kGate, 384, 256);
  job.pair_tensor = kUp;
  job.first_output = 32;
  job.num_outputs = 24;
  ASSERT_EQ(NumPanels(job), 4);
  const auto packed = Pack(job);
  const std::int64_t panel_bytes = kernels::PanelBytes(job.format, 256);
  for (int n = 0; n < 24; ++n) {
    const std::byte* gate = packed.data() + n / 16 * 2 * panel_bytes;
    for (std::int64_t k = 0; k < 256; ++k) {
      ASSERT_EQ(PanelElement(job.format, gate, 256, n % 16, k), Stored(kGate, 32 + n, k));
      ASSERT_EQ(PanelElement(job.format, gate + panel_bytes, 256, n % 16, k),
                Stored(kUp, 32 + n, k));
    }
  }
}

TEST_F(Packing, Mxfp4SliceMatchesDecodedValues) {
  PanelJob job = ExpertJob();
  job.pair_tensor = kExpertPair;
  job.first_output = 16;
  job.num_outputs = 40;
  job.first_input = 32;
  job.num_inputs = 64;
  const auto packed = Pack(job);
  const std::int64_t panel_bytes = kernels::PanelBytes(job.format, 64);
  for (int n = 0; n < 40; ++n) {
    const std::byte* gate = packed.data() + n / 16 * 2 * panel_bytes;
    for (std::int64_t k = 0; k < 64; ++k) {
      ASSERT_EQ(PanelElement(job.format, gate, 64, n % 16, k), Stored(kExpert, 16 + n, 32 + k));
      ASSERT_EQ(PanelElement(job.format, gate + panel_bytes, 64, n % 16, k),
                Stored(kExpertPair, 16 + n, 32 + k));
    }
  }
}

TEST_F(Packing, JobsThatDoNotFitTheCheckpointAreRefused) {
  PanelJob job = Bf16Job("layers.0.self_attn.r_proj", 256, 256);
  ExpectRefused(job, ErrorCode::kBadTensor, "r_proj");
  ExpectRefused(Bf16Job(kQuery, 256, 128), ErrorCode::kBadTensor, "[256, 128]");
  ExpectRefused(Bf16Job(kExpert, 96, 128), ErrorCode::kBadTensor, "mxfp4");
  job = Bf16Job(kQuery, 256, 256);
  job.format = PanelFormat::kMxfp4;
  ExpectRefused(job, ErrorCode::kBadTensor, "bf16");
  job = ExpertJob();
  job.format = PanelFormat::kInt8;
  ExpectRefused(job, ErrorCode::kBadTensor, "mxfp4");
  job = Bf16Job(kGate, 384, 256);
  job.pair_tensor = kQuery;
  ExpectRefused(job, ErrorCode::kBadTensor, "q_proj");
}

TEST_F(Packing, JobsThatContradictThemselvesAreRefused) {
  PanelJob job = Bf16Job(kQuery, 256, 256);
  job.first_output = 1;
  ExpectRefused(job, ErrorCode::kUsage, "outputs 1+256 of 256");
  job = Bf16Job(kQuery, 256, 256);
  job.first_input = -1;
  ExpectRefused(job, ErrorCode::kUsage, "inputs -1+256");
  job = ExpertJob();
  job.transposed = true;
  job.num_outputs = 128;
  job.num_inputs = 96;
  ExpectRefused(job, ErrorCode::kUnsupported, "transposed");
  job = ExpertJob();
  job.first_input = 16;
  job.num_inputs = 32;
  ExpectRefused(job, ErrorCode::kUnsupported, "16+32");
  job = Bf16Job(kQuery, 256, 256);
  job.format = PanelFormat::kInt8;
  job.num_inputs = 40;  // the group ends inside the row
  ExpectRefused(job, ErrorCode::kUnsupported, "0+40");
  job.num_inputs = 256;
  job.transposed = true;
  ExpectRefused(job, ErrorCode::kUnsupported, "transposed");
  job = Bf16Job(kQuery, 256, 256);
  std::vector<std::byte> short_by_one(static_cast<std::size_t>(PackedBytes(job)) - 1);
  EXPECT_FALSE(PackPanels(checkpoint(), job, short_by_one).has_value());
}

TEST_F(Packing, ScaleThatIsNoNumberIsRefusedWithItsTensor) {
  const tools::TempDir directory;
  directory.CopyFrom(kUnit);
  const TensorView scale = checkpoint().FindMatrix(kExpert)->scale;
  const std::string shard = directory.File(checkpoint().shards().ShardName(scale.shard));
  for (const char bad : {'\0', '\xff'}) {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    const auto row_of_panel_1 = static_cast<std::streamoff>(scale.file_offset) + 20 * 4 + 3;
    file.seekp(row_of_panel_1);
    file.put(bad);
    file.close();
    const auto damaged = Checkpoint::Open(directory.path());
    ASSERT_TRUE(damaged.has_value()) << damaged.error().message;
    const PanelJob job = ExpertJob();
    std::vector<std::byte> packed(static_cast<std::size_t>(PackedBytes(job)));
    const Status status = PackPanels(*damaged, job, packed);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(ErrorCode::kBadTensor));
    for (const std::string& text : {"experts.3.w1.weight_scale in " + directory.path() + "/model-",
                                    std::string("row 20, group 3: "),
                                    fmt::format("{} found", static_cast<unsigned char>(bad))}) {
      EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
    }
    // Outputs that do not use the scale can be packed.
    PanelJob other = job;
    other.num_outputs = 16;
    packed.resize(static_cast<std::size_t>(PackedBytes(other)));
    EXPECT_TRUE(PackPanels(*damaged, other, packed).has_value());
  }
}

/// k3-unit with some bytes replaced.
class DamagedCheckpoint {
 public:
  DamagedCheckpoint(const Checkpoint& original, const TensorView& view, std::int64_t element,
                    std::uint32_t bits) {
    directory_.CopyFrom(kUnit);
    const auto size = static_cast<std::streamoff>(DTypeBytes(view.dtype));
    std::fstream file(directory_.File(original.shards().ShardName(view.shard)),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(view.file_offset) + element * size);
    file.write(reinterpret_cast<const char*>(&bits), size);
    file.close();
    auto opened = Checkpoint::Open(directory_.path());
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    if (opened) checkpoint_.emplace(*std::move(opened));
  }
  const Checkpoint& operator*() const { return *checkpoint_; }
  /// "/tmp/.../model-": how its shards begin.
  std::string shards() const { return directory_.path() + "/model-"; }

 private:
  tools::TempDir directory_;
  std::optional<Checkpoint> checkpoint_;
};

void ExpectNames(const Status& status, const std::vector<std::string>& texts) {
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(ErrorCode::kBadTensor));
  for (const std::string& text : texts) {
    EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
  }
}

TEST_F(Packing, MatrixElementThatIsNotFiniteIsNamedWithItsPlace) {
  const TensorView view = checkpoint().FindMatrix(kGate)->weight;  // [384, 256]
  const std::int64_t row = 17;
  const std::int64_t column = 130;
  for (const auto& [bits, text] : std::vector<std::pair<std::uint32_t, std::string>>{
           {0x7fc0, "nan (bits 0x7fc0)"}, {0xff80, "-inf (bits 0xff80)"}, {0x7f81, "0x7f81"}}) {
    const DamagedCheckpoint damaged(checkpoint(), view, row * 256 + column, bits);
    PanelJob job = Bf16Job(kGate, 384, 256);
    for (const bool transposed : {false, true}) {
      job.transposed = transposed;
      job.num_outputs = transposed ? 256 : 384;
      job.num_inputs = transposed ? 384 : 256;
      std::vector<std::byte> packed(static_cast<std::size_t>(PackedBytes(job)));
      ExpectNames(
          PackPanels(*damaged, job, packed),
          {"layers.0.mlp.gate_proj.weight in " + damaged.shards(), "row 17, column 130: ", text});
    }
    // A job that does not use the element has nothing to say about it.
    job = Bf16Job(kGate, 384, 256);
    job.num_inputs = column;
    std::vector<std::byte> packed(static_cast<std::size_t>(PackedBytes(job)));
    EXPECT_TRUE(PackPanels(*damaged, job, packed).has_value());
    job = Bf16Job(kUp, 384, 256);
    job.pair_tensor = kGate;
    packed.resize(static_cast<std::size_t>(PackedBytes(job)));
    ExpectNames(PackPanels(*damaged, job, packed), {"gate_proj", "row 17, column 130: "});
  }
}

// ---- vectors ------------------------------------------------------------------------------------

class VectorPacking : public Packing {
 protected:
  VectorJob Job(const char* name, DType dtype, std::int64_t count) const {
    VectorJob job;
    job.name = name;
    job.dtype = dtype;
    job.count = job.stored_count = count;
    return job;
  }
  std::vector<float> StoredFloats(const char* name) const {
    const TensorView view = *checkpoint().Find(name);
    const auto bytes = *checkpoint().MapTensor(view);
    std::vector<float> values;
    for (std::size_t i = 0; i < bytes.size() / static_cast<std::size_t>(DTypeBytes(view.dtype));
         ++i) {
      if (view.dtype == DType::kF32) {
        float value;
        std::memcpy(&value, bytes.data() + 4 * i, 4);
        values.push_back(value);
      } else {
        Bf16 value;
        std::memcpy(&value, bytes.data() + 2 * i, 2);
        values.push_back(ToFloat(value));
      }
    }
    return values;
  }
  Result<std::vector<float>> PackFloats(const VectorJob& job) const {
    std::vector<float> values(static_cast<std::size_t>(job.count));
    MEGALITH_RETURN_IF_ERROR(
        PackVector(checkpoint(), job, std::as_writable_bytes(std::span(values))));
    return values;
  }
};

TEST_F(VectorPacking, AsStoredKeepsBytes) {
  const char name[] = "layers.0.input_layernorm.weight";
  const VectorJob job = Job(name, DType::kBf16, 256);
  std::vector<Bf16> packed(256);
  ASSERT_TRUE(PackVector(checkpoint(), job, std::as_writable_bytes(std::span(packed))).has_value());
  const std::vector<float> want = StoredFloats(name);
  for (std::size_t i = 0; i < 256; ++i) ASSERT_EQ(ToFloat(packed[i]), want[i]);
}

TEST_F(VectorPacking, PaddedVectorGivesItsFirstElements) {
  const char name[] = "layers.0.self_attn.A_log";  // 64 stored, 4 heads
  VectorJob job = Job(name, DType::kF32, 64);
  job.count = 4;
  const auto packed = PackFloats(job);
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  const std::vector<float> want = StoredFloats(name);
  EXPECT_EQ(*packed, std::vector<float>(want.begin(), want.begin() + 4));
}

TEST_F(VectorPacking, FoldMultipliesWidenedElements) {
  VectorJob job = Job("layers.1.mlp_res_norm.weight", DType::kF32, 256);
  job.second_name = "layers.1.mlp_res_proj.weight";
  job.form = VectorForm::kFold;
  const auto packed = PackFloats(job);
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  const auto norm = StoredFloats(job.name.c_str());
  const auto proj = StoredFloats(job.second_name.c_str());
  for (std::size_t i = 0; i < 256; ++i) ASSERT_EQ((*packed)[i], norm[i] * proj[i]);
}

TEST_F(VectorPacking, TapsAreTransposed) {
  VectorJob job = Job("layers.0.self_attn.k_conv1d.weight", DType::kF32, 256 * 4);
  job.form = VectorForm::kTransposed;
  job.taps = 4;
  const auto packed = PackFloats(job);
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  const auto stored = StoredFloats(job.name.c_str());
  for (std::size_t channel = 0; channel < 256; ++channel) {
    for (std::size_t tap = 0; tap < 4; ++tap) {
      ASSERT_EQ((*packed)[tap * 256 + channel], stored[channel * 4 + tap]);
    }
  }
}

TEST_F(VectorPacking, ElementThatIsNotFiniteIsNamedWithItsPlace) {
  VectorJob fold = Job("layers.1.mlp_res_norm.weight", DType::kF32, 256);
  fold.second_name = "layers.1.mlp_res_proj.weight";
  fold.form = VectorForm::kFold;
  VectorJob taps = Job("layers.0.self_attn.k_conv1d.weight", DType::kF32, 256 * 4);
  taps.form = VectorForm::kTransposed;
  taps.taps = 4;
  const std::vector<std::pair<VectorJob, std::string>> cases = {
      {Job("layers.0.input_layernorm.weight", DType::kBf16, 256),
       "layers.0.input_layernorm.weight"},
      {Job("layers.0.self_attn.dt_bias", DType::kF32, 256), "layers.0.self_attn.dt_bias"},
      {taps, taps.name},
      {fold, fold.name},
      {fold, fold.second_name}};
  for (const auto& [job, name] : cases) {
    const TensorView view = *checkpoint().Find(name);
    const std::uint32_t bits = view.dtype == DType::kF32 ? 0x7f800000u : 0x7f80u;
    const DamagedCheckpoint damaged(checkpoint(), view, 99, bits);
    std::vector<float> packed(static_cast<std::size_t>(PackedBytes(job)) / sizeof(float));
    ExpectNames(PackVector(*damaged, job, std::as_writable_bytes(std::span(packed))),
                {name + " in " + damaged.shards(), "element 99: ", "inf (bits 0x7f80"});
  }
}

TEST_F(VectorPacking, PaddingMayHoldAnything) {
  const char name[] = "layers.0.self_attn.A_log";  // 64 stored, 4 heads
  const DamagedCheckpoint damaged(checkpoint(), *checkpoint().Find(name), 4, 0x7fc00000u);
  VectorJob job = Job(name, DType::kF32, 64);
  job.count = 4;
  std::vector<float> packed(4);
  EXPECT_TRUE(PackVector(*damaged, job, std::as_writable_bytes(std::span(packed))).has_value());
  job.count = 5;
  packed.resize(5);
  ExpectNames(PackVector(*damaged, job, std::as_writable_bytes(std::span(packed))),
              {"element 4: ", "nan"});
}

TEST_F(VectorPacking, FoldThatOverflowsIsRefused) {
  // Two finite factors; the damage reaches one, so it is made the largest there is, squared.
  const char name[] = "layers.1.mlp_res_norm.weight";
  const DamagedCheckpoint damaged(checkpoint(), *checkpoint().Find(name), 7, 0x7f7fu);
  VectorJob job = Job(name, DType::kF32, 256);
  job.second_name = name;
  job.form = VectorForm::kFold;
  std::vector<float> packed(256);
  ExpectNames(PackVector(*damaged, job, std::as_writable_bytes(std::span(packed))),
              {name, "element 7: ", "overflows"});
}

TEST_F(VectorPacking, VectorsThatDoNotFitAreRefused) {
  const auto refused = [&](VectorJob job, ErrorCode code, const char* names) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(PackedBytes(job)));
    const Status status = PackVector(checkpoint(), job, bytes);
    ASSERT_FALSE(status.has_value()) << names;
    EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(code)) << status.error().message;
    EXPECT_NE(status.error().message.find(names), std::string::npos) << status.error().message;
  };
  refused(Job("layers.0.no_such.weight", DType::kBf16, 256), ErrorCode::kBadTensor, "no_such");
  refused(Job("layers.0.input_layernorm.weight", DType::kBf16, 255), ErrorCode::kBadTensor, "255");
  refused(Job("layers.0.input_layernorm.weight", DType::kF32, 256), ErrorCode::kBadTensor, "BF16");
  refused(Job("layers.0.self_attn.dt_bias", DType::kBf16, 256), ErrorCode::kBadTensor, "F32");
  VectorJob taps = Job("layers.0.self_attn.k_conv1d.weight", DType::kF32, 256 * 4);
  taps.form = VectorForm::kTransposed;
  taps.taps = 2;
  refused(taps, ErrorCode::kBadTensor, "[512, 1, 2]");
  taps.taps = 3;
  refused(taps, ErrorCode::kUsage, "3 taps");
  VectorJob longer = Job("layers.0.input_layernorm.weight", DType::kBf16, 256);
  longer.count = 257;
  refused(longer, ErrorCode::kUsage, "257 of 256");
}

}  // namespace
}  // namespace megalith::weights
