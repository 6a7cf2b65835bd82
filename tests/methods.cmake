kvsim_test(methods
  SOURCES models/methods/test_compactor.cpp models/methods/test_keepkv.cpp models/methods/test_less.cpp models/methods/test_method_names.cpp
          models/methods/test_method_params.cpp models/methods/test_methods.cpp
          models/methods/test_methods_content.cpp models/methods/test_methods_content_layers.cpp
          models/methods/test_methods_learned.cpp models/methods/test_methods_merging.cpp
          models/methods/test_methods_reading.cpp models/methods/test_methods_reference.cpp
          models/methods/test_methods_formats.cpp models/methods/test_methods_reference_layers.cpp
          models/methods/test_methods_stored.cpp
          models/methods/test_methods_window.cpp models/methods/test_minicache.cpp
          models/methods/axes/test_prompt_positions.cpp models/methods/axes/test_kvarn.cpp models/methods/axes/test_oscar.cpp
          models/methods/axes/test_kvquant.cpp models/methods/axes/test_pqcache.cpp models/methods/axes/test_arkvale.cpp models/methods/axes/test_infllm.cpp models/methods/axes/test_rotatekv.cpp models/methods/axes/test_recurrence.cpp models/methods/axes/test_separators.cpp models/methods/axes/test_polarquant.cpp
          models/methods/test_surrogate.cpp models/methods/test_pyramid_side.cpp models/methods/test_rocketkv.cpp models/methods/axes/test_tiers.cpp
          models/methods/axes/test_prefill.cpp models/methods/axes/test_blend.cpp models/methods/axes/test_dsa.cpp models/methods/axes/test_blocks.cpp models/methods/axes/test_ds_mla.cpp
          models/methods/test_triattention.cpp models/methods/test_zeromerge.cpp
  LINK kvsim::replay)
