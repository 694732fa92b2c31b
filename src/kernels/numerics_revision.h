#pragma once

namespace megalith::kernels {

/// What a path computes, bit by bit, belongs to a revision. Whoever changes bits of any path raises
/// it: state that a build of another revision has stored (`--cache-dir`) must not be gone on with.
/// The test EngineLoad.BitsOfAStateBelongToARevision notices.
inline constexpr int kNumericsRevision = 3;

}  // namespace megalith::kernels
