#pragma once

// Reader of Kimi K3 configs, nested (`kimi_k3` with `text_config`) or bare (`kimi_linear`).
// Private to this folder; use config.h.

#include <simdjson.h>

#include <string_view>

#include "base/result.h"
#include "model/config.h"

namespace megalith::model {

/// `root` is a checked document (no duplicate keys). Errors as ParseConfig.
Result<Config> ReadKimiK3(simdjson::dom::object root, std::string_view source);

}  // namespace megalith::model
