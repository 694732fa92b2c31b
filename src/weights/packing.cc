#include "weights/packing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/bf16.h"
#include "weights/finite.h"
#include "weights/quote.h"

namespace megalith::weights {
namespace {

using kernels::kBlockInputs;
using kernels::kPanelOutputs;
using kernels::PanelFormat;

/// A matrix of the checkpoint whose bytes can be read in place.
struct Source {
  std::string name;
  std::int64_t columns = 0;
  MatrixView view;
  const std::byte* weight = nullptr;
  const std::byte* scale = nullptr;
  std::vector<std::byte> copy;  ///< only when the file does not align the elements
};

Status OpenSource(const Checkpoint& checkpoint, const std::string& name, const PanelJob& job,
                  Source* source) {
  MEGALITH_ASSIGN_OR_RETURN(const MatrixView view, checkpoint.FindMatrix(name));
  if (view.rows != job.stored_rows || view.columns != job.stored_columns) {
    return Fail(ErrorCode::kBadTensor, "{}: [{}, {}] expected, [{}, {}] found", name,
                job.stored_rows, job.stored_columns, view.rows, view.columns);
  }
  const MatrixFormat stored =
      job.format == PanelFormat::kMxfp4 ? MatrixFormat::kMxfp4 : MatrixFormat::kBf16;
  if (view.format != stored) {
    return Fail(ErrorCode::kBadTensor, "{}: stored as {}, the plan expects {}", name,
                view.format == MatrixFormat::kMxfp4 ? "mxfp4" : "bf16",
                stored == MatrixFormat::kMxfp4 ? "mxfp4" : "bf16");
  }
  source->name = name;
  source->columns = view.columns;
  source->view = view;
  MEGALITH_ASSIGN_OR_RETURN(const std::span<const std::byte> weight,
                            checkpoint.shards().Bytes(view.weight, &source->copy));
  source->weight = weight.data();
  if (view.format == MatrixFormat::kMxfp4) {
    MEGALITH_ASSIGN_OR_RETURN(const std::span<const std::byte> scale,
                              checkpoint.MapTensor(view.scale));
    source->scale = scale.data();
  }
  return {};
}

std::string TensorPlace(const Checkpoint& checkpoint, const TensorView& view) {
  return fmt::format("{} in {}", Quote(view.name), checkpoint.shards().ShardPath(view.shard));
}

/// "nan (bits 0x7fc0)"
std::string NonFiniteText(float value, DType dtype) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return fmt::format("{} (bits 0x{:x})", value, dtype == DType::kBf16 ? bits >> 16 : bits);
}

/// Finds the element that makes a packed panel not finite, in the matrix as stored.
Status FailNonFinite(const Checkpoint& checkpoint, const Source& source, const PanelJob& job,
                     std::int64_t first, std::int64_t count) {
  for (std::int64_t n = first; n < first + count; ++n) {
    for (std::int64_t k = job.first_input; k < job.first_input + job.num_inputs; ++k) {
      const std::int64_t row = job.transposed ? k : n;
      const std::int64_t column = job.transposed ? n : k;
      Bf16 element{};
      std::memcpy(&element, source.weight + (row * source.columns + column) * 2, sizeof(element));
      const float value = ToFloat(element);
      if (std::isfinite(value)) continue;
      return Fail(ErrorCode::kBadTensor,
                  "{}: row {}, column {}: a finite number expected, {} found",
                  TensorPlace(checkpoint, source.view.weight), row, column,
                  NonFiniteText(value, DType::kBf16));
    }
  }
  return Fail(ErrorCode::kInternal, "{}: packing made a value that is not finite", source.name);
}

/// Everything about a job that can be said without the checkpoint.
Status CheckJob(const PanelJob& job, std::size_t destination_bytes) {
  const std::int64_t outputs = job.transposed ? job.stored_columns : job.stored_rows;
  const std::int64_t inputs = job.transposed ? job.stored_rows : job.stored_columns;
  const bool outputs_inside =
      job.first_output >= 0 && job.num_outputs > 0 && job.first_output <= outputs - job.num_outputs;
  const bool inputs_inside =
      job.first_input >= 0 && job.num_inputs > 0 && job.first_input <= inputs - job.num_inputs;
  if (!outputs_inside || !inputs_inside) {
    return Fail(ErrorCode::kUsage,
                "{}: outputs {}+{} of {}, inputs {}+{} of {} do not lie inside the matrix",
                job.tensor, job.first_output, job.num_outputs, outputs, job.first_input,
                job.num_inputs, inputs);
  }
  if (kernels::IsQuantized(job.format)) {
    if (job.transposed) {
      return Fail(ErrorCode::kUnsupported, "{}: a transposed {} matrix cannot be packed",
                  job.tensor, kernels::PanelFormatName(job.format));
    }
    // The last group of an int8 row may be short; a group of MXFP4 is whole in the checkpoint.
    const bool cuts_end =
        job.num_inputs % kBlockInputs != 0 &&
        (job.format == PanelFormat::kMxfp4 || job.first_input + job.num_inputs != inputs);
    if (job.first_input % kBlockInputs != 0 || cuts_end) {
      return Fail(ErrorCode::kUnsupported, "{}: inputs {}+{} cut a scale group of {} of {}",
                  job.tensor, job.first_input, job.num_inputs, kBlockInputs,
                  kernels::PanelFormatName(job.format));
    }
  }
  if (static_cast<std::size_t>(PackedBytes(job)) != destination_bytes) {
    return Fail(ErrorCode::kUsage, "{}: packs to {} bytes, the destination has {}", job.tensor,
                PackedBytes(job), destination_bytes);
  }
  return {};
}

/// Packs outputs first .. first + count (at most 16) of one matrix.
Status PackOnePanel(const Checkpoint& checkpoint, const Source& source, const PanelJob& job,
                    std::int64_t first, std::int64_t count, std::byte* panel) {
  if (job.format == PanelFormat::kInt8) {
    const auto* matrix = reinterpret_cast<const Bf16*>(source.weight);
    if (!kernels::PackPanelInt8(matrix + first * source.columns + job.first_input, source.columns,
                                count, job.num_inputs, panel)) {
      return FailNonFinite(checkpoint, source, job, first, count);
    }
    return {};
  }
  if (job.format == PanelFormat::kBf16) {
    const std::int64_t output_stride = job.transposed ? 1 : source.columns;
    const std::int64_t input_stride = job.transposed ? source.columns : 1;
    const auto* matrix = reinterpret_cast<const Bf16*>(source.weight);
    kernels::PackPanelBf16(matrix + first * output_stride + job.first_input * input_stride,
                           output_stride, input_stride, count, job.num_inputs, panel);
    // In the panel rather than in the file: it lies in the cache, without gaps also if transposed.
    const auto bytes = static_cast<std::size_t>(kernels::PanelBytes(job.format, job.num_inputs));
    if (FindNonFinite({panel, bytes}, DType::kBf16)) {
      return FailNonFinite(checkpoint, source, job, first, count);
    }
    return {};
  }
  const std::int64_t codes_stride = source.columns / 2;
  const std::int64_t scales_stride = source.columns / kBlockInputs;
  const std::byte* scales = source.scale + first * scales_stride + job.first_input / kBlockInputs;
  for (std::int64_t row = 0; row < count; ++row) {
    const std::span<const std::byte> row_scales(
        scales + row * scales_stride, static_cast<std::size_t>(job.num_inputs / kBlockInputs));
    if (const auto bad = FindBadMxfp4Scale(row_scales)) {
      return Fail(ErrorCode::kBadTensor,
                  "{}: row {}, group {}: a scale of 1 to 254 expected, {} found",
                  TensorPlace(checkpoint, source.view.scale), first + row,
                  job.first_input / kBlockInputs + static_cast<std::int64_t>(*bad),
                  std::to_integer<int>(row_scales[*bad]));
    }
  }
  kernels::PackPanelMxfp4(reinterpret_cast<const std::uint8_t*>(
                              source.weight + first * codes_stride + job.first_input / 2),
                          codes_stride, reinterpret_cast<const std::uint8_t*>(scales),
                          scales_stride, count, job.num_inputs, panel);
  return {};
}

/// A stored bf16 or f32 tensor, element by element widened to float.
class WideReader {
 public:
  static Result<WideReader> Open(const Checkpoint& checkpoint, const std::string& name,
                                 std::int64_t stored_count) {
    MEGALITH_ASSIGN_OR_RETURN(const TensorView view, checkpoint.Find(name));
    std::int64_t count = 1;
    for (const std::int64_t extent : view.shape) count *= extent;
    if (count != stored_count) {
      return Fail(ErrorCode::kBadTensor, "{}: {} elements expected, {} found", name, stored_count,
                  count);
    }
    if (view.dtype != DType::kBf16 && view.dtype != DType::kF32) {
      return Fail(ErrorCode::kBadTensor, "{}: BF16 or F32 expected, {} found", name,
                  DTypeName(view.dtype));
    }
    MEGALITH_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, checkpoint.MapTensor(view));
    return WideReader(view, bytes.data(), TensorPlace(checkpoint, view));
  }

  /// kBadTensor if one of the first `count` elements is NaN or infinite. Those past the ones a
  /// model uses (padding of per-head parameters) may hold anything.
  Status CheckFinite(std::int64_t count) const {
    const auto num_bytes = static_cast<std::size_t>(count * DTypeBytes(view_.dtype));
    const auto bad = FindNonFinite({bytes_, num_bytes}, view_.dtype);
    if (!bad) return {};
    return Fail(ErrorCode::kBadTensor, "{}: element {}: a finite number expected, {} found", place_,
                *bad, NonFiniteText(At(static_cast<std::int64_t>(*bad)), view_.dtype));
  }

  const TensorView& view() const { return view_; }
  const std::byte* bytes() const { return bytes_; }

  float At(std::int64_t index) const {
    // memcpy: a file need not align its elements.
    if (view_.dtype == DType::kF32) {
      float value;
      std::memcpy(&value, bytes_ + index * 4, sizeof value);
      return value;
    }
    Bf16 value;
    std::memcpy(&value, bytes_ + index * 2, sizeof value);
    return ToFloat(value);
  }

 private:
  WideReader(const TensorView& view, const std::byte* bytes, std::string place)
      : view_(view), bytes_(bytes), place_(std::move(place)) {}
  TensorView view_;
  const std::byte* bytes_;
  std::string place_;  // for messages
};

Status PackTransposed(const WideReader& source, const VectorJob& job, float* out) {
  const std::int64_t channels = job.count / job.taps;
  const std::span<const std::int64_t> shape = source.view().shape;
  const bool flat = shape.size() == 2 && shape[0] == channels && shape[1] == job.taps;
  const bool convolution =
      shape.size() == 3 && shape[0] == channels && shape[1] == 1 && shape[2] == job.taps;
  if (!flat && !convolution) {
    return Fail(ErrorCode::kBadTensor, "{}: [{}, 1, {}] or [{}, {}] expected, [{}] found", job.name,
                channels, job.taps, channels, job.taps, fmt::join(shape, ", "));
  }
  for (std::int64_t tap = 0; tap < job.taps; ++tap) {
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      out[tap * channels + channel] = source.At(channel * job.taps + tap);
    }
  }
  return {};
}

Status CheckJob(const VectorJob& job, std::size_t destination_bytes) {
  const bool known_dtype = job.dtype == DType::kBf16 || job.dtype == DType::kF32;
  const bool fits = job.count > 0 && job.count <= job.stored_count;
  const bool form_fits =
      job.form == VectorForm::kAsStored ||
      (job.dtype == DType::kF32 &&
       (job.form == VectorForm::kFold ||
        (job.taps > 0 && job.count % job.taps == 0 && job.count == job.stored_count)));
  if (!known_dtype || !fits || !form_fits) {
    return Fail(ErrorCode::kUsage, "{}: {} of {} elements, {} taps, {}: not a job that can be done",
                job.name, job.count, job.stored_count, job.taps, DTypeName(job.dtype));
  }
  if (static_cast<std::size_t>(PackedBytes(job)) != destination_bytes) {
    return Fail(ErrorCode::kUsage, "{}: packs to {} bytes, the destination has {}", job.name,
                PackedBytes(job), destination_bytes);
  }
  return {};
}

}  // namespace

std::int64_t NumPanels(const PanelJob& job) {
  const std::int64_t panels = CeilDiv<std::int64_t>(job.num_outputs, kPanelOutputs);
  return job.pair_tensor.empty() ? panels : 2 * panels;
}

std::int64_t PackedBytes(const PanelJob& job) {
  return NumPanels(job) * kernels::PanelBytes(job.format, job.num_inputs);
}

Status PackPanels(const Checkpoint& checkpoint, const PanelJob& job,
                  std::span<std::byte> destination) {
  MEGALITH_RETURN_IF_ERROR(CheckJob(job, destination.size()));
  Source sources[2];
  MEGALITH_RETURN_IF_ERROR(OpenSource(checkpoint, job.tensor, job, &sources[0]));
  const int num_sources = job.pair_tensor.empty() ? 1 : 2;
  if (num_sources == 2) {
    MEGALITH_RETURN_IF_ERROR(OpenSource(checkpoint, job.pair_tensor, job, &sources[1]));
  }
  const std::int64_t panel_bytes = kernels::PanelBytes(job.format, job.num_inputs);
  std::byte* panel = destination.data();
  for (std::int64_t done = 0; done < job.num_outputs; done += kPanelOutputs) {
    const std::int64_t count = std::min<std::int64_t>(kPanelOutputs, job.num_outputs - done);
    for (int i = 0; i < num_sources; ++i) {
      MEGALITH_RETURN_IF_ERROR(
          PackOnePanel(checkpoint, sources[i], job, job.first_output + done, count, panel));
      panel += panel_bytes;
    }
  }
  return {};
}

std::int64_t PackedBytes(const VectorJob& job) { return job.count * DTypeBytes(job.dtype); }

Status PackVector(const Checkpoint& checkpoint, const VectorJob& job,
                  std::span<std::byte> destination) {
  MEGALITH_RETURN_IF_ERROR(CheckJob(job, destination.size()));
  MEGALITH_ASSIGN_OR_RETURN(const WideReader first,
                            WideReader::Open(checkpoint, job.name, job.stored_count));
  MEGALITH_RETURN_IF_ERROR(first.CheckFinite(job.count));
  auto* out = reinterpret_cast<float*>(destination.data());
  switch (job.form) {
    case VectorForm::kAsStored:
      if (first.view().dtype != job.dtype) {
        return Fail(ErrorCode::kBadTensor, "{}: {} expected, {} found", job.name,
                    DTypeName(job.dtype), DTypeName(first.view().dtype));
      }
      std::memcpy(destination.data(), first.bytes(), destination.size());
      return {};
    case VectorForm::kFold: {
      MEGALITH_ASSIGN_OR_RETURN(const WideReader second,
                                WideReader::Open(checkpoint, job.second_name, job.stored_count));
      MEGALITH_RETURN_IF_ERROR(second.CheckFinite(job.count));
      for (std::int64_t i = 0; i < job.count; ++i) out[i] = first.At(i) * second.At(i);
      if (const auto bad = FindNonFinite(destination, DType::kF32)) {
        const auto i = static_cast<std::int64_t>(*bad);
        return Fail(ErrorCode::kBadTensor, "{} times {}: element {}: {} times {} overflows",
                    job.name, job.second_name, i, first.At(i), second.At(i));
      }
      return {};
    }
    case VectorForm::kTransposed:
      return PackTransposed(first, job, out);
  }
  return Fail(ErrorCode::kUsage, "{}: unknown form of vector", job.name);
}

}  // namespace megalith::weights
