kvsim_test(report
  SOURCES sim/test_report_aggregate.cpp sim/test_report_json.cpp sim/test_report_csv.cpp sim/test_report_files.cpp
          sim/test_report_figures.cpp sim/test_report_sweep.cpp sim/test_report_text.cpp
          sim/test_serve_report.cpp
  LINK kvsim::report kvsim::json)
