// Panels times rows. The order of every addition is rule 1 of numerics.h; everything else here
// (how many rows share a reading of the weights) does not touch the bits.

namespace megalith::kernels::MEGALITH_PATH {

/// Four input pairs of MXFP4, unscaled, in float. A lane at a time: only float activations use it.
struct Mxfp4Pairs {
  static constexpr int kPairs = 4;
  static constexpr std::int64_t kBytes = 64;
  std::uint32_t words[kLanes];

  explicit Mxfp4Pairs(const std::byte* p) { std::memcpy(words, p, sizeof(words)); }
  template <int kInput>
  Vec Input() const {
    float values[kLanes];
    for (int n = 0; n < kLanes; ++n) {
      values[n] = kE2m1[words[n] >> (kInput % 4 * 8 + kInput / 4 * 4) & 15u];
    }
    return Load(values);
  }
  template <int kPair>
  PairWeights Pair() const {
    return {Input<2 * kPair>(), Input<2 * kPair + 1>()};
  }
};

/// Two input pairs of int8, as Mxfp4Pairs.
struct Int8Pairs {
  static constexpr int kPairs = 2;
  static constexpr std::int64_t kBytes = 64;
  std::uint8_t codes[kLanes][4];

  explicit Int8Pairs(const std::byte* p) { std::memcpy(codes, p, sizeof(codes)); }
  template <int kInput>
  Vec Input() const {
    float values[kLanes];
    for (int n = 0; n < kLanes; ++n) {
      values[n] = static_cast<float>(codes[n][kInput] - kInt8Offset);
    }
    return Load(values);
  }
  template <int kPair>
  PairWeights Pair() const {
    return {Input<2 * kPair>(), Input<2 * kPair + 1>()};
  }
};

/// How a product of some rows reads its weights.
struct Reading {
  int panels;     ///< side by side
  bool requests;  ///< far ahead, by software
};

/// One row is bound by memory, and so are few rows where their arithmetic is cheap: the hardware
/// follows dense streams by itself, and several of them faster than one (int8, GB/s with 1, 2, 4
/// panels: 26.4, 28.0, 30.8 by vpdpbusd; with AVX2 23.5 and 31 with 2 and 4), but not two of MXFP4
/// with one row (22 for 31). Requests only slow them down: one row, 2 to 8 KiB ahead, 0.6 to 0.9.
/// One Zen 4 core.
///
/// More rows are bound by arithmetic. Their loads come too seldom for the hardware to look far
/// ahead, and what it fetches comes late: the times of reading and of computing add up. Requests
/// hide the former.
template <PanelFormat kFormat, int kRows>
constexpr Reading ReadingFor() {
  constexpr bool kIsInt8 = kFormat == PanelFormat::kInt8;
  if (kRows == 1) return {kFormat == PanelFormat::kMxfp4 ? 1 : kIsInt8 ? 4 : 2, false};
#ifdef MEGALITH_PATH_JOINED_PAIRS
  // What SumJoinedBlocks holds in registers: up to 16 chains.
  if (kFormat == PanelFormat::kBf16) {
    if (kRows <= 3) return {4, false};
    return {2, true};
  }
  if (kIsInt8 && kRows == 2) return {4, false};
  if (kIsInt8 && kRows == 3) return {2, true};
#endif
  return {1, true};
}

/// Requests kBytes from some distance behind p on. To the L2: with the L1 as target and a distance
/// that fits it, requests arrive late and hold what the loads need (MXFP4 with 2, 3, 4 rows by
/// vpdpbusd, 2 KiB ahead 18.6, 14.7, 11.6 GB/s, 8 KiB ahead to the L1 no better, to the L2 22.1,
/// 16.3, 12.3; 16 KiB the same). Callers are always inlined, too: GCC takes a function that only
/// prefetches for one without effect and removes its calls.
template <std::int64_t kBytes>
MEGALITH_INLINE void PrefetchAhead(const std::byte* p) {
  constexpr std::int64_t kAheadBytes = 8192;
  ForEachConstant<static_cast<int>(kBytes / 64)>(
      [&](auto i) MEGALITH_INLINE_LAMBDA { PrefetchLine(p + kAheadBytes + i * 64); });
}

/// The weights of one format: where block b of a panel lies and what loads its pairs. A loader has
/// kPairs and kBytes, reads kBytes on construction and unpacks pair j of them by Pair<j>().
template <PanelFormat kFormat>
struct Panel {
  using Layout = QuantizedPanel<kFormat>;
  using Loaded = std::conditional_t<kFormat == PanelFormat::kMxfp4, Mxfp4Pairs, Int8Pairs>;
  static constexpr std::int64_t kBlockBytes = Layout::kCodeBytes;
  const std::byte* panel;

  explicit Panel(const std::byte* start) : panel(start) {}
  const std::byte* Block(std::int64_t b) const { return panel + Layout::Codes(b); }
  Vec Scales(std::int64_t b) const { return LoadScales<kFormat>(panel + Layout::Scales(b)); }
  Vec Scaled(Vec sum, std::int64_t b) const { return sum * Scales(b); }
  template <int kRows>
  MEGALITH_INLINE void Prefetch(std::int64_t b) const {
    if constexpr (ReadingFor<kFormat, kRows>().requests) {
      if (b % Layout::kGroupBlocks == 0) PrefetchAhead<64>(panel + Layout::Scales(b));
      PrefetchAhead<kBlockBytes>(Block(b));
    }
  }
};

template <>
struct Panel<PanelFormat::kBf16> {
  using Loaded = Bf16Pair;
  static constexpr std::int64_t kBlockBytes = kBlockInputs / 2 / Loaded::kPairs * Loaded::kBytes;
  const std::byte* panel;

  explicit Panel(const std::byte* start) : panel(start) {}
  const std::byte* Block(std::int64_t b) const { return panel + b * kBlockBytes; }
  Vec Scaled(Vec sum, std::int64_t /*b*/) const { return sum; }
  template <int kRows>
  MEGALITH_INLINE void Prefetch(std::int64_t b) const {
    if constexpr (ReadingFor<PanelFormat::kBf16, kRows>().requests) {
      PrefetchAhead<kBlockBytes>(Block(b));
    }
  }
};

/// Blocks first .. last - 1 of all inputs.
struct Part {
  std::int64_t first;
  std::int64_t last;

  std::int64_t size() const { return last - first; }
};

/// Calls function(part) for the parts in which a product walks its inputs. The rows of up to one
/// row block are read with each panel as a whole, for the sake of its stream. More rows are
/// prepared (converted, copied) part by part, once for all panels of the call: a row block's inputs
/// and one panel's weights of a part, `row_bytes` and `weight_bytes` a block, share the L1, the
/// weights of all panels stay in the L2 while the row blocks pass. Sums wait in the output between
/// parts.
template <typename X, typename Function>
inline void ForEachPart(const MatmulArgs<X>& args, std::int64_t row_bytes,
                        std::int64_t weight_bytes, Function function) {
  constexpr std::int64_t kL1Bytes = 24 << 10;
  constexpr std::int64_t kL2Bytes = 256 << 10;
  constexpr std::int64_t kWholeGroups = 4;  // of scales, in any format
  const std::int64_t blocks = CeilDiv<std::int64_t>(args.inputs, kBlockInputs);
  std::int64_t size = blocks;
  if (args.rows > kMatmulRowBlock) {
    const std::int64_t by_l1 = kL1Bytes / (kMatmulRowBlock * row_bytes + weight_bytes);
    const std::int64_t by_l2 = kL2Bytes / (args.num_panels * weight_bytes);
    const std::int64_t most = by_l1 < by_l2 ? by_l1 : by_l2;
    size = most < kWholeGroups ? kWholeGroups : most / kWholeGroups * kWholeGroups;
  }
  for (std::int64_t first = 0; first < blocks; first += size) {
    function(Part{first, blocks - first < size ? blocks : first + size});
  }
}

/// Calls add(count, start, acc) for `count` (an integral_constant) panels at a time, the first of
/// which begins at `start`; acc[j * kRows + r] has the sums of row r of panel j: +0 in the first
/// part, then what the part before left.
template <int kRows, int kPanels, typename Add>
MEGALITH_INLINE void ForEachPanel(const std::byte* panels, std::int64_t num_panels,
                                  std::int64_t panel_bytes, bool starts, float* out,
                                  std::int64_t out_stride, Add add) {
  std::int64_t p = 0;
  const auto some = [&](auto count) MEGALITH_INLINE_LAMBDA {
    Vec acc[count * kRows];
    const auto target = [&](int i) {
      return out + (i % kRows) * out_stride + (p + i / kRows) * kPanelOutputs;
    };
    for (int i = 0; i < count * kRows; ++i) acc[i] = starts ? Zero() : Load(target(i));
    add(count, panels + p * panel_bytes, acc);
    for (int i = 0; i < count * kRows; ++i) Store(acc[i], target(i));
    p += count;
  };
  while (p + kPanels <= num_panels) some(std::integral_constant<int, kPanels>());
  if constexpr (kPanels > 1) {
    while (p < num_panels) some(std::integral_constant<int, 1>());
  }
}

/// Calls function(std::integral_constant<int, rows>()), 1 <= rows <= kMatmulRowBlock.
template <typename Function>
inline void WithRows(std::int64_t rows, Function function) {
  static_assert(kMatmulRowBlock == 8);
  switch (rows) {
    case 1:
      return function(std::integral_constant<int, 1>());
    case 2:
      return function(std::integral_constant<int, 2>());
    case 3:
      return function(std::integral_constant<int, 3>());
    case 4:
      return function(std::integral_constant<int, 4>());
    case 5:
      return function(std::integral_constant<int, 5>());
    case 6:
      return function(std::integral_constant<int, 6>());
    case 7:
      return function(std::integral_constant<int, 7>());
    default:
      return function(std::integral_constant<int, 8>());
  }
}

/// Row r of the product's rows.
template <typename X>
inline const X* InputRow(const MatmulArgs<X>& args, std::int64_t r) {
  return args.x + (args.row_indices != nullptr ? args.row_indices[r] : r) * args.x_stride;
}

template <bool kFused>
inline Vec MultiplyAdd(Vec a, Vec b, Vec c) {
  if constexpr (kFused) {
    return FusedMultiplyAdd(a, b, c);
  } else {
    return a * b + c;
  }
}

/// A pair of a block that UnpackBlock has written.
struct FloatPair {
  static constexpr int kPairs = 1;
  static constexpr std::int64_t kBytes = 2 * kLanes * sizeof(float);
  PairWeights weights;

  explicit FloatPair(const std::byte* p)
      : weights{Load(reinterpret_cast<const float*>(p)),
                Load(reinterpret_cast<const float*>(p) + kLanes)} {}
  template <int kPair>
  PairWeights Pair() const {
    return weights;
  }
};

/// Calls function(pair, weights) for the 16 pairs of a block stored for Loaded.
template <typename Loaded, typename Function>
inline void ForEachPair(const std::byte* block, Function function) {
  for (int first = 0; first < kBlockInputs / 2; first += Loaded::kPairs, block += Loaded::kBytes) {
    const Loaded loaded(block);
    ForEachConstant<Loaded::kPairs>(
        [&](auto j) { function(first + j, loaded.template Pair<j>()); });
  }
}

template <typename Loaded>
inline void UnpackBlock(const std::byte* block, float* values) {
  ForEachPair<Loaded>(block, [&](int pair, PairWeights w) {
    Store(w.even, values + pair * 2 * kLanes);
    Store(w.odd, values + pair * 2 * kLanes + kLanes);
  });
}

/// sums[r] = even chain + odd chain of one block for kRows rows of x, row stride x_stride floats.
template <int kRows, typename Loaded, bool kFused>
inline void SumSplitBlock(const std::byte* block, const float* x, std::int64_t x_stride,
                          Vec* sums) {
  Vec even[kRows];
  Vec odd[kRows];
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = Zero();
  ForEachPair<Loaded>(block, [&](int pair, PairWeights w) {
    // Not a loop: GCC 12 vectorises a loop over two rows with a load of the row behind them, which
    // need not be mapped. (It never uses that row, so bits are right; valgrind shows the load,
    // sanitizers do not.)
    ForEachConstant<kRows>([&](auto r) {
      const float* inputs = x + r * x_stride + 2 * pair;
      even[r] = MultiplyAdd<kFused>(w.even, Set1(inputs[0]), even[r]);
      odd[r] = MultiplyAdd<kFused>(w.odd, Set1(inputs[1]), odd[r]);
    });
  });
  for (int r = 0; r < kRows; ++r) sums[r] = even[r] + odd[r];
}

/// SumSplitBlock for any number of rows, as many at a time as the registers hold.
template <int kRows, typename Loaded, bool kFused>
inline void SumSplitBlockInPasses(const std::byte* block, const float* x, std::int64_t x_stride,
                                  Vec* sums) {
  if constexpr (kRows <= kMatmulRowsPerPass) {
    SumSplitBlock<kRows, Loaded, kFused>(block, x, x_stride, sums);
  } else {
    SumSplitBlock<kMatmulRowsPerPass, Loaded, kFused>(block, x, x_stride, sums);
    SumSplitBlockInPasses<kRows - kMatmulRowsPerPass, Loaded, kFused>(
        block, x + kMatmulRowsPerPass * x_stride, x_stride, sums + kMatmulRowsPerPass);
  }
}

/// acc[r][16 p + n] of one part for kRows rows; x: [kRows][part.size() * 32] floats.
template <int kRows, PanelFormat kFormat, bool kFused>
void MultiplySplitPairs(const std::byte* panels, std::int64_t num_panels, std::int64_t panel_bytes,
                        Part part, const float* x, float* out, std::int64_t out_stride) {
  using Loaded = typename Panel<kFormat>::Loaded;
  const std::int64_t x_stride = part.size() * kBlockInputs;
  ForEachPanel<kRows, ReadingFor<kFormat, kRows>().panels>(
      panels, num_panels, panel_bytes, part.first == 0, out, out_stride,
      [&](auto count, const std::byte* start, Vec* acc) MEGALITH_INLINE_LAMBDA {
        const float* inputs = x;
        for (std::int64_t b = part.first; b < part.last; ++b, inputs += kBlockInputs) {
          ForEachConstant<count>([&](auto j) MEGALITH_INLINE_LAMBDA {
            const Panel<kFormat> panel(start + j * panel_bytes);
            panel.template Prefetch<kRows>(b);
            // Or GCC keeps, and spills, the broadcast values for the other panel.
            asm("" : "+r"(inputs));
            Vec sums[kRows];
            if constexpr (IsQuantized(kFormat) && kRows > kMatmulRowsPerPass) {
              // Codes cost more to unpack than floats to load again.
              alignas(64) float values[kBlockInputs * kPanelOutputs];
              UnpackBlock<Loaded>(panel.Block(b), values);
              SumSplitBlockInPasses<kRows, FloatPair, kFused>(
                  reinterpret_cast<const std::byte*>(values), inputs, x_stride, sums);
            } else {
              SumSplitBlockInPasses<kRows, Loaded, kFused>(panel.Block(b), inputs, x_stride, sums);
            }
            for (int r = 0; r < kRows; ++r) {
              acc[j * kRows + r] = acc[j * kRows + r] + panel.Scaled(sums[r], b);
            }
          });
        }
      });
}

/// Copies one part of some rows to [rows][part.size() * 32] floats, zeros beyond `inputs`.
template <typename X>
inline void ExpandRows(const MatmulArgs<X>& args, std::int64_t first_row, std::int64_t rows,
                       Part part) {
  const std::int64_t begin = part.first * kBlockInputs;
  const std::int64_t padded = part.size() * kBlockInputs;
  const std::int64_t inputs = args.inputs - begin < padded ? args.inputs - begin : padded;
  for (std::int64_t r = 0; r < rows; ++r) {
    const X* source = InputRow(args, first_row + r) + begin;
    float* target = args.scratch + r * padded;
    ForEachVector(inputs, [&](std::int64_t i, std::int64_t n) {
      Store(LoadUpTo(source + i, n), target + i);
    });
    const std::int64_t written = RoundUp<std::int64_t>(inputs, kLanes);
    if (written < padded) Store(Zero(), target + written);
  }
}

/// Calls function(part, first row, rows) for the parts and row blocks of a product, in the order of
/// ForEachPart.
template <typename X, typename Function>
inline void ForEachRowBlock(const MatmulArgs<X>& args, std::int64_t row_bytes,
                            std::int64_t weight_bytes, Function function) {
  ForEachPart(args, row_bytes, weight_bytes, [&](Part part) {
    for (std::int64_t first = 0; first < args.rows; first += kMatmulRowBlock) {
      const std::int64_t left = args.rows - first;
      function(part, first, left < kMatmulRowBlock ? left : kMatmulRowBlock);
    }
  });
}

template <typename X, PanelFormat kFormat>
void MatmulSplitPairs(const MatmulArgs<X>& args) {
  constexpr bool kFused = std::is_same_v<X, Bf16>;
  const std::int64_t panel_bytes = PanelBytes(kFormat, args.inputs);
  ForEachRowBlock(args, kBlockInputs * sizeof(float), Panel<kFormat>::kBlockBytes,
                  [&](Part part, std::int64_t first, std::int64_t rows) {
                    ExpandRows(args, first, rows, part);
                    float* out = args.acc + first * args.acc_stride;
                    WithRows(rows, [&](auto count) {
                      MultiplySplitPairs<count, kFormat, kFused>(args.panels, args.num_panels,
                                                                 panel_bytes, part, args.scratch,
                                                                 out, args.acc_stride);
                    });
                  });
}

}  // namespace megalith::kernels::MEGALITH_PATH
