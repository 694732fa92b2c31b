#include "interrupt.h"

#include <signal.h>

#include <atomic>

namespace megalith::apps {
namespace {

// Neither has a destructor to run or a constructor at run time: safe in a handler at any moment.
constinit CancelFlag interrupted;
constinit std::atomic<bool> terminated{false};

void OnSignal(int /*signal*/) { interrupted.Cancel(); }

void OnTermination(int /*signal*/) {
  terminated.store(true, std::memory_order_relaxed);
  interrupted.Cancel();
}

void Catch(int signal, void (*handler)(int), unsigned flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(flags);
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

CancelFlag* CatchInterrupts() {
  // The second one meets the default action.
  Catch(SIGINT, OnSignal, SA_RESETHAND | SA_RESTART);
  Catch(SIGTERM, OnSignal, SA_RESETHAND | SA_RESTART);
  return &interrupted;
}

CancelFlag* CatchInterruptsAtPrompt() {
  Catch(SIGINT, OnSignal, 0);
  Catch(SIGTERM, OnTermination, SA_RESETHAND);
  return &interrupted;
}

void IgnoreInterrupts() {
  Catch(SIGINT, SIG_IGN, 0);
  Catch(SIGTERM, SIG_IGN, 0);
}

bool TerminationRequested() { return terminated.load(std::memory_order_relaxed); }

}  // namespace megalith::apps
