#pragma once

// Turns tensors of a checkpoint into the packed form kernels read (kernels/layout.h). A job is
// plain data and says everything; running one is a pure function of job and checkpoint, so jobs may
// run at the same time on any threads.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "kernels/layout.h"
#include "weights/checkpoint.h"

namespace megalith::weights {

/// Outputs first_output .. + num_outputs over inputs first_input .. + num_inputs of a matrix, as
/// panels of 16 outputs. With a pair, panels alternate: 16 outputs of `tensor`, the same 16 of
/// `pair_tensor`.
struct PanelJob {
  std::string tensor;       ///< name without prefix and `.weight`: `layers.0.mlp.gate_proj`
  std::string pair_tensor;  ///< empty: none
  kernels::PanelFormat format = kernels::PanelFormat::kBf16;
  std::int64_t stored_rows = 0;  ///< shape the checkpoint must have, of both tensors
  std::int64_t stored_columns = 0;
  /// Outputs are columns of the stored matrix, inputs its rows. bf16 only.
  bool transposed = false;
  std::int64_t first_output = 0;
  std::int64_t num_outputs = 0;
  std::int64_t first_input = 0;
  std::int64_t num_inputs = 0;

  friend bool operator==(const PanelJob&, const PanelJob&) = default;
};

/// Panels of a job, those of the pair counted.
std::int64_t NumPanels(const PanelJob& job);

/// Bytes a job writes: NumPanels panels.
std::int64_t PackedBytes(const PanelJob& job);

/// Writes PackedBytes(job) bytes, padding included; kInt8 is made of a matrix stored as bf16. The
/// source is read in place from the mapped file. Errors: kBadTensor names a tensor that is absent,
/// of another shape or storage, or holds NaN, infinity or an MXFP4 scale of 0 or 255 within the
/// packed part (with row and column or group); kUsage for a range outside the matrix or a
/// destination of another size; kUnsupported for a transposed MXFP4 or int8 matrix or inputs that
/// cut a scale group.
Status PackPanels(const Checkpoint& checkpoint, const PanelJob& job,
                  std::span<std::byte> destination);

enum class VectorForm : std::uint8_t {
  kAsStored,    ///< the first `count` elements, same dtype
  kFold,        ///< f32: name[i] * second_name[i], each widened first
  kTransposed,  ///< f32: stored [channels, taps] or [channels, 1, taps], written [taps][channels]
};

/// A small array that kernels read as it is.
struct VectorJob {
  std::string name;         ///< full name without prefix: `layers.0.input_layernorm.weight`
  std::string second_name;  ///< kFold only
  VectorForm form = VectorForm::kAsStored;
  DType dtype = DType::kBf16;     ///< of what is written: kBf16 or kF32
  std::int64_t count = 0;         ///< elements written
  std::int64_t stored_count = 0;  ///< elements the checkpoint must hold, >= count
  std::int64_t taps = 0;          ///< kTransposed only

  friend bool operator==(const VectorJob&, const VectorJob&) = default;
};

std::int64_t PackedBytes(const VectorJob& job);

/// Writes PackedBytes(job) bytes; `destination` is aligned for its dtype. Errors: kBadTensor names
/// a tensor that is absent, of another element count, shape or dtype, or holds NaN or infinity
/// among the elements used, or whose fold overflows; kUsage for a job that contradicts itself.
Status PackVector(const Checkpoint& checkpoint, const VectorJob& job,
                  std::span<std::byte> destination);

}  // namespace megalith::weights
