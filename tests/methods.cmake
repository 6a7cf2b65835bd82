kvsim_test(math SOURCES models/test_math.cpp LINK kvsim::math)
kvsim_test(methods SOURCES models/test_methods.cpp models/test_method_names.cpp models/test_zeromerge.cpp LINK kvsim::replay)
kvsim_test(methods_learned SOURCES models/test_methods_learned.cpp models/test_surrogate.cpp LINK kvsim::replay)
