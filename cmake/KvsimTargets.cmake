include(${CMAKE_CURRENT_LIST_DIR}/KvsimUnity.cmake)

# Code that runs once per command and consists mostly of templates of JSON and text (reports, the command line): -O3
# would add half to its compile time without a visible gain. Under the sanitizers it is not optimised at all.
function(kvsim_cold TARGET)
  if(KVSIM_SANITIZE)
    target_compile_options(${TARGET} PRIVATE -O0)
  elseif(EMSCRIPTEN)
    target_compile_options(${TARGET} PRIVATE -O1)  # it has no -Og
  else()
    target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-Og>)
  endif()
endfunction()

# kvsim_headers(NAME LIBRARY|PROGRAM [HEADER…]): a target that only holds a precompiled header of common includes,
# used if KVSIM_PCH is on. Every file still includes what it uses; builds with ccache check this. Libraries and
# programs need separate ones: -fPIC, -fPIE. Use <nlohmann/json.hpp> only for targets that mostly read it: g++
# compiles its parser again in every file, used or not, in 0.7 s.
function(kvsim_headers NAME KIND)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(${NAME} OBJECT EXCLUDE_FROM_ALL ${source})
  if(KIND STREQUAL "PROGRAM")
    set_target_properties(${NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${NAME} PRIVATE ${CMAKE_CXX_COMPILE_OPTIONS_PIE})
  endif()
  target_compile_features(${NAME} PRIVATE cxx_std_20)
  target_link_libraries(${NAME} PRIVATE kvsim_flags fmt::fmt nlohmann_json::nlohmann_json)
  if(KVSIM_PCH)
    target_precompile_headers(${NAME} PRIVATE <algorithm> <functional> <map> <memory> <optional> <string> <vector>
                                              <fmt/format.h> ${ARGN})
  endif()
endfunction()

# kvsim_precompiled(TARGET HOLDER): TARGET uses the precompiled header of HOLDER; both have the same flags.
function(kvsim_precompiled TARGET HOLDER)
  if(KVSIM_PCH)
    target_precompile_headers(${TARGET} REUSE_FROM ${HOLDER})
  endif()
endfunction()

# kvsim_files(OUT PATTERN [EXCEPT…]): files of the current folder and its sub-folders, except those of sub-folders that
# have a CMakeLists.txt.
function(kvsim_files OUT PATTERN)
  set(here ${CMAKE_CURRENT_SOURCE_DIR})
  file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE ${here} ${PATTERN})
  file(GLOB_RECURSE inner RELATIVE ${here} CMakeLists.txt)
  list(REMOVE_ITEM inner CMakeLists.txt)
  foreach(list IN LISTS inner)
    get_filename_component(folder ${list} DIRECTORY)
    list(FILTER found EXCLUDE REGEX "^${folder}/")
  endforeach()
  if(ARGN)
    list(REMOVE_ITEM found ${ARGN})
  endif()
  set(${OUT} ${found} PARENT_SCOPE)
endfunction()

# kvsim_library(NAME [COLD] [EXCEPT … | SOURCES … HEADERS …] DEPENDS … PRIVATE_DEPENDS …)
#
# One library per folder: target kvsim_NAME, alias kvsim::NAME. It has all files of its folder except those of EXCEPT,
# or the listed files. Includes are written from the root. After installation find_package(kvsim) provides them under
# the same names.
function(kvsim_library NAME)
  cmake_parse_arguments(ARG "COLD" "" "EXCEPT;SOURCES;HEADERS;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  if(NOT ARG_SOURCES)
    kvsim_files(ARG_SOURCES *.cpp ${ARG_EXCEPT})
    kvsim_files(ARG_HEADERS *.hpp ${ARG_EXCEPT})
  endif()
  add_library(kvsim_${NAME} STATIC ${ARG_SOURCES})
  add_library(kvsim::${NAME} ALIAS kvsim_${NAME})
  target_sources(kvsim_${NAME} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                 FILES ${ARG_HEADERS})
  target_compile_features(kvsim_${NAME} PUBLIC cxx_std_20)
  if(ARG_COLD)
    kvsim_cold(kvsim_${NAME})
    kvsim_precompiled(kvsim_${NAME} kvsim_cold_headers)
  else()
    kvsim_precompiled(kvsim_${NAME} kvsim_hot_headers)
  endif()
  target_link_libraries(kvsim_${NAME} PUBLIC ${ARG_DEPENDS}
                        PRIVATE $<BUILD_INTERFACE:kvsim_flags> ${ARG_PRIVATE_DEPENDS})
  kvsim_together(kvsim_${NAME} ${ARG_SOURCES})
  set_target_properties(kvsim_${NAME} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON EXPORT_NAME ${NAME})
  install(TARGETS kvsim_${NAME} EXPORT kvsimTargets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvsim COMPONENT development)
endfunction()
