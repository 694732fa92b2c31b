// Attention of a drafter's block. The queries of a block (rows times heads of one key head) are
// enough to fill vectors, so lanes are queries: keys and values are broadcast, no sum crosses
// lanes, and a key row, widened once, serves all queries.

namespace megalith::kernels::MEGALITH_PATH {

/// The call's scratch. Query r * heads + h is a lane of `stride` lanes, a multiple of 16; those at
/// the end hold zeros.
struct DraftLanes {
  std::int64_t stride;
  float* query;    ///< [head_dim][stride]
  float* out;      ///< [head_dim][stride]: weighted values for weights relative to exp(max)
  float* weight;   ///< [kDraftPartKeys][stride] of the current part; scores at first
  float* max;      ///< [stride]
  float* total;    ///< [stride]: sum of the weights
  float* rescale;  ///< [stride]: to the maximum of the current part
  float* row;      ///< [stride]: row of the block, as a float
  float* tile;     ///< [kDraftPartKeys][tile_stride]: keys, then values of the current part
  std::int64_t tile_stride;
};

template <typename Act>
inline DraftLanes StartDraftLanes(const DraftAttentionArgs<Act>& args) {
  DraftLanes lanes;
  lanes.stride = RoundUp<std::int64_t>(args.rows * args.heads, kLanes);
  const std::int64_t stride = lanes.stride;
  lanes.query = args.scratch;
  lanes.out = lanes.query + args.head_dim * stride;
  lanes.weight = lanes.out + args.head_dim * stride;
  lanes.max = lanes.weight + kDraftPartKeys * stride;
  lanes.total = lanes.max + stride;
  lanes.rescale = lanes.total + stride;
  lanes.row = lanes.rescale + stride;
  lanes.tile = lanes.row + stride;
  lanes.tile_stride = RoundUp<std::int64_t>(args.head_dim, kLanes);
  for (std::int64_t i = 0; i < 2 * args.head_dim * stride; i += kLanes) {
    Store(Zero(), lanes.query + i);  // and out
  }
  for (std::int64_t i = 0; i < stride; i += kLanes) {
    Store(Set1(-std::numeric_limits<float>::infinity()), lanes.max + i);
    Store(Zero(), lanes.total + i);
    Store(Zero(), lanes.row + i);
  }
  for (std::int64_t r = 0; r < args.rows; ++r) {
    for (std::int64_t h = 0; h < args.heads; ++h) {
      const Act* q = args.q + r * args.q_row_stride + h * args.q_head_stride;
      const std::int64_t lane = r * args.heads + h;
      lanes.row[lane] = static_cast<float>(r);
      for (std::int64_t d = 0; d < args.head_dim; ++d) {
        lanes.query[d * stride + lane] = Widen(q[d]);
      }
    }
  }
  return lanes;
}

/// tile = `count` rows, widened; row(i) is a pointer.
template <typename Row>
inline void FillDraftTile(const DraftLanes& lanes, std::int64_t count, std::int64_t dim, Row row) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto* source = row(i);
    float* target = lanes.tile + i * lanes.tile_stride;
    ForEachVector(dim, [&](std::int64_t d, std::int64_t n)
                           MEGALITH_INLINE_LAMBDA { Store(LoadUpTo(source + d, n), target + d); });
  }
}

/// Scores of kKeys keys from `key` on for the 16 queries from `lane` on.
template <int kKeys>
inline void ScoreDraftKeys(const DraftLanes& lanes, std::int64_t lane, std::int64_t key,
                           std::int64_t dim, float scale) {
  const float* keys = lanes.tile + key * lanes.tile_stride;
  Vec sum[kKeys];
  ForEachConstant<kKeys>([&](auto i) { sum[i] = Zero(); });
  for (std::int64_t d = 0; d < dim; ++d) {
    const Vec query = Load(lanes.query + d * lanes.stride + lane);
    ForEachConstant<kKeys>(
        [&](auto i) { sum[i] = sum[i] + Set1(keys[i * lanes.tile_stride + d]) * query; });
  }
  ForEachConstant<kKeys>(
      [&](auto i) { Store(sum[i] * Set1(scale), lanes.weight + (key + i) * lanes.stride + lane); });
}

/// Scores of `count` keys -> weights, for the 16 queries from `lane` on. If kHides, key i is the
/// block's row first_row + i, hidden from the rows before it: its weight is 0.
template <bool kHides>
inline void WeightDraftKeys(const DraftLanes& lanes, std::int64_t lane, std::int64_t count,
                            std::int64_t first_row) {
  const Vec row = Load(lanes.row + lane);
  const Vec old_max = Load(lanes.max + lane);
  Vec max = old_max;
  for (std::int64_t i = 0; i < count; ++i) {
    float* score = lanes.weight + i * lanes.stride + lane;
    Vec value = Load(score);
    if constexpr (kHides) {
      const Mask hidden = Less(row, Set1(static_cast<float>(first_row + i)));
      value = Select(hidden, Set1(-std::numeric_limits<float>::infinity()), value);
      Store(value, score);
    }
    max = Max(value, max);
  }
  const Vec rescale = ExpOf(old_max - max);
  Vec total = Load(lanes.total + lane) * rescale;
  for (std::int64_t i = 0; i < count; ++i) {
    float* weight = lanes.weight + i * lanes.stride + lane;
    const Vec value = ExpOf(Load(weight) - max);
    Store(value, weight);
    total = total + value;
  }
  Store(max, lanes.max + lane);
  Store(rescale, lanes.rescale + lane);
  Store(total, lanes.total + lane);
}

/// out = out * rescale + sum over `count` keys of weight * value, for kChannels channels from `c`
/// on and the 16 queries from `lane` on. If kHides, the value of a hidden key does not even meet
/// its weight: 0 times a NaN is one.
template <bool kHides, int kChannels>
inline void AddDraftValues(const DraftLanes& lanes, std::int64_t lane, std::int64_t c,
                           std::int64_t count, std::int64_t first_row) {
  const Vec row = Load(lanes.row + lane);
  const Vec rescale = Load(lanes.rescale + lane);
  float* out = lanes.out + c * lanes.stride + lane;
  Vec sum[kChannels];
  ForEachConstant<kChannels>([&](auto j) { sum[j] = Load(out + j * lanes.stride) * rescale; });
  for (std::int64_t i = 0; i < count; ++i) {
    const Vec weight = Load(lanes.weight + i * lanes.stride + lane);
    const float* value = lanes.tile + i * lanes.tile_stride + c;
    ForEachConstant<kChannels>([&](auto j) {
      const Vec next = sum[j] + weight * Set1(value[j]);
      if constexpr (kHides) {
        sum[j] = Select(Less(row, Set1(static_cast<float>(first_row + i))), sum[j], next);
      } else {
        sum[j] = next;
      }
    });
  }
  ForEachConstant<kChannels>([&](auto j) { Store(sum[j], out + j * lanes.stride); });
}

/// At most kDraftPartKeys keys: key(i) and value(i) are rows.
template <bool kHides, typename Key, typename Value>
inline void AttendDraftPart(const DraftLanes& lanes, std::int64_t dim, float scale,
                            std::int64_t count, std::int64_t first_row, Key key, Value value) {
  FillDraftTile(lanes, count, dim, key);
  for (std::int64_t lane = 0; lane < lanes.stride; lane += kLanes) {
    std::int64_t i = 0;
    for (; i + kDraftKeys <= count; i += kDraftKeys) {
      ScoreDraftKeys<kDraftKeys>(lanes, lane, i, dim, scale);
    }
    for (; i < count; ++i) ScoreDraftKeys<1>(lanes, lane, i, dim, scale);
    WeightDraftKeys<kHides>(lanes, lane, count, first_row);
  }
  FillDraftTile(lanes, count, dim, value);
  for (std::int64_t lane = 0; lane < lanes.stride; lane += kLanes) {
    std::int64_t c = 0;
    for (; c + kDraftKeys <= dim; c += kDraftKeys) {
      AddDraftValues<kHides, kDraftKeys>(lanes, lane, c, count, first_row);
    }
    for (; c < dim; ++c) AddDraftValues<kHides, 1>(lanes, lane, c, count, first_row);
  }
}

template <bool kCausal, typename Act>
inline void AttendDraftBlock(const DraftAttentionArgs<Act>& args, const DraftLanes& lanes) {
  for (std::int64_t r = 0; r < args.rows; r += kDraftPartKeys) {
    const std::int64_t left = args.rows - r;
    AttendDraftPart<kCausal>(
        lanes, args.head_dim, args.scale, left < kDraftPartKeys ? left : kDraftPartKeys, r,
        [&](std::int64_t i) { return args.block_k + (r + i) * args.block_stride; },
        [&](std::int64_t i) { return args.block_v + (r + i) * args.block_stride; });
  }
}

template <typename Act>
void DraftAttention(const DraftAttentionArgs<Act>& args) {
  const DraftLanes lanes = StartDraftLanes(args);
  for (std::int64_t t = args.first_position; t < args.end_position; t += kDraftPartKeys) {
    const std::int64_t left = args.end_position - t;
    const std::int64_t slot = t % args.capacity;
    const auto offset = [&](std::int64_t i) {
      const std::int64_t at = slot + i;
      return (at < args.capacity ? at : at % args.capacity) * args.context_stride;
    };
    AttendDraftPart<false>(
        lanes, args.head_dim, args.scale, left < kDraftPartKeys ? left : kDraftPartKeys, 0,
        [&](std::int64_t i) { return args.context_k + offset(i); },
        [&](std::int64_t i) { return args.context_v + offset(i); });
  }
  if (args.causal) {
    AttendDraftBlock<true>(args, lanes);
  } else {
    AttendDraftBlock<false>(args, lanes);
  }
  for (std::int64_t lane = 0; lane < lanes.stride; lane += kLanes) {
    const Vec total = Load(lanes.total + lane);
    for (std::int64_t c = 0; c < args.head_dim; ++c) {
      float* out = lanes.out + c * lanes.stride + lane;
      Store(RoundToAct<Act>(Load(out) / total), out);
    }
  }
  for (std::int64_t r = 0; r < args.rows; ++r) {
    for (std::int64_t h = 0; h < args.heads; ++h) {
      Act* out = args.out + r * args.out_row_stride + h * args.out_head_stride;
      const float* rounded = lanes.out + r * args.heads + h;
      for (std::int64_t c = 0; c < args.head_dim; ++c) {
        out[c] = RoundTo<Act>(rounded[c * lanes.stride]);
      }
    }
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
