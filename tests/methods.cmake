kvsim_test(methods
  SOURCES models/methods/test_compactor.cpp models/methods/test_keepkv.cpp models/methods/test_less.cpp models/methods/test_method_names.cpp
          models/methods/test_method_params.cpp models/methods/test_methods.cpp
          models/methods/test_methods_content.cpp models/methods/test_methods_content_layers.cpp
          models/methods/test_methods_learned.cpp models/methods/test_methods_merging.cpp
          models/methods/test_methods_reading.cpp models/methods/test_methods_reference.cpp
          models/methods/test_methods_formats.cpp models/methods/test_methods_reference_layers.cpp
          models/methods/test_methods_stored.cpp
          models/methods/test_methods_window.cpp models/methods/test_minicache.cpp
          models/methods/test_prompt_positions.cpp models/methods/test_kvarn.cpp models/methods/test_oscar.cpp
          models/methods/test_kvquant.cpp models/methods/test_pqcache.cpp models/methods/test_recurrence.cpp models/methods/test_polarquant.cpp
          models/methods/test_surrogate.cpp models/methods/test_rocketkv.cpp models/methods/test_tiers.cpp
          models/methods/test_prefill.cpp models/methods/test_dsa.cpp models/methods/test_ds_mla.cpp
          models/methods/test_triattention.cpp models/methods/test_zeromerge.cpp
  LINK kvsim::replay)
