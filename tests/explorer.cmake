if(KVSIM_WITH_EXPLORER)
  find_program(NODE_PROGRAM NAMES node nodejs)
  if(NODE_PROGRAM)
    kvsim_script_test("explorer: the core under node answers as the command line does"
      browser/test_explorer_core.py
      ARGUMENTS $<TARGET_FILE:kvsim> ${NODE_PROGRAM} ${KVSIM_EXPLORER_CORE} ${PROJECT_SOURCE_DIR}
                ${CMAKE_CURRENT_BINARY_DIR}/scratch/explorer)
  else()
    kvsim_skipped_test("explorer: the core under node answers as the command line does" "node is not installed")
  endif()
  kvsim_script_test("explorer: the page works in a browser" browser/test_explorer_page.py LABELS browser SERIAL
    ARGUMENTS $<TARGET_FILE:kvsim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/explorer)
endif()
