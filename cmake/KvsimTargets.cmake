# What runs once a command and is mostly templates of JSON and text (reports, the command line): a
# third of the time to compile it at -O3 buys nothing that anyone waits for.
function(kvsim_cold TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
endfunction()

# kvsim_precompile(TARGET [HEADER…]): headers that most files of a target include, read once where
# KVSIM_PCH is on. Every file still includes what it uses: builds with ccache see to that.
function(kvsim_precompile TARGET)
  if(KVSIM_PCH)
    target_precompile_headers(${TARGET} PRIVATE <algorithm> <functional> <map> <memory> <optional> <string>
                                                <vector> <fmt/format.h> <nlohmann/json.hpp> ${ARGN})
  endif()
endfunction()

# kvsim_library(NAME [COLD] SOURCES … HEADERS … DEPENDS … PRIVATE_DEPENDS …)
#
# One library a folder: target kvsim_NAME, alias kvsim::NAME. Includes are written from the root.
# Installed, they are what find_package(kvsim) gives, under the same names.
function(kvsim_library NAME)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;HEADERS;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(kvsim_${NAME} STATIC ${ARG_SOURCES})
  add_library(kvsim::${NAME} ALIAS kvsim_${NAME})
  target_sources(kvsim_${NAME} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                 FILES ${ARG_HEADERS})
  target_compile_features(kvsim_${NAME} PUBLIC cxx_std_20)
  if(ARG_COLD)
    kvsim_cold(kvsim_${NAME})
    kvsim_precompile(kvsim_${NAME})
  endif()
  target_link_libraries(kvsim_${NAME} PUBLIC ${ARG_DEPENDS}
                        PRIVATE $<BUILD_INTERFACE:kvsim_flags> ${ARG_PRIVATE_DEPENDS})
  set_target_properties(kvsim_${NAME} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON EXPORT_NAME ${NAME})
  install(TARGETS kvsim_${NAME} EXPORT kvsimTargets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvsim COMPONENT development)
endfunction()
