kvsim_test(explorer SOURCES sim/test_explorer.cpp sim/program.cpp
           LINK kvsim::explorer kvsim::explorer_page)
target_compile_definitions(test_explorer PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>")
add_dependencies(test_explorer kvsim)
if(KVSIM_WITH_EXPLORER)
  find_program(NODE_PROGRAM NAMES node nodejs)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(NODE_PROGRAM AND Python3_FOUND)
    add_test(NAME "explorer: the core under node answers as the command line does"
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/browser/test_explorer_core.py
                     $<TARGET_FILE:kvsim> ${NODE_PROGRAM} ${KVSIM_EXPLORER_CORE} ${PROJECT_SOURCE_DIR}
                     ${CMAKE_CURRENT_BINARY_DIR}/scratch/explorer)
    set_tests_properties("explorer: the core under node answers as the command line does" PROPERTIES
      SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED" TIMEOUT 300)
    add_test(NAME "explorer: the page works in a browser"
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/browser/test_explorer_page.py
                     $<TARGET_FILE:kvsim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/explorer)
    set_tests_properties("explorer: the page works in a browser" PROPERTIES
      SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED" TIMEOUT 300 LABELS browser RUN_SERIAL ON)
  else()
    message(STATUS "No node or no Python 3: the explorer's core and page are not tested")
  endif()
endif()
