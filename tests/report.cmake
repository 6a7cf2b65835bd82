kvsim_test(report JSON
  SOURCES sim/test_report_aggregate.cpp sim/test_report_json.cpp sim/test_report_csv.cpp sim/test_report_files.cpp
          sim/test_figure_documents.cpp sim/test_report_figures.cpp sim/test_report_sweep.cpp sim/test_report_text.cpp
          sim/test_report_page.cpp sim/test_serve_report.cpp
  LINK kvsim::report kvsim::report_html kvsim::json)
# What a service worked out by hand is written as.
kvsim_test(serve_files JSON SOURCES sim/test_serve_golden.cpp LINK kvsim::report kvsim::json)

# The page in a browser; skipped, with the reason, where there is no Chromium.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_FOUND)
  add_test(NAME "report: pages work in a browser"
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/browser/test_report_page.py
                   $<TARGET_FILE:kvsim> ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/scratch/browser)
  set_tests_properties("report: pages work in a browser" PROPERTIES
    SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED" TIMEOUT 300 LABELS "full;browser" RUN_SERIAL ON)
else()
  message(STATUS "No Python 3: report.html is not tested in a browser")
endif()
