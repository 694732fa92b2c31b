#include "build_commit.h"

namespace megalith::apps {
namespace {

#include "build_commit.inc"

}  // namespace

const char* BuildCommit() { return kBuildCommit; }

}  // namespace megalith::apps
