kvsim_test(published
  SOURCES validation/test_published_text.cpp validation/test_published_rows.cpp
          validation/test_published_accuracy.cpp
  LINK kvsim::validation)
