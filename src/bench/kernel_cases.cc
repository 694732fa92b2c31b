#include "bench/kernel_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/align.h"
#include "bench/tokens.h"

namespace megalith::bench {
namespace {

using kernels::Isa;
using kernels::kPanelOutputs;
using kernels::PanelFormat;

/// Panels of one call of few rows, and the most bytes of one call of many: what the executor does
/// (exec/cpu/scratch.h), so that several blocks of rows find the panels in the L2.
constexpr std::int64_t kPanelsPerCall = 32;
constexpr std::int64_t kManyRowsBytes = std::int64_t{256} << 10;

/// Numbers around 0, the same every time.
std::vector<float> SomeFloats(std::int64_t count, float scale) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        scale *
        (static_cast<float>(ArbitraryToken(1, static_cast<std::int64_t>(i), 2001)) - 1000.0f) /
        1000.0f;
  }
  return values;
}

std::vector<Bf16> SomeBf16(std::int64_t count, float scale) {
  std::vector<Bf16> values;
  for (const float value : SomeFloats(count, scale)) values.push_back(ToBf16(value));
  return values;
}

/// Memory aligned for scratches.
struct AlignedFloats {
  explicit AlignedFloats(std::int64_t count)
      : storage(static_cast<std::size_t>(count) + 16),
        data(reinterpret_cast<float*>(
            RoundUp<std::uintptr_t>(reinterpret_cast<std::uintptr_t>(storage.data()), 64))) {}
  std::vector<float> storage;
  float* data;
};

bool Wanted(const KernelOptions& options, std::string_view name) {
  return options.only.empty() || name.find(options.only) != std::string_view::npos;
}

std::vector<std::byte> OnePanel(PanelFormat format, std::int64_t inputs) {
  std::vector<std::byte> panel(static_cast<std::size_t>(kernels::PanelBytes(format, inputs)));
  if (format == PanelFormat::kMxfp4) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(kPanelOutputs * inputs / 2));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(kPanelOutputs * inputs / 32));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<std::uint8_t>(ArbitraryToken(2, static_cast<std::int64_t>(i), 256));
    }
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales[i] =
          static_cast<std::uint8_t>(118 + ArbitraryToken(3, static_cast<std::int64_t>(i), 4));
    }
    kernels::PackPanelMxfp4(codes.data(), inputs / 2, scales.data(), inputs / 32, kPanelOutputs,
                            inputs, panel.data());
    return panel;
  }
  const std::vector<Bf16> source = SomeBf16(kPanelOutputs * inputs, 0.05f);
  if (format == PanelFormat::kInt8) {
    static_cast<void>(
        kernels::PackPanelInt8(source.data(), inputs, kPanelOutputs, inputs, panel.data()));
    return panel;
  }
  kernels::PackPanelBf16(source.data(), inputs, 1, kPanelOutputs, inputs, panel.data());
  return panel;
}

struct Matmul {
  Matmul(std::int64_t panels, std::int64_t inputs, std::int64_t rows)
      : x(SomeBf16(rows * inputs, 1.0f)),
        acc(rows * panels * kPanelOutputs),
        scratch(kernels::MatmulScratchFloats(inputs)) {}
  std::vector<Bf16> x;
  AlignedFloats acc;
  AlignedFloats scratch;
};

}  // namespace

std::string FormatName(int format) {
  return std::string(kernels::PanelFormatName(static_cast<PanelFormat>(format)));
}

Result<ColdMemory> MakeColdPanels(int format, std::int64_t inputs, std::size_t bytes) {
  const std::vector<std::byte> panel = OnePanel(static_cast<PanelFormat>(format), inputs);
  const std::size_t count = std::max<std::size_t>(bytes / panel.size(), kPanelsPerCall);
  MEGALITH_ASSIGN_OR_RETURN(Arena arena,
                            Arena::Allocate(count * panel.size(), PreferredHugePages()));
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(arena.data() + i * panel.size(), panel.data(), panel.size());
  }
  return ColdMemory(std::move(arena));
}

std::vector<KernelCase> MatmulCases(int format, std::int64_t inputs, ColdMemory& panels,
                                    const KernelOptions& options) {
  std::vector<KernelCase> cases;
  const std::string name = "matmul_" + FormatName(format);
  if (!Wanted(options, name)) return cases;
  const std::int64_t panel_bytes = kernels::PanelBytes(static_cast<PanelFormat>(format), inputs);
  for (const std::int64_t rows : options.rows) {
    const std::int64_t count =
        rows < kMultiplyBoundRows
            ? kPanelsPerCall
            : std::clamp<std::int64_t>(kManyRowsBytes / panel_bytes, 1, kPanelsPerCall);
    for (const Isa isa : options.isas) {
      KernelCase item;
      item.result.kernel = name;
      item.result.shape = fmt::format("K {}, rows {}", inputs, rows);
      item.result.isa = isa;
      item.result.inputs = inputs;
      item.result.rows = rows;
      item.result.bytes_per_call = static_cast<double>(count * panel_bytes);
      item.result.flops_per_call =
          2.0 * static_cast<double>(count * kPanelOutputs) * static_cast<double>(inputs * rows);
      auto data = std::make_shared<Matmul>(count, inputs, rows);
      kernels::MatmulArgs<Bf16> args{};
      args.num_panels = count;
      args.inputs = inputs;
      args.x = data->x.data();
      args.x_stride = inputs;
      args.rows = rows;
      args.acc = data->acc.data;
      args.acc_stride = count * kPanelOutputs;
      args.scratch = data->scratch.data;
      item.call = [args, data, &panels, bytes = static_cast<std::size_t>(count * panel_bytes),
                   kernel = kernels::Bf16Kernels(isa).matmul[format]]() mutable {
        args.panels = panels.Next(bytes);
        kernel(args);
      };
      cases.push_back(std::move(item));
    }
  }
  return cases;
}

}  // namespace megalith::bench
