// Panels times rows on matrix tiles (tiles.h). Every weight format becomes bf16 in the layout of a
// bf16 panel, whose 1024 bytes of one block are a B tile as they lie; the accumulator tile runs
// over all blocks, so the order of additions is kSplitPairs for any number of rows.

namespace megalith::kernels::MEGALITH_PATH {

// In the many-rows form the accumulators are stored and loaded again every kTileChunkBlocks blocks:
// the x of all rows (256 rows: 512 KiB) and two expanded panels (64 KiB) then stay in the L2, and
// the visits cost about a sixteenth of the products.

// E2M1 values as bf16, twice: the permutation of 16-bit elements looks at five bits of an index,
// and the fifth belongs to the next code.
alignas(64) inline constexpr std::uint16_t kE2m1Bf16[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
    0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
    0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

/// Even and odd inputs of a pair, as floats that are bf16 numbers, in a row of a B tile.
MEGALITH_INLINE void StorePair(Vec even, Vec odd, std::byte* row) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  _mm512_store_si512(row, _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even.v), 16),
                                          _mm512_and_si512(_mm512_castps_si512(odd.v), high)));
}

/// One block of a quantised panel as a B tile: round(integer code or E2M1 value * scale).
template <PanelFormat kFormat>
void ExpandToTile(const Panel<kFormat>& panel, std::int64_t block, std::byte* tile);

/// Exact: scaling moves the exponent. Where the result leaves the range of bf16 it becomes zero or
/// infinity, as a multiplication would.
template <>
inline void ExpandToTile<PanelFormat::kMxfp4>(const Panel<PanelFormat::kMxfp4>& panel,
                                              std::int64_t block, std::byte* tile) {
  const std::byte* scale_bytes = panel.panel + QuantizedPanel<PanelFormat::kMxfp4>::Scales(block);
  const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scale_bytes));
  const Vec scale = panel.Scales(block);
  // E2M1 values have exponents -1 .. 2: within this range of scales nothing leaves bf16's.
  const bool stays_normal =
      _mm_cmpge_epu8_mask(scales, _mm_set1_epi8(2)) == 0xffff &&
      _mm_cmple_epu8_mask(scales, _mm_set1_epi8(static_cast<char>(252))) == 0xffff;
  const __m512i steps =
      _mm512_slli_epi32(_mm512_sub_epi32(_mm512_cvtepu8_epi32(scales), _mm512_set1_epi32(127)), 7);
  // Both halves of a lane get the exponent offset of the lane's output.
  const __m512i exponents = _mm512_or_si512(_mm512_slli_epi32(steps, 16),
                                            _mm512_and_si512(steps, _mm512_set1_epi32(0xffff)));
  const __m512i table = _mm512_load_si512(kE2m1Bf16);
  const auto store = [&](__m512i indices, std::byte* row) MEGALITH_INLINE_LAMBDA {
    const __m512i pair = _mm512_permutexvar_epi16(indices, table);
    if (stays_normal) {
      const __mmask32 nonzero = _mm512_test_epi16_mask(pair, _mm512_set1_epi16(0x7fff));
      _mm512_store_si512(row, _mm512_mask_add_epi16(pair, nonzero, pair, exponents));
    } else {
      const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
      StorePair(Vec{_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16))} * scale,
                Vec{_mm512_castsi512_ps(_mm512_and_si512(pair, high))} * scale, row);
    }
  };
  // Bytes 0 and 1 (2 and 3) of a lane at the bottom of its halves, where the permutation takes an
  // index; the low nibbles are inputs 0 .. 3, the high ones 4 .. 7.
  const __m512i lower =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13));
  const __m512i upper =
      _mm512_broadcast_i32x4(_mm_setr_epi8(2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15));
  const std::byte* codes = panel.Block(block);
  for (int line = 0; line < kBlockInputs / 8; ++line) {
    const __m512i words = _mm512_loadu_si512(codes + line * 64);
    const __m512i first = _mm512_shuffle_epi8(words, lower);
    const __m512i second = _mm512_shuffle_epi8(words, upper);
    std::byte* rows = tile + line * 4 * kTileRowBytes;
    store(first, rows);
    store(second, rows + kTileRowBytes);
    store(_mm512_srli_epi16(first, 4), rows + 2 * kTileRowBytes);
    store(_mm512_srli_epi16(second, 4), rows + 3 * kTileRowBytes);
  }
}

template <>
inline void ExpandToTile<PanelFormat::kInt8>(const Panel<PanelFormat::kInt8>& panel,
                                             std::int64_t block, std::byte* tile) {
  const Vec scale = panel.Scales(block);
  const std::byte* codes = panel.Block(block);
  const __m512i byte = _mm512_set1_epi32(0xff);
  const __m512i offset = _mm512_set1_epi32(kInt8Offset);
  const auto expand = [&](__m512i words) MEGALITH_INLINE_LAMBDA {
    const __m512i code = _mm512_sub_epi32(_mm512_and_si512(words, byte), offset);
    return RoundToAct<Bf16>(Vec{_mm512_cvtepi32_ps(code)} * scale);
  };
  for (int line = 0; line < kBlockInputs / 4; ++line) {
    const __m512i words = _mm512_loadu_si512(codes + line * 64);
    std::byte* rows = tile + line * 2 * kTileRowBytes;
    StorePair(expand(words), expand(_mm512_srli_epi32(words, 8)), rows);
    StorePair(expand(_mm512_srli_epi32(words, 16)), expand(_mm512_srli_epi32(words, 24)),
              rows + kTileRowBytes);
  }
}

/// Where a panel's blocks lie as B tiles, expanded if they are not stored so.
template <PanelFormat kFormat>
class TileBlocks {
 public:
  static constexpr bool kExpands = IsQuantized(kFormat);

  explicit TileBlocks(const std::byte* panel) : panel_(panel) {}

  /// B tiles of blocks first .. first + count - 1, one after the other; `store` has room for them.
  const std::byte* Get(std::int64_t first, std::int64_t count, std::byte* store) const {
    if constexpr (!kExpands) {
      return panel_.Block(first);
    } else {
      for (std::int64_t b = 0; b < count; ++b) {
        ExpandToTile<kFormat>(panel_, first + b, store + b * kTileBytes);
      }
      return store;
    }
  }

 private:
  Panel<kFormat> panel_;
};

/// x of some rows and blocks as A tiles: 64 bytes of a row are its inputs of one block.
struct TileRows {
  const std::byte* data;
  std::int64_t stride_bytes;

  const std::byte* At(std::int64_t row, std::int64_t block) const {
    return data + row * stride_bytes + block * kTileRowBytes;
  }
};

/// Inputs of blocks first .. first + count - 1 of every row: in place if the rows lie as tiles need
/// them, else copied to scratch with zeros beyond the end.
inline TileRows RowsForTiles(const MatmulArgs<Bf16>& args, std::int64_t first_row,
                             std::int64_t rows, std::int64_t first, std::int64_t count,
                             std::byte* scratch) {
  const std::int64_t begin = first * kBlockInputs;
  const std::int64_t stride = args.x_stride * std::int64_t{sizeof(Bf16)};
  if (args.row_indices == nullptr && args.inputs % kBlockInputs == 0) {
    return {reinterpret_cast<const std::byte*>(args.x + first_row * args.x_stride + begin), stride};
  }
  const std::int64_t end = begin + count * kBlockInputs;
  const std::int64_t inputs = (end < args.inputs ? end : args.inputs) - begin;
  const std::int64_t copy_stride = count * kTileRowBytes;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = first_row + r;
    const std::int64_t source = args.row_indices != nullptr ? args.row_indices[row] : row;
    std::byte* copy = scratch + r * copy_stride;
    const std::int64_t bytes = inputs * std::int64_t{sizeof(Bf16)};
    std::memcpy(copy, args.x + source * args.x_stride + begin, static_cast<std::size_t>(bytes));
    std::memset(copy + bytes, 0, static_cast<std::size_t>(copy_stride - bytes));
  }
  return {scratch, copy_stride};
}

/// `rows` rows of 64 bytes for each of the tiles; none: the tiles are not used.
template <int kCount>
void SetRows(TileShapes& shapes, const int (&tiles)[kCount], std::int64_t rows) {
  for (const int tile : tiles) {
    shapes.rows[tile] = static_cast<std::uint8_t>(rows);
    shapes.row_bytes[tile] = rows > 0 ? kTileRowBytes : 0;
  }
}

/// Up to 16 rows, kPanels panels side by side. C: tiles 0..3, A: 4, B: 5 and 6 in turn.
template <typename Tiles, PanelFormat kFormat, int kPanels>
void MultiplyFewRows(const MatmulArgs<Bf16>& args, const std::byte* panels,
                     std::int64_t panel_bytes, std::int64_t blocks, TileRows x, float* out) {
  constexpr std::int64_t kBlocksAtOnce = TileBlocks<kFormat>::kExpands ? 4 : 1;
  constexpr std::int64_t kStoreBytes =
      TileBlocks<kFormat>::kExpands ? kBlocksAtOnce * kTileBytes : 64;
  alignas(64) std::byte store[kPanels][kStoreBytes];
  ForEachConstant<kPanels>([&](auto j) { Tiles::template Zero<j>(); });
  for (std::int64_t first = 0; first < blocks; first += kBlocksAtOnce) {
    const std::int64_t count = blocks - first < kBlocksAtOnce ? blocks - first : kBlocksAtOnce;
    const std::byte* b[kPanels];
    for (int j = 0; j < kPanels; ++j) {
      b[j] = TileBlocks<kFormat>(panels + j * panel_bytes).Get(first, count, store[j]);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      Tiles::template Load<4>(x.At(0, first + i), x.stride_bytes);
      ForEachConstant<kPanels>([&](auto j) {
        constexpr int kB = 5 + j % 2;
        Tiles::template Load<kB>(b[j] + i * kTileBytes, kTileRowBytes);
        Tiles::template DotBf16<j, 4, kB>();
      });
    }
  }
  ForEachConstant<kPanels>([&](auto j) {
    Tiles::template Store<j>(out + j * kPanelOutputs,
                             args.acc_stride * std::int64_t{sizeof(float)});
  });
}

template <typename Tiles, PanelFormat kFormat>
void MatmulFewRows(const MatmulArgs<Bf16>& args, std::int64_t first_row, std::int64_t rows,
                   std::int64_t blocks, std::int64_t panel_bytes) {
  TileShapes shapes;
  SetRows(shapes, {0, 1, 2, 3, 4}, rows);
  SetRows(shapes, {5, 6}, kTileRows);
  Tiles::Configure(shapes);
  const TileRows x =
      RowsForTiles(args, first_row, rows, 0, blocks, reinterpret_cast<std::byte*>(args.scratch));
  float* out = args.acc + first_row * args.acc_stride;
  std::int64_t p = 0;
  const auto multiply = [&]<int kPanels>() {
    MultiplyFewRows<Tiles, kFormat, kPanels>(args, args.panels + p * panel_bytes, panel_bytes,
                                             blocks, x, out + p * kPanelOutputs);
    p += kPanels;
  };
  while (p + 4 <= args.num_panels) multiply.template operator()<4>();
  while (p + 2 <= args.num_panels) multiply.template operator()<2>();
  while (p < args.num_panels) multiply.template operator()<1>();
}

/// Rows [row, row + 16 kRowTiles) of x times kPanels panels over some blocks, added to out. C:
/// tiles 0..3 (row tile major), A: 4, 5, B: 6, 7.
template <typename Tiles, int kRowTiles, int kPanels>
void MultiplyTileBlock(TileRows x, std::int64_t row, const std::byte* const* b, std::int64_t blocks,
                       bool starts, float* out, std::int64_t out_stride) {
  const std::int64_t stride_bytes = out_stride * std::int64_t{sizeof(float)};
  const auto for_each_c = [&](auto function) {
    ForEachConstant<kRowTiles>([&](auto i) {
      ForEachConstant<kPanels>([&](auto j) {
        function(std::integral_constant<int, 2 * i + j>(),
                 out + i * kTileRows * out_stride + j * kPanelOutputs);
      });
    });
  };
  for_each_c([&](auto c, float* address) {
    if (starts) {
      Tiles::template Zero<c>();
    } else {
      Tiles::template Load<c>(address, stride_bytes);
    }
  });
  for (std::int64_t block = 0; block < blocks; ++block) {
    ForEachConstant<kRowTiles>([&](auto i) {
      Tiles::template Load<4 + i>(x.At(row + i * kTileRows, block), x.stride_bytes);
    });
    ForEachConstant<kPanels>(
        [&](auto j) { Tiles::template Load<6 + j>(b[j] + block * kTileBytes, kTileRowBytes); });
    ForEachConstant<kRowTiles>([&](auto i) {
      ForEachConstant<kPanels>([&](auto j) { Tiles::template DotBf16<2 * i + j, 4 + i, 6 + j>(); });
    });
  }
  for_each_c([&](auto c, float* address) { Tiles::template Store<c>(address, stride_bytes); });
}

/// One or two panels times all rows over one chunk of blocks.
template <typename Tiles, int kPanels>
void MultiplyTileChunk(const MatmulArgs<Bf16>& args, std::int64_t first_row, std::int64_t rows,
                       TileRows x, const std::byte* const* b, std::int64_t blocks, bool starts,
                       TileShapes* configured, float* out) {
  for (std::int64_t row = 0; row < rows; row += 2 * kTileRows) {
    const std::int64_t left = rows - row;
    const std::int64_t upper = left < kTileRows ? left : kTileRows;
    const std::int64_t lower = left - upper < kTileRows ? left - upper : kTileRows;
    TileShapes shapes;
    SetRows(shapes, {0, 1, 4}, upper);
    SetRows(shapes, {2, 3, 5}, lower);
    SetRows(shapes, {6, 7}, kTileRows);
    if (!(shapes == *configured)) {
      Tiles::Configure(shapes);
      *configured = shapes;
    }
    float* target = out + (first_row + row) * args.acc_stride;
    if (lower > 0) {
      MultiplyTileBlock<Tiles, 2, kPanels>(x, row, b, blocks, starts, target, args.acc_stride);
    } else {
      MultiplyTileBlock<Tiles, 1, kPanels>(x, row, b, blocks, starts, target, args.acc_stride);
    }
  }
}

template <typename Tiles, PanelFormat kFormat>
void MatmulManyRows(const MatmulArgs<Bf16>& args, std::int64_t first_row, std::int64_t rows,
                    std::int64_t blocks, std::int64_t panel_bytes) {
  auto* expanded = reinterpret_cast<std::byte*>(args.scratch);
  std::byte* x_copy =
      expanded + 2 * (blocks < kTileChunkBlocks ? blocks : kTileChunkBlocks) * kTileBytes;
  TileShapes configured;
  for (std::int64_t first = 0; first < blocks; first += kTileChunkBlocks) {
    const std::int64_t count =
        blocks - first < kTileChunkBlocks ? blocks - first : kTileChunkBlocks;
    const TileRows x = RowsForTiles(args, first_row, rows, first, count, x_copy);
    for (std::int64_t p = 0; p < args.num_panels; p += 2) {
      const std::int64_t panels = args.num_panels - p < 2 ? 1 : 2;
      const std::byte* b[2];
      for (std::int64_t j = 0; j < panels; ++j) {
        b[j] = TileBlocks<kFormat>(args.panels + (p + j) * panel_bytes)
                   .Get(first, count, expanded + j * count * kTileBytes);
      }
      float* out = args.acc + p * kPanelOutputs;
      if (panels == 2) {
        MultiplyTileChunk<Tiles, 2>(args, first_row, rows, x, b, count, first == 0, &configured,
                                    out);
      } else {
        MultiplyTileChunk<Tiles, 1>(args, first_row, rows, x, b, count, first == 0, &configured,
                                    out);
      }
    }
  }
}

template <typename Tiles, PanelFormat kFormat>
void MatmulTiles(const MatmulArgs<Bf16>& args) {
  const std::int64_t blocks = PaddedInputs(args.inputs) / kBlockInputs;
  const std::int64_t panel_bytes = PanelBytes(kFormat, args.inputs);
  for (std::int64_t first = 0; first < args.rows; first += kTileRowBlock) {
    const std::int64_t left = args.rows - first;
    const std::int64_t rows = left < kTileRowBlock ? left : kTileRowBlock;
    if (rows <= kTileRows) {
      MatmulFewRows<Tiles, kFormat>(args, first, rows, blocks, panel_bytes);
    } else {
      MatmulManyRows<Tiles, kFormat>(args, first, rows, blocks, panel_bytes);
    }
  }
  Tiles::Release();
}

}  // namespace megalith::kernels::MEGALITH_PATH
