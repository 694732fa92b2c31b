#pragma once

#include <cstdio>
#include <cstdlib>

/// For this project's own bugs only, never for input: prints the condition and aborts.
#define MEGALITH_CHECK(condition)                                                          \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: internal check failed: %s\n", __FILE__, __LINE__,       \
                   #condition);                                                            \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)
