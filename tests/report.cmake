kvsim_test(report JSON
  SOURCES sim/report/test_figure_documents.cpp sim/report/test_findings.cpp sim/report/test_report_aggregate.cpp
          sim/report/test_metrics.cpp sim/report/test_report_csv.cpp sim/report/test_report_figures.cpp sim/report/test_report_files.cpp
          sim/report/test_report_json.cpp sim/report/test_report_page.cpp sim/report/test_report_sweep.cpp
          sim/report/test_report_text.cpp sim/report/test_serve_golden.cpp sim/report/test_serve_report.cpp
          sim/serve/test_serve_allocations.cpp
  LINK kvsim::report kvsim::report_html kvsim::json)
kvsim_script_test("report: pages work in a browser" browser/test_report_page.py LABELS browser SERIAL
  ARGUMENTS $<TARGET_FILE:kvsim> ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/scratch/browser)
