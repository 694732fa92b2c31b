#pragma once

namespace megalith::apps {

/// The commit this program was built from, as `git describe --always --dirty` names it; "unknown"
/// if the sources were not a git checkout.
const char* BuildCommit();

}  // namespace megalith::apps
