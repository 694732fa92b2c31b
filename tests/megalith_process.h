#pragma once

#include <string>

namespace megalith {

struct Outcome {
  int exit_code;  ///< -1: ended by a signal
  std::string out;
  std::string err;
};

/// Runs the program with arguments as a shell would take them and empty input. `before`:
/// assignments of variables. `redirections` come last and win, e.g. "2>&-".
Outcome Megalith(const std::string& arguments, const std::string& before = "",
                 const std::string& redirections = "");

}  // namespace megalith
