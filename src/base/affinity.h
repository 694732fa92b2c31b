#pragma once

#include <vector>

#include "base/result.h"

namespace megalith {

/// The logical CPUs this thread may run on, ascending.
Result<std::vector<int>> AllowedCpus();

/// Binds the calling thread to one logical CPU. kUsage if the thread is not allowed there.
Status PinThisThread(int cpu);

/// Lets the calling thread run on exactly these logical CPUs, e.g. to undo a pin.
Status SetThisThreadCpus(const std::vector<int>& cpus);

}  // namespace megalith
