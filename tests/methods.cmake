kvsim_test(math SOURCES models/test_math.cpp LINK kvsim::math)
kvsim_test(methods SOURCES models/methods/test_methods.cpp models/methods/test_method_names.cpp models/methods/test_zeromerge.cpp LINK kvsim::replay)
kvsim_test(method_params SOURCES models/methods/test_method_params.cpp LINK kvsim::replay)
kvsim_test(methods_reading SOURCES models/methods/test_methods_reading.cpp LINK kvsim::replay)
kvsim_test(methods_stored SOURCES models/methods/test_methods_stored.cpp models/methods/test_minicache.cpp LINK kvsim::replay)
kvsim_test(methods_window SOURCES models/methods/test_methods_window.cpp LINK kvsim::replay)
kvsim_test(methods_merging SOURCES models/methods/test_methods_merging.cpp models/methods/test_keepkv.cpp models/methods/test_less.cpp LINK kvsim::replay)
kvsim_test(methods_content SOURCES models/methods/test_methods_content.cpp
           models/methods/test_methods_content_layers.cpp LINK kvsim::replay)
kvsim_test(methods_learned SOURCES models/methods/test_methods_learned.cpp models/methods/test_surrogate.cpp LINK kvsim::replay)
kvsim_test(methods_retold SOURCES models/methods/test_methods_retold.cpp
           models/methods/test_methods_retold_layers.cpp LINK kvsim::replay)
