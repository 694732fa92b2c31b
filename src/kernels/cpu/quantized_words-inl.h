// Codes of quantised weights as unsigned bytes, over the IntVec of the path.

namespace megalith::kernels::MEGALITH_PATH {

/// Codes as words of 4 inputs: calls function(j, unsigned codes of inputs 4 j ..).
template <PanelFormat kFormat, typename Function>
MEGALITH_INLINE void ForEachWord(const std::byte* codes, Function function) {
  if constexpr (kFormat == PanelFormat::kMxfp4) {
    const IntVec table = BroadcastTable(kE2m1Offset);
    ForEachConstant<kBlockInputs / 8>([&](auto line) MEGALITH_INLINE_LAMBDA {
      const IntVec both = LoadInts(codes + line * 64);
      function(2 * line, Lookup(table, LowNibbles(both)));
      function(2 * line + 1, Lookup(table, HighNibbles(both)));
    });
  } else {
    ForEachConstant<kBlockInputs / 4>(
        [&](auto line) MEGALITH_INLINE_LAMBDA { function(line, LoadInts(codes + line * 64)); });
  }
}

}  // namespace megalith::kernels::MEGALITH_PATH
