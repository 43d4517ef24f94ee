# Compile through ccache where it is installed. Paths below the source folder are made relative and the build folder is left
# out of the key, so that build/dev and build/wheel, whose flags are the same, share their objects. What a source depends on is taken
# from the compiler's own list, which saves a run of the preprocessor per source, and is what is safe with precompiled headers.
find_program(CCACHE ccache)
if(CCACHE)
    set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true CCACHE_DEPEND=true
        CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
    set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()
