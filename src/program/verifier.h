#pragma once

// Proves a Program before it runs. The properties (numbered as in docs/program.md):
//   V1 well-formed: ids, ranges, dtypes, alignment; everything a visit binds lies inside its arena
//   V2 no deadlock: every wait is reached by signals in every order of the workers
//   V3 every wait is exact: it needs all signals of its counter's visit
//   V4 store: no slot holds two tiles at once; every fetch is consumed and released exactly once
//   V5 no race: conflicting accesses (same bytes, aliased buffers included) are ordered
//   V7 trip counts bounded by what the buffers hold; zero-trip instructions still signal
//   V8 every weight is read exactly once per visit, every output is written exactly once
// V2-V5 are shown for every pair of consecutive visits, the step's end and next beginning included,
// together with the fact that a pair's second visit ends after everything in its first; the rest of
// the step follows by induction. There is no size limit.

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "program/program.h"

namespace megalith::program {

/// A Program that passed Verify. Executors accept nothing else.
class VerifiedProgram {
 public:
  const Program& operator*() const { return *program_; }
  const Program* operator->() const { return program_.get(); }
  const std::string& hash() const { return hash_; }

 private:
  friend Result<VerifiedProgram> Verify(Program program);
  VerifiedProgram(std::shared_ptr<const Program> program, std::string hash)
      : program_(std::move(program)), hash_(std::move(hash)) {}

  std::shared_ptr<const Program> program_;
  std::string hash_;
};

/// All properties above. The error (kBadProgram) names the property, segment, worker, instruction
/// and values of the first violation.
Result<VerifiedProgram> Verify(Program program);

}  // namespace megalith::program
