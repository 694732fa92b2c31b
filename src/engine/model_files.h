#pragma once

#include "base/result.h"
#include "fabric/agreement.h"
#include "weights/checkpoint.h"

namespace megalith::engine {

/// What tells a model's files from others wherever they lie: for the configuration its hash, for
/// each shard its size and hashes of its header and of samples of its data; the drafter's, too.
/// Errors: those of reading.
Result<fabric::Items> IdentifyModelFiles(const weights::Checkpoint& checkpoint);

}  // namespace megalith::engine
