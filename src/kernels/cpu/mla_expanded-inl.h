// Latent attention in expanded form: one head of a run of rows over the cached latents. The matrix
// products are the path's own matmul of bf16 panels: what it does best with many rows.

namespace megalith::kernels::MEGALITH_PATH {

/// One call.
class MlaExpansion {
 public:
  explicit MlaExpansion(const MlaExpandedArgs& args)
      : args_(args),
        at_(args.rows, args.nope, args.extra, args.rank, args.value_dim, args.split),
        key_width_(args.nope + args.extra),
        nope_columns_(RoundUp<std::int64_t>(args.nope, kPanelOutputs)),
        value_columns_(RoundUp<std::int64_t>(args.value_dim, kPanelOutputs)) {}

  void Run() {
    PackKeyExpansion();
    const std::int64_t end = args_.first_position + args_.rows;
    for (std::int64_t begin = 0; begin < end; begin += args_.split) {
      const std::int64_t count = end - begin < args_.split ? end - begin : args_.split;
      ExpandPart(begin, count);
      // Rows before the part do not see it.
      std::int64_t row = begin > args_.first_position ? begin - args_.first_position : 0;
      for (; row < args_.rows; row += kMlaExpandedTile) {
        const std::int64_t left = args_.rows - row;
        AttendPart(begin, count, row, left < kMlaExpandedTile ? left : kMlaExpandedTile);
      }
    }
    for (std::int64_t row = 0; row < args_.rows; ++row) Finish(row);
  }

 private:
  float* Floats(std::int64_t offset) const { return args_.scratch + offset; }
  Bf16* Acts(std::int64_t offset) const { return reinterpret_cast<Bf16*>(args_.scratch + offset); }
  std::byte* Bytes(std::int64_t offset) const {
    return reinterpret_cast<std::byte*>(args_.scratch + offset);
  }

  /// acc[r] = `columns` / 16 panels over `inputs` inputs times row r of x.
  void Multiply(const std::byte* panels, std::int64_t columns, std::int64_t inputs, const Bf16* x,
                std::int64_t x_stride, const std::int32_t* row_indices, std::int64_t rows,
                float* acc, std::int64_t acc_stride) const {
    MatmulArgs<Bf16> product{};
    product.panels = panels;
    product.num_panels = columns / kPanelOutputs;
    product.inputs = inputs;
    product.x = x;
    product.x_stride = x_stride;
    product.row_indices = row_indices;
    product.rows = rows;
    product.acc = acc;
    product.acc_stride = acc_stride;
    product.scratch = Floats(at_.matmul);
    args_.matmul(product);
  }

  /// kv_b's key rows, packed with the latent as outputs, as panels with the latent as inputs.
  void PackKeyExpansion() const {
    const std::int64_t from_bytes = PanelBytes(PanelFormat::kBf16, args_.nope);
    const std::int64_t from = from_bytes / static_cast<std::int64_t>(sizeof(Bf16));
    const std::int64_t to =
        PanelBytes(PanelFormat::kBf16, args_.rank) / static_cast<std::int64_t>(sizeof(Bf16));
    Bf16* target = Acts(at_.key_expansion);
    std::memset(static_cast<void*>(target), 0,
                static_cast<std::size_t>(nope_columns_ / kPanelOutputs * to) * sizeof(Bf16));
    for (std::int64_t i = 0; i < args_.rank; ++i) {
      const Bf16* source = args_.key_weights + i / kPanelOutputs * from + i % kPanelOutputs * 2;
      Bf16* column = target + i / 2 * 2 * kPanelOutputs + i % 2;
      for (std::int64_t c = 0; c < args_.nope; ++c) {
        column[c / kPanelOutputs * to + c % kPanelOutputs * 2] =
            source[c / 2 * 2 * kPanelOutputs + c % 2];
      }
    }
  }

  /// Keys and values of `count` positions from `begin` on, as panels.
  void ExpandPart(std::int64_t begin, std::int64_t count) const {
    auto* cache_rows = reinterpret_cast<std::int32_t*>(Floats(at_.cache_rows));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t t = begin + i;
      cache_rows[i] = static_cast<std::int32_t>(
          args_.page_table[t / args_.page_tokens] * args_.page_tokens + t % args_.page_tokens);
    }
    const std::int64_t width = args_.rank + args_.extra;
    Bf16* keys = Acts(at_.keys);
    Bf16* values = Acts(at_.values);
    float* acc = Floats(at_.products);
    for (std::int64_t i = 0; i < count; i += kMlaExpandedTile) {
      const std::int64_t rows = count - i < kMlaExpandedTile ? count - i : kMlaExpandedTile;
      Multiply(Bytes(at_.key_expansion), nope_columns_, args_.rank, args_.cache, width,
               cache_rows + i, rows, acc, nope_columns_);
      for (std::int64_t r = 0; r < rows; ++r) {
        Bf16* key = keys + (i + r) * key_width_;
        StoreRounded<Bf16>(acc + r * nope_columns_, args_.nope, key);
        std::memcpy(key + args_.nope, args_.cache + cache_rows[i + r] * width + args_.rank,
                    static_cast<std::size_t>(args_.extra) * sizeof(Bf16));
      }
      Multiply(reinterpret_cast<const std::byte*>(args_.value_weights), value_columns_, args_.rank,
               args_.cache, width, cache_rows + i, rows, acc, value_columns_);
      for (std::int64_t r = 0; r < rows; ++r) {
        StoreRounded<Bf16>(acc + r * value_columns_, args_.value_dim,
                           values + (i + r) * args_.value_dim);
      }
    }
    std::byte* panel = Bytes(at_.key_panels);
    for (std::int64_t i = 0; i < count; i += kPanelOutputs) {
      const std::int64_t outputs = count - i < kPanelOutputs ? count - i : kPanelOutputs;
      PackPanelBf16(keys + i * key_width_, key_width_, 1, outputs, key_width_, panel);
      panel += PanelBytes(PanelFormat::kBf16, key_width_);
    }
    panel = Bytes(at_.value_panels);
    for (std::int64_t c = 0; c < args_.value_dim; c += kPanelOutputs) {
      const std::int64_t left = args_.value_dim - c;
      PackPanelBf16(values + c, 1, args_.value_dim, left < kPanelOutputs ? left : kPanelOutputs,
                    count, panel);
      panel += PanelBytes(PanelFormat::kBf16, count);
    }
  }

  /// Positions of a part that a row sees.
  std::int64_t Visible(std::int64_t begin, std::int64_t count, std::int64_t row) const {
    const std::int64_t before = args_.first_position + row + 1 - begin;
    return before < count ? before : count;
  }

  /// Rows `row` .. `row` + `rows` - 1 over the part that was expanded last.
  void AttendPart(std::int64_t begin, std::int64_t count, std::int64_t row,
                  std::int64_t rows) const {
    const std::int64_t stride = RoundUp<std::int64_t>(count, kBlockInputs);
    float* scores = Floats(at_.scores);
    Bf16* high = Acts(at_.high);
    Bf16* low = Acts(at_.low);
    const std::int64_t seen =
        RoundUp<std::int64_t>(Visible(begin, count, row + rows - 1), kPanelOutputs);
    Multiply(Bytes(at_.key_panels), seen, key_width_, args_.query + row * args_.query_stride,
             args_.query_stride, nullptr, rows, scores, stride);
    float part_max[kMlaExpandedTile];
    float part_total[kMlaExpandedTile];
    const Vec scale = Set1(args_.scale);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* score = scores + r * stride;
      const std::int64_t visible = Visible(begin, count, row + r);
      ForEachVector(visible, [&](std::int64_t i, std::int64_t n) {
        StoreUpTo(LoadUpTo(score + i, n) * scale, score + i, n);
      });
      part_total[r] = ExpOfScores<float>(score, visible, &part_max[r]);
      ForEachVector(visible, [&](std::int64_t i, std::int64_t n) {
        const Vec p = LoadUpTo(score + i, n);
        const Vec rounded = RoundBf16(p);
        StoreUpTo(rounded, high + r * stride + i, n);
        StoreUpTo(p - rounded, low + r * stride + i, n);
      });
      const auto rest = static_cast<std::size_t>(stride - visible) * sizeof(Bf16);
      std::memset(static_cast<void*>(high + r * stride + visible), 0, rest);
      std::memset(static_cast<void*>(low + r * stride + visible), 0, rest);
    }
    float* high_sums = Floats(at_.products);
    float* low_sums = high_sums + kMlaExpandedTile * value_columns_;
    Multiply(Bytes(at_.value_panels), value_columns_, count, high, stride, nullptr, rows, high_sums,
             value_columns_);
    Multiply(Bytes(at_.value_panels), value_columns_, count, low, stride, nullptr, rows, low_sums,
             value_columns_);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* part = high_sums + r * value_columns_;
      const float* part_low = low_sums + r * value_columns_;
      for (std::int64_t c = 0; c < value_columns_; c += kLanes) {
        // Zeros behind the visible positions may turn -0 into +0; the last addition always does.
        Store((Load(part + c) + Load(part_low + c)) + Zero(), part + c);
      }
      Merge(begin, row + r, {part_max[r], part_total[r]}, part);
    }
  }

  void Merge(std::int64_t begin, std::int64_t row, SoftmaxSum part, const float* part_out) const {
    float* out = Floats(at_.sums) + row * value_columns_;
    SoftmaxSum sum{Floats(at_.maxima)[row], Floats(at_.totals)[row]};
    if (begin == 0) {
      sum = part;
      std::memcpy(out, part_out, static_cast<std::size_t>(args_.value_dim) * sizeof(float));
    } else {
      MergePart(args_.value_dim, part, part_out, &sum, out);
    }
    Floats(at_.maxima)[row] = sum.max;
    Floats(at_.totals)[row] = sum.total;
  }

  void Finish(std::int64_t row) const {
    float* out = Floats(at_.sums) + row * value_columns_;
    const Vec total = Set1(Floats(at_.totals)[row]);
    ForEachVector(args_.value_dim, [&](std::int64_t c, std::int64_t n) {
      StoreUpTo(LoadUpTo(out + c, n) / total, out + c, n);
    });
    Bf16* target = args_.out + row * args_.out_stride;
    if (args_.gate == nullptr) {
      StoreRounded<Bf16>(out, args_.value_dim, target);
    } else {
      SigmoidGate<Bf16>(out, args_.gate + row * args_.gate_stride, args_.value_dim, target);
    }
  }

  const MlaExpandedArgs& args_;
  const MlaExpandedScratch at_;
  const std::int64_t key_width_;
  const std::int64_t nope_columns_;
  const std::int64_t value_columns_;
};

inline void MlaExpanded(const MlaExpandedArgs& args) { MlaExpansion(args).Run(); }

}  // namespace megalith::kernels::MEGALITH_PATH
