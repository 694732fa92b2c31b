#pragma once

#include <cstdint>

namespace megalith::text {

/// A token of the vocabulary, 0 .. vocab_size-1.
using TokenId = std::int32_t;

}  // namespace megalith::text
