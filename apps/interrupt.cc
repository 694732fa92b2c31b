#include "interrupt.h"

#include <signal.h>

namespace megalith::apps {
namespace {

// Has no destructor to run and no constructor at run time: safe in a handler at any moment.
constinit CancelFlag interrupted;

void OnSignal(int /*signal*/) { interrupted.Cancel(); }

}  // namespace

CancelFlag* CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  // The second one meets the default action.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return &interrupted;
}

}  // namespace megalith::apps
