#include "exec/testing/golden.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/npy.h"

namespace megalith::exec::testing {
namespace {

/// [.., n] as rows of n.
template <typename T, typename Out>
std::vector<std::vector<Out>> Rows(const NpyArray& array) {
  const auto columns = static_cast<std::size_t>(array.shape.back());
  const std::span<const T> values = array.As<T>();
  std::vector<std::vector<Out>> rows;
  for (std::size_t begin = 0; begin < values.size(); begin += columns) {
    const std::span<const T> row = values.subspan(begin, columns);
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

}  // namespace

std::vector<std::int32_t> GoldenCase::Tokens() const {
  std::vector<std::int32_t> tokens = prompt;
  tokens.insert(tokens.end(), generated.begin(), generated.end() - 1);
  return tokens;
}

Result<std::vector<GoldenCase>> LoadGoldenCases(const std::string& model_directory) {
  const std::string folder = model_directory + "/golden/";
  std::ifstream file(folder + "cases.json");
  if (!file) return Fail(ErrorCode::kNotFound, "{}cases.json cannot be opened", folder);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (json.is_discarded()) return Fail(ErrorCode::kBadFile, "{}cases.json is not JSON", folder);
  std::vector<GoldenCase> cases;
  for (const nlohmann::json& item : json.at("cases")) {
    GoldenCase golden;
    golden.tag = item.at("tag").get<std::string>();
    golden.prompt = item.at("prompt").get<std::vector<std::int32_t>>();
    golden.generated = item.at("generated").get<std::vector<std::int32_t>>();
    golden.bf16_relative_l2 = item.at("bf16").at("rel_l2").get<double>();
    golden.bf16_mean_abs = item.at("bf16").at("mean_abs").get<double>();
    golden.logits_path = folder + golden.tag + "_logits.npy";
    golden.router_ids_path = folder + golden.tag + "_router_ids.npy";
    golden.router_weights_path = folder + golden.tag + "_router_weights.npy";
    golden.router_gap_path = folder + golden.tag + "_router_gap.npy";
    const std::string layer_out = folder + golden.tag + "_layer_out.npy";
    if (std::filesystem::exists(layer_out)) golden.layer_out_path = layer_out;
    cases.push_back(std::move(golden));
  }
  return cases;
}

Result<LogitRows> LoadRows(const std::string& path) {
  MEGALITH_ASSIGN_OR_RETURN(const NpyArray array, ReadNpy(path));
  if (array.dtype != DType::kF32 || array.shape.empty()) {
    return Fail(ErrorCode::kBadFile, "{}: f32 rows expected, {} found", path,
                DTypeName(array.dtype));
  }
  return Rows<float, float>(array);
}

Result<std::vector<std::vector<std::int32_t>>> LoadIdRows(const std::string& path) {
  MEGALITH_ASSIGN_OR_RETURN(const NpyArray array, ReadNpy(path));
  if (array.dtype != DType::kI16 || array.shape.empty()) {
    return Fail(ErrorCode::kBadFile, "{}: i16 rows expected, {} found", path,
                DTypeName(array.dtype));
  }
  return Rows<std::int16_t, std::int32_t>(array);
}

LogitRows ReadBuffer(const ProgramMemory& memory, std::string_view name, std::int64_t rows) {
  const std::uint32_t index = memory.FindBuffer(name);
  if (index == program::kNone) return {};
  const program::Buffer& buffer = memory.program().buffers[index];
  const program::Operand whole{index, 0, buffer.columns};
  LogitRows result;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < buffer.columns; ++i) {
      switch (buffer.dtype) {
        case DType::kBf16:
          values.push_back(ToFloat(memory.Rows<Bf16>(whole).Row(row)[i]));
          break;
        case DType::kF32:
          values.push_back(memory.Rows<float>(whole).Row(row)[i]);
          break;
        default:
          values.push_back(static_cast<float>(memory.Rows<std::int32_t>(whole).Row(row)[i]));
      }
    }
    result.push_back(std::move(values));
  }
  return result;
}

InstructionObserver LayerTrace::Observer(std::vector<std::string> buffers) {
  return [this, names = std::move(buffers)](const InstructionEvent& event) {
    const program::Program& program = event.memory.program();
    const program::Visit& visit = program.visits[static_cast<std::size_t>(event.visit_index)];
    const auto& stream =
        program.segments[visit.segment].streams[static_cast<std::size_t>(event.worker)];
    const auto last = static_cast<std::int64_t>(stream.instructions.size()) - 1;
    if (visit.layer < 0 || event.instruction_index != last) return true;
    for (const std::string& name : names) {
      LogitRows& all = rows_of_[{visit.layer, name}];
      for (auto& row : ReadBuffer(event.memory, name, rows_)) all.push_back(std::move(row));
    }
    return true;
  };
}

const LogitRows& LayerTrace::Rows(std::int32_t layer, const std::string& buffer) const {
  static const LogitRows none;
  const auto found = rows_of_.find({layer, buffer});
  return found == rows_of_.end() ? none : found->second;
}

Distance Compare(const LogitRows& want, const LogitRows& have) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Distance apart{kInfinity, kInfinity, kInfinity, 0.0};
  if (want.size() != have.size() || want.empty()) return apart;
  Distance distance;
  double difference_squares = 0.0;
  double want_squares = 0.0;
  std::size_t count = 0;
  for (std::size_t row = 0; row < want.size(); ++row) {
    if (want[row].size() != have[row].size()) return apart;
    for (std::size_t i = 0; i < want[row].size(); ++i) {
      const double difference = static_cast<double>(have[row][i]) - want[row][i];
      if (!std::isfinite(difference)) return apart;
      distance.max_abs = std::max(distance.max_abs, std::abs(difference));
      distance.mean_abs += std::abs(difference);
      difference_squares += difference * difference;
      want_squares += static_cast<double>(want[row][i]) * want[row][i];
    }
    count += want[row].size();
    if (ArgMax(want[row]) == ArgMax(have[row])) distance.top1_agreement += 1.0;
  }
  distance.mean_abs /= static_cast<double>(count);
  distance.relative_l2 = std::sqrt(difference_squares / want_squares);
  distance.top1_agreement /= static_cast<double>(want.size());
  return distance;
}

Result<std::vector<std::int32_t>> Greedy(Executor& executor, std::int32_t slot,
                                         std::span<const std::int32_t> prompt, std::size_t count,
                                         std::int32_t rows_per_step) {
  MEGALITH_ASSIGN_OR_RETURN(LogitRows rows, Feed(executor, slot, prompt, rows_per_step));
  std::vector<std::int32_t> generated;
  while (generated.size() < count) {
    generated.push_back(ArgMax(rows.back()));
    const auto position = static_cast<std::int32_t>(prompt.size() + generated.size() - 1);
    if (generated.size() == count) break;
    MEGALITH_ASSIGN_OR_RETURN(rows, Feed(executor, slot, {&generated.back(), 1}, 1, position));
  }
  return generated;
}

}  // namespace megalith::exec::testing
