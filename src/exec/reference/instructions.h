#pragma once

#include "exec/device_memory.h"
#include "exec/exchange.h"
#include "exec/instruction_view.h"
#include "kernels/numerics.h"

namespace megalith::exec::reference {

/// Does what one instruction says, apart from waiting for and signalling counters; a receive waits
/// for the other rank. Act is the activation type.
template <typename Act>
Status Execute(const InstructionView& view, DeviceMemory* device, ExchangePort* exchanges,
               kernels::DotNumerics numerics);

}  // namespace megalith::exec::reference
