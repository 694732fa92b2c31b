# Writes ${OUTPUT} with the commit that ${SOURCE_DIR} stands at, only if that has changed. Run as a
# script at every build (cmake -P), so that a commit rebuilds one small file and nothing else.
set(commit "unknown")
find_program(git git)
if(git)
  execute_process(
    COMMAND ${git} --no-optional-locks -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE described
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
    RESULT_VARIABLE failed)
  if(NOT failed AND NOT described STREQUAL "")
    set(commit "${described}")
  endif()
endif()
set(text "// Written by cmake/commit.cmake.
#include \"build_commit.h\"

namespace megalith::apps {

const char* BuildCommit() { return \"${commit}\"; }

}  // namespace megalith::apps
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
