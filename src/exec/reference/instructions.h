#pragma once

#include "exec/device_memory.h"
#include "exec/instruction_view.h"
#include "kernels/numerics.h"

namespace megalith::exec::reference {

/// Does what one instruction says, apart from waiting and signalling. Act is the activation type.
template <typename Act>
Status Execute(const InstructionView& view, DeviceMemory* device, kernels::DotNumerics numerics);

}  // namespace megalith::exec::reference
