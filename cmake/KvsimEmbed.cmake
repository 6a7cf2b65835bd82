# kvsim_embed(TARGET SYMBOL FILES …)
#
# Compiles data files into TARGET, so that an installed program needs no data folder. Generates
#   namespace kvsim::embedded { std::span<const EmbeddedFile> SYMBOL(); }
# declared in "models/json/embedded.hpp"; a file's name is its base name without extension.
function(kvsim_embed TARGET SYMBOL)
  cmake_parse_arguments(ARG "" "" "FILES" ${ARGN})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${SYMBOL}_embedded.cpp)
  set(absolute "")
  foreach(f IN LISTS ARG_FILES)
    list(APPEND absolute ${CMAKE_CURRENT_SOURCE_DIR}/${f})
  endforeach()
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} "-DOUT=${out}" "-DSYMBOL=${SYMBOL}" "-DFILES=${absolute}"
            -P ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
    DEPENDS ${absolute} ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
    COMMENT "Embedding ${SYMBOL}" VERBATIM)
  target_sources(${TARGET} PRIVATE ${out})
endfunction()
