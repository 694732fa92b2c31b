#pragma once

#include "base/cancel.h"

namespace megalith::apps {

/// From now on the first SIGINT or SIGTERM sets the returned flag and the second ends the process.
CancelFlag* CatchInterrupts();

/// For a program with a prompt: SIGINT only sets the flag, however often, and interrupts a read
/// that waits. SIGTERM does the same and sets TerminationRequested(); a second one ends the
/// process.
CancelFlag* CatchInterruptsAtPrompt();

/// For a process that ends with another one, which gets the same signals: SIGINT and SIGTERM do
/// nothing.
void IgnoreInterrupts();

/// SIGTERM has come since CatchInterruptsAtPrompt.
bool TerminationRequested();

}  // namespace megalith::apps
