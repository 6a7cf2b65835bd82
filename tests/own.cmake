# Methods of the user's files: Python classes and shared libraries.
kvsim_test(own JSON
  SOURCES sim/cli/program.cpp sim/own/test_own_cli.cpp sim/own/test_own_library.cpp sim/own/test_own_python.cpp
  LINK kvsim::own kvsim::json kvsim::run nlohmann_json::nlohmann_json)
target_compile_definitions(test_own PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>"
                           KVSIM_PYTHON="${KVSIM_PYTHON_EXECUTABLE}" KVSIM_LIBRARIES="${CMAKE_BINARY_DIR}/tests/own")
# The example, and libraries that break the interface.
add_library(own_value_norm MODULE ${PROJECT_SOURCE_DIR}/examples/own_method/value_norm.c)
set_source_files_properties(${PROJECT_SOURCE_DIR}/examples/own_method/value_norm.c PROPERTIES LANGUAGE CXX)
foreach(fault abi clash no_score no_name not_finite)
  add_library(own_${fault} MODULE sim/own/broken_library.cpp)
  target_compile_definitions(own_${fault} PRIVATE KVSIM_FAULT_${fault})
endforeach()
foreach(library value_norm abi clash no_score no_name not_finite)
  target_compile_features(own_${library} PRIVATE cxx_std_20)
  target_include_directories(own_${library} PRIVATE ${PROJECT_SOURCE_DIR}/sim/own)
  set_target_properties(own_${library} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/own)
  add_dependencies(test_own own_${library})
endforeach()
add_dependencies(test_own kvsim)
