# Run as a script: writes a C++ source that returns the bytes of a file.
#   cmake -DINPUT=... -DOUTPUT=... -DHEADER=... -DFUNCTION=ns::Name -P embed.cmake
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
# Lines of 20 bytes.
string(REPEAT "'\\\\x..'," 20 line)
string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
get_filename_component(name ${INPUT} NAME)
file(WRITE ${OUTPUT}
"// Made from ${name} by cmake/embed.cmake.
#include \"${HEADER}\"

namespace {
constexpr char kBytes[] = {
${bytes}};
}  // namespace

std::string_view ${FUNCTION}() { return {kBytes, sizeof kBytes}; }
")
