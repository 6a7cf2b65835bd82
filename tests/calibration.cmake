# Kernel timings read, forms fitted, calibrations chosen.
kvsim_test(calibration
  SOURCES validation/test_csv_table.cpp validation/test_measured_rows.cpp validation/test_fit.cpp
          validation/test_kernel_library.cpp validation/test_kernel_accuracy.cpp
          validation/test_attention_accuracy.cpp models/cost/test_kernel_spread.cpp
  LINK kvsim::validation kvsim::json)
kvsim_test(kernel_products
  SOURCES models/cost/test_kernel_products.cpp
  LINK kvsim::validation kvsim::json)
