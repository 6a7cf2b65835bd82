kvsim_test(models
  SOURCES models/test_field.cpp models/test_math.cpp models/test_text_file.cpp models/test_units.cpp
          models/catalogue/test_configurations.cpp models/catalogue/test_engine_defaults.cpp
          models/catalogue/test_gpu.cpp models/catalogue/test_layer_kinds.cpp models/catalogue/test_llm.cpp
          models/catalogue/test_name_regex.cpp models/catalogue/test_quantization.cpp
          models/catalogue/test_stack.cpp models/catalogue/test_vision.cpp
          models/catalogue/test_weight_format.cpp
  LINK kvsim::cost kvsim::gpu kvsim::json kvsim::llm kvsim::math kvsim::stack kvsim::units)
kvsim_test(quality
  SOURCES models/quality/test_quality.cpp
  LINK kvsim::quality)
