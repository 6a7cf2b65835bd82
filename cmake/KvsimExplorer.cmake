# The explorer's core for browsers is compiled by Emscripten on request; KVSIM_WITH_EXPLORER states whether it is. It
# is a separate project (sim/explorer/wasm), since one build has one compiler. KVSIM_EXPLORER_CORE is its output,
# kvsim.wasm compressed.
set(KVSIM_EXPLORER OFF CACHE STRING
    "The explorer (kvsim explorer): AUTO (when Emscripten is found), ON or OFF. Takes minutes")
set_property(CACHE KVSIM_EXPLORER PROPERTY STRINGS AUTO ON OFF)
set(KVSIM_WITH_EXPLORER OFF)
set(kvsim_no_explorer "switched off")
if(NOT KVSIM_EXPLORER STREQUAL "OFF")
  find_program(EMXX_PROGRAM em++)
  # The toolchain file is in the folder that em++ reports; Debian's em++ is a link, and the file is next to its
  # target.
  if(EMXX_PROGRAM)
    file(REAL_PATH ${EMXX_PROGRAM} kvsim_emxx)
    get_filename_component(kvsim_emscripten ${kvsim_emxx} DIRECTORY)
    find_file(EMSCRIPTEN_TOOLCHAIN Emscripten.cmake NO_DEFAULT_PATH
              HINTS ${kvsim_emscripten} /usr/share/emscripten
              PATH_SUFFIXES cmake/Modules/Platform)
  endif()
  if(NOT EMXX_PROGRAM)
    set(kvsim_no_explorer "Emscripten was not found (package emscripten)")
  elseif(NOT EMSCRIPTEN_TOOLCHAIN)
    set(kvsim_no_explorer "${EMXX_PROGRAM} has no CMake toolchain file next to it")
  else()
    set(KVSIM_WITH_EXPLORER ON)
  endif()
  if(NOT KVSIM_WITH_EXPLORER AND KVSIM_EXPLORER STREQUAL "ON")
    message(FATAL_ERROR "KVSIM_EXPLORER is ON, but ${kvsim_no_explorer}")
  endif()
endif()
if(KVSIM_WITH_EXPLORER)
  message(STATUS "kvsim: explorer ON (${EMXX_PROGRAM})")
  set(kvsim_core_dir ${PROJECT_BINARY_DIR}/explorer-core)
  set(KVSIM_EXPLORER_CORE ${kvsim_core_dir}/kvsim.wasm.gz)
  # The core's build tracks its dependencies itself and is run every time.
  add_custom_target(kvsim_explorer_core
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}/sim/explorer/wasm -DBINARY=${kvsim_core_dir}
            -DTOOLCHAIN=${EMSCRIPTEN_TOOLCHAIN} -DGENERATOR=${CMAKE_GENERATOR}
            -DVERSION=${PROJECT_VERSION} -P ${PROJECT_SOURCE_DIR}/cmake/build_explorer_core.cmake
    BYPRODUCTS ${KVSIM_EXPLORER_CORE}
    COMMENT "The explorer's core, with Emscripten" USES_TERMINAL VERBATIM)
else()
  message(STATUS "kvsim: explorer OFF: ${kvsim_no_explorer}")
endif()
