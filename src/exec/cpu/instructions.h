#pragma once

#include "exec/cpu/scratch.h"
#include "exec/device_memory.h"
#include "exec/instruction_view.h"
#include "kernels/kernel_table.h"

namespace megalith::exec::cpu {

/// Does what one instruction says, apart from fetching, waiting and signalling, with the kernels of
/// one instruction-set path. Allocates nothing, throws nothing, takes no lock. Act is the
/// activation type. Returns null, or the reason (a string literal) why the step cannot go on.
template <typename Act>
const char* Execute(const InstructionView& view, const kernels::KernelTable<Act>& kernels,
                    DeviceMemory* device, const Scratch& scratch);

}  // namespace megalith::exec::cpu
