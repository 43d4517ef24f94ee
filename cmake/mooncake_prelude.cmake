# The prelude: headers of others that nearly every source includes, parsed once instead of three hundred times (a precompiled header).
# Sources include what they use all the same: `make lint` and the release preset build without it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT MC_FUZZ AND NOT MC_TIDY)
    set(MC_PRELUDE_WORKS ON)
else()
    set(MC_PRELUDE_WORKS OFF)
endif()
option(MC_PRELUDE "precompile the most used headers" ${MC_PRELUDE_WORKS})

set(prelude <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <deque> <functional> <map> <memory> <mutex> <optional>
            <set> <span> <string> <string_view> <thread> <unordered_map> <vector> <fmt/core.h> <tl/expected.hpp>)

# Both kinds are compiled with the flags of their users: libraries are position independent, programs are so in their own way.
if(MC_PRELUDE)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/prelude.cpp CONTENT "// Nothing: CMake wants a source beside the precompiled header.\n")
    add_library(mc_prelude OBJECT ${CMAKE_BINARY_DIR}/prelude.cpp)
    target_precompile_headers(mc_prelude PRIVATE ${prelude})
    if(MC_TESTS)
        add_library(test_prelude OBJECT ${CMAKE_BINARY_DIR}/prelude.cpp)
        set_target_properties(test_prelude PROPERTIES POSITION_INDEPENDENT_CODE OFF)
        target_compile_options(test_prelude PRIVATE ${CMAKE_CXX_COMPILE_OPTIONS_PIE} ${MC_TEST_FLAGS})
        target_link_libraries(test_prelude PRIVATE GTest::gtest GTest::gmock)
        target_precompile_headers(test_prelude PRIVATE ${prelude} <gmock/gmock.h> <gtest/gtest.h>)
    endif()
endif()

# gcc forgets that what it read from a precompiled header are system headers, and warns of what it guesses inside of them.
set(MC_PRELUDE_FLAGS -Wno-stringop-overread)

# mooncake_prelude(TARGET [TEST]): its sources start from the prelude; TEST: with GoogleTest in it, for programs of tests.
function(mooncake_prelude target)
    cmake_parse_arguments(ARG "TEST" "" "" ${ARGN})
    if(ARG_TEST)
        target_compile_options(${target} PRIVATE ${MC_TEST_FLAGS})
    endif()
    if(NOT MC_PRELUDE)
        return()
    endif()
    if(ARG_TEST)
        target_precompile_headers(${target} REUSE_FROM test_prelude)
    else()
        target_compile_options(${target} PRIVATE ${MC_PRELUDE_FLAGS})
        target_precompile_headers(${target} REUSE_FROM mc_prelude)
    endif()
endfunction()
