// What one rank's Program cannot show: that the Programs of all ranks are parts of one.

#include <algorithm>
#include <map>

#include "program/exchange.h"

namespace megalith::program {
namespace {

using Interval = std::pair<std::int64_t, std::int64_t>;

/// Whether intervals, in any order, make up [0, end) without overlap. Empty ones do not count.
bool Tile(std::vector<Interval> parts, std::int64_t end) {
  std::erase_if(parts, [](const Interval& part) { return part.first >= part.second; });
  std::sort(parts.begin(), parts.end());
  std::int64_t at = 0;
  for (const Interval& part : parts) {
    if (part.first != at) return false;
    at = part.second;
  }
  return at == end;
}

/// V8 across ranks: of each matrix every rank reads all, or each part is read by one rank.
Status CheckTensor(std::span<const Program* const> programs, std::size_t index) {
  const Tensor& first = programs.front()->tensors[index];
  std::map<Interval, std::vector<Interval>> rows_of_experts;
  bool whole = first.num_experts == 0;
  for (const Program* program : programs) {
    const Tensor& tensor = program->tensors[index];
    if (tensor.name != first.name || tensor.outputs != first.outputs ||
        tensor.inputs != first.inputs || tensor.format != first.format ||
        tensor.num_experts != first.num_experts) {
      return Fail(ErrorCode::kBadProgram, "V8: tensor {} of rank 0 is {} on rank {}", first.name,
                  tensor.name, program->sharding.rank);
    }
    whole = whole && tensor.first_row == 0 && tensor.num_rows == tensor.outputs;
    rows_of_experts[{tensor.first_expert, tensor.first_expert + tensor.own_experts}].push_back(
        {tensor.first_row, tensor.first_row + tensor.num_rows});
  }
  if (whole) return {};
  std::vector<Interval> experts;
  for (auto& [own_experts, rows] : rows_of_experts) {
    experts.push_back(own_experts);
    if (!Tile(std::move(rows), first.outputs)) {
      return Fail(ErrorCode::kBadProgram,
                  "V8: the ranks do not read every row of tensor {} exactly once", first.name);
    }
  }
  if (first.num_experts > 0 && !Tile(std::move(experts), first.num_experts)) {
    return Fail(ErrorCode::kBadProgram,
                "V8: the ranks do not read every expert of tensor {} exactly once", first.name);
  }
  return {};
}

}  // namespace

Status ProveRanks(std::span<const Program* const> programs) {
  const Program& first = *programs.front();
  const std::string signature = ExchangeSignature(first);
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    const Program& program = *programs[rank];
    const Sharding& sharding = program.sharding;
    if (sharding.rank != static_cast<std::int32_t>(rank) ||
        sharding.num_ranks != static_cast<std::int32_t>(programs.size())) {
      return Fail(ErrorCode::kBadProgram, "V6: Program {} of {} is that of rank {} of {}", rank,
                  programs.size(), sharding.rank, sharding.num_ranks);
    }
    if (ExchangeSignature(program) != signature) {
      return Fail(ErrorCode::kBadProgram,
                  "V6: ranks 0 and {} exchange other columns, or in another order", rank);
    }
    if (program.tensors.size() != first.tensors.size()) {
      return Fail(ErrorCode::kBadProgram, "V8: ranks 0 and {} have {} and {} tensors", rank,
                  first.tensors.size(), program.tensors.size());
    }
  }
  for (std::size_t i = 0; i < first.tensors.size(); ++i) {
    MEGALITH_RETURN_IF_ERROR(CheckTensor(programs, i));
  }
  return {};
}

}  // namespace megalith::program
