# Options of the build, and the flags of every kvsim target through kvsim_flags.
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

# ccache saves time only if its cache has objects of an earlier build. With an empty one, a first build is faster without
# it: then sources are grouped and headers are precompiled, neither of which ccache can use.
find_program(CCACHE_PROGRAM ccache)
set(kvsim_ccache OFF)
if(CCACHE_PROGRAM AND NOT DEFINED CACHE{KVSIM_CCACHE})
  execute_process(COMMAND ${CCACHE_PROGRAM} --print-stats OUTPUT_VARIABLE kvsim_ccache_stats ERROR_QUIET)
  if(kvsim_ccache_stats MATCHES "files_in_cache[ \t]+([0-9]+)" AND CMAKE_MATCH_1 GREATER 500)
    set(kvsim_ccache ON)
  endif()
endif()
option(KVSIM_CCACHE "Compile through ccache; by default where its cache has more than 500 files" ${kvsim_ccache})
if(CCACHE_PROGRAM AND KVSIM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
# Precompiled headers of JSON, text and tests save a fifth of a build's time. ccache cannot cache objects that use a
# precompiled header of g++ (its bytes differ each time), so they are off with ccache.
set(kvsim_pch OFF)
if(NOT CMAKE_CXX_COMPILER_LAUNCHER AND NOT EMSCRIPTEN)  # the WebAssembly build has separate headers
  set(kvsim_pch ON)
endif()
option(KVSIM_PCH "Precompile headers; by default without ccache" ${kvsim_pch})
option(KVSIM_UNITY "Compile several files as one; by default without ccache" ${kvsim_pch})

add_library(kvsim_flags INTERFACE)
# -ffp-contract=off: an expression gives the same bits in a vector loop and in its scalar tail.
target_compile_options(kvsim_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -ffp-contract=off -Wno-psabi $<$<BOOL:${KVSIM_WERROR}>:-Werror>)
# Disable the garbage collector of g++: it starts at 128 MB, runs several times per file and costs an eighth of the
# compile time. With 1 GiB it never starts.
target_compile_options(kvsim_flags INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=1048576>")
# In a unity build private names of one file are visible in the others: these warnings would be false.
if(KVSIM_UNITY)
  target_compile_options(kvsim_flags INTERFACE -Wno-shadow $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
# g++ 13 reports a reference from a lookup by a temporary key as dangling.
target_compile_options(kvsim_flags INTERFACE
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>)
# Eigen's alignment, and thus the layout of its types, follows -march: one value for all targets.
if(KVSIM_ARCH)
  target_compile_options(kvsim_flags INTERFACE -march=${KVSIM_ARCH})
endif()
if(KVSIM_SANITIZE)
  # The address sanitizer already detects null pointers and accesses outside of an object. Checking them twice, and
  # class tables, costs a fifth of the compile time. fmt copies an empty string_view from null by memcpy: zero bytes.
  set(kvsim_sanitizers -fsanitize=address,undefined
                       -fno-sanitize=null,vptr,object-size,nonnull-attribute)
  target_compile_options(kvsim_flags INTERFACE ${kvsim_sanitizers} -fno-omit-frame-pointer
                         -fno-sanitize-recover=undefined)
  target_link_options(kvsim_flags INTERFACE ${kvsim_sanitizers})
endif()
