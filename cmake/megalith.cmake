# Helpers every folder uses: one library per folder, tests beside the code.

find_package(Threads REQUIRED)

add_library(megalith_options INTERFACE)
target_compile_features(megalith_options INTERFACE cxx_std_20)
# Same bits are a contract: the compiler must not fuse a*b+c on its own.
target_compile_options(megalith_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers -Wshadow -Wconversion
                                                  -ffp-contract=off)
target_include_directories(megalith_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(megalith_options INTERFACE Threads::Threads)
if(MEGALITH_WERROR)
  target_compile_options(megalith_options INTERFACE -Werror)
endif()
if(MEGALITH_SANITIZE STREQUAL "address")
  target_compile_options(megalith_options INTERFACE -fsanitize=address,undefined
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(megalith_options INTERFACE -fsanitize=address,undefined)
elseif(MEGALITH_SANITIZE STREQUAL "thread")
  target_compile_options(megalith_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(megalith_options INTERFACE -fsanitize=thread)
elseif(NOT MEGALITH_SANITIZE STREQUAL "")
  message(FATAL_ERROR "MEGALITH_SANITIZE is '${MEGALITH_SANITIZE}'; use address, thread or empty")
endif()

# megalith_library(<folder name> SOURCES ... DEPENDS ...): target megalith_<name>,
# alias megalith::<name>.
function(megalith_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(megalith_${name} STATIC ${ARG_SOURCES})
  add_library(megalith::${name} ALIAS megalith_${name})
  target_link_libraries(megalith_${name} PUBLIC megalith_options ${ARG_DEPENDS})
  # Those that ship are checked by tests/symbols_test.cc.
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/src/"
     AND NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "/testing$")
    set_property(GLOBAL APPEND PROPERTY MEGALITH_LIBRARIES megalith_${name})
  endif()
endfunction()

# megalith_test(<name> SOURCES ... DEPENDS ... [LABELS ...]): one GoogleTest binary, each case a
# CTest test. Labels: unit property golden kernel slow.
function(megalith_test name)
  if(NOT MEGALITH_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE megalith_options ${ARG_DEPENDS} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    MEGALITH_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    MEGALITH_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES
                       PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600)
endfunction()

# megalith_embed(<file> <output.cc> HEADER <header> FUNCTION <ns::Name>): a source that defines
# `std::string_view ns::Name()`, the bytes of the file. The header declares it.
function(megalith_embed input output)
  cmake_parse_arguments(ARG "" "HEADER;FUNCTION" "" ${ARGN})
  get_filename_component(input ${input} ABSOLUTE)
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${input} -DOUTPUT=${output} -DHEADER=${ARG_HEADER}
            -DFUNCTION=${ARG_FUNCTION} -P ${script}
    DEPENDS ${input} ${script}
    COMMENT "Embedding ${input}"
    VERBATIM)
endfunction()
