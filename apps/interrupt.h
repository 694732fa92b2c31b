#pragma once

#include "base/cancel.h"

namespace megalith::apps {

/// From now on the first SIGINT or SIGTERM sets the returned flag and the second ends the process.
CancelFlag* CatchInterrupts();

}  // namespace megalith::apps
