# Options of the build and the flags that every target of ours takes through kvsim_flags.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(kvsim_default_arch x86-64-v3)
else()
  set(kvsim_default_arch "")
endif()
set(KVSIM_ARCH "${kvsim_default_arch}" CACHE STRING
    "Value of -march for optimised code; empty for the compiler's own default")
option(KVSIM_WERROR "Treat warnings as errors" OFF)
option(KVSIM_SANITIZE "Build with address and undefined-behaviour sanitizers" OFF)
option(KVSIM_FUZZ "Build the fuzz targets too (clang; preset \"asan\")" OFF)
set(KVSIM_CUDA AUTO CACHE STRING "Build the CUDA parts: AUTO (where nvcc and a GPU are found), ON or OFF")
set_property(CACHE KVSIM_CUDA PROPERTY STRINGS AUTO ON OFF)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
# Headers of JSON, text and tests read once: a fifth of a build's time. ccache keeps nothing that a
# precompiled header of g++'s went into (no two are alike), so that where it is there are none.
set(kvsim_pch OFF)
if(NOT CMAKE_CXX_COMPILER_LAUNCHER AND NOT EMSCRIPTEN)  # whose build has its own
  set(kvsim_pch ON)
endif()
option(KVSIM_PCH "Precompile headers; by default where there is no ccache" ${kvsim_pch})
option(KVSIM_UNITY "Compile several files as one; by default where there is no ccache" ${kvsim_pch})

add_library(kvsim_flags INTERFACE)
# -ffp-contract=off: the same expression gives the same bits in a vector loop and in its scalar tail.
target_compile_options(kvsim_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -ffp-contract=off -Wno-psabi $<$<BOOL:${KVSIM_WERROR}>:-Werror>)
# g++ looks for garbage in its own heap from 128 MB on, several times a file; from 1 GiB on is never,
# and saves it an eighth of its time.
target_compile_options(kvsim_flags INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=1048576>")
# What stands in one file is neither a header's nor outside of another's for those compiled with it.
if(KVSIM_UNITY)
  target_compile_options(kvsim_flags INTERFACE -Wno-shadow $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
# Looking something up by a temporary key and keeping a reference to it is what g++ 13 calls dangling.
target_compile_options(kvsim_flags INTERFACE
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>)
# Eigen's alignment, and with it the layout of its types, follows -march: one value for all of us.
if(KVSIM_ARCH)
  target_compile_options(kvsim_flags INTERFACE -march=${KVSIM_ARCH})
endif()
if(KVSIM_SANITIZE)
  # Null pointers and what lies outside an object are the address sanitizer's; the checks for them a
  # second time, and for a class's table, are a fifth of the time to compile. An empty string_view
  # of fmt's is copied by memcpy from null: no bytes.
  set(kvsim_sanitizers -fsanitize=address,undefined
                       -fno-sanitize=null,vptr,object-size,nonnull-attribute)
  target_compile_options(kvsim_flags INTERFACE ${kvsim_sanitizers} -fno-omit-frame-pointer
                         -fno-sanitize-recover=undefined)
  target_link_options(kvsim_flags INTERFACE ${kvsim_sanitizers})
endif()
