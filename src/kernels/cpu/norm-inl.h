// RMS norm, alone, with rotation and after the attention-residual mix.

namespace megalith::kernels::MEGALITH_PATH {

/// Sum of element(offset, n) over the vectors of `count` elements, in the order of rule 2.
template <typename Element>
inline float SumVectors(std::int64_t count, Element element) {
  Vec sum = Zero();
  ForEachVector(count, [&](std::int64_t i, std::int64_t n)
                           MEGALITH_INLINE_LAMBDA { sum = sum + element(i, n); });
  return SumLanes(sum);
}

template <typename Act>
inline float InverseRms(const Act* x, std::int64_t count, float eps) {
  const float sum = SumVectors(count, [&](std::int64_t i, std::int64_t n) MEGALITH_INLINE_LAMBDA {
    const Vec v = LoadUpTo(x + i, n);
    return v * v;
  });
  return Rsqrt(sum / static_cast<float>(count) + eps);
}

template <typename Act>
void RmsNorm(const RmsNormArgs<Act>& args) {
  const Vec inverse_rms = Set1(InverseRms(args.in, args.count, args.eps));
  ForEachVector(args.count, [&](std::int64_t i, std::int64_t n) {
    const Vec normed = LoadUpTo(args.in + i, n) * inverse_rms;
    StoreUpTo(normed * LoadUpTo(args.weight + i, n), args.out + i, n);
  });
}

template <typename Act>
void HeadNormRotary(const HeadNormRotaryArgs<Act>& args) {
  const std::int64_t half = args.head_dim / 2;
  for (std::int64_t head = 0; head < args.heads; ++head) {
    const Act* in = args.in + head * args.in_stride;
    Act* out = args.out + head * args.out_stride;
    const Vec inverse_rms = Set1(InverseRms(in, args.head_dim, args.eps));
    const auto normed = [&](std::int64_t i, std::int64_t n) MEGALITH_INLINE_LAMBDA {
      return RoundToAct<Act>((LoadUpTo(in + i, n) * inverse_rms) * LoadUpTo(args.weight + i, n));
    };
    ForEachVector(half, [&](std::int64_t j, std::int64_t n) MEGALITH_INLINE_LAMBDA {
      const Vec first = normed(j, n);
      const Vec second = normed(half + j, n);
      const Vec cos = LoadUpTo(args.cos + j, n);
      const Vec sin = LoadUpTo(args.sin + j, n);
      StoreUpTo(first * cos - second * sin, out + j, n);
      StoreUpTo(second * cos + first * sin, out + half + j, n);
    });
  }
}

/// scores[s] of the sources from `first` on, kCount at a time while there are as many: a source's
/// sums alone are two chains that wait for their additions.
template <int kCount, typename Act>
inline void ScoreSources(const AttnResNormArgs<Act>& args, std::int64_t first, float* scores) {
  for (; first + kCount <= args.num_sources; first += kCount) {
    const Act* const* sources = args.sources + first;
    Vec squares[kCount];
    Vec products[kCount];
    ForEachConstant<kCount>([&](auto s)
                                MEGALITH_INLINE_LAMBDA { squares[s] = products[s] = Zero(); });
    ForEachVector(args.hidden, [&](std::int64_t i, std::int64_t n) MEGALITH_INLINE_LAMBDA {
      const Vec fold = LoadUpTo(args.fold + i, n);
      ForEachConstant<kCount>([&](auto s) MEGALITH_INLINE_LAMBDA {
        const Vec value = LoadUpTo(sources[s] + i, n);
        squares[s] = squares[s] + value * value;
        products[s] = products[s] + value * fold;
      });
    });
    for (int s = 0; s < kCount; ++s) {
      const float mean = SumLanes(squares[s]) / static_cast<float>(args.hidden);
      scores[first + s] = Rsqrt(mean + args.eps) * SumLanes(products[s]);
    }
  }
  if constexpr (kCount > 1) ScoreSources<kCount / 2>(args, first, scores);
}

template <typename Act>
void AttnResNorm(const AttnResNormArgs<Act>& args) {
  if (args.num_sources == 1) {
    RmsNorm(RmsNormArgs<Act>{args.sources[0], args.hidden, args.norm_weight, args.eps, args.out});
    return;
  }
  float* scores = args.scratch;
  ScoreSources<4>(args, 0, scores);
  float max = scores[0];
  for (std::int64_t s = 1; s < args.num_sources; ++s) max = scores[s] > max ? scores[s] : max;
  for (std::int64_t s = 0; s < args.num_sources; ++s) scores[s] = Exp(scores[s] - max);
  const float sum = SumVectors(
      args.num_sources, [&](std::int64_t i, std::int64_t n) { return LoadUpTo(scores + i, n); });
  for (std::int64_t s = 0; s < args.num_sources; ++s) scores[s] = scores[s] / sum;
  Vec squares = Zero();
  ForEachBlock(args.hidden, [&](std::int64_t i, auto block) MEGALITH_INLINE_LAMBDA {
    auto mixed = ZeroBlock(block);
    for (std::int64_t s = 0; s < args.num_sources; ++s) {
      mixed = mixed + Set1(scores[s]) * LoadBlock(args.sources[s] + i, block);
    }
    mixed = RoundToAct<Act>(mixed);
    StoreBlock(mixed, args.out + i, block);
    AddInOrder(squares, mixed * mixed);
  });
  const Vec inverse_rms =
      Set1(Rsqrt(SumLanes(squares) / static_cast<float>(args.hidden) + args.eps));
  ForEachVector(args.hidden, [&](std::int64_t i, std::int64_t n) {
    const Vec normed = LoadUpTo(args.out + i, n) * inverse_rms;
    StoreUpTo(normed * LoadUpTo(args.norm_weight + i, n), args.out + i, n);
  });
}

}  // namespace megalith::kernels::MEGALITH_PATH
