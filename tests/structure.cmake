kvsim_test(structure SOURCES test_includes.cpp LINK fmt::fmt)
