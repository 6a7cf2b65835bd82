kvsim_test(validation SOURCES validation/test_allocator_trace.cpp LINK kvsim::validation)

kvsim_test(validate_allocator SOURCES validation/test_validate_allocator.cpp sim/program.cpp
           LINK kvsim::json)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND)
  set(Python3_EXECUTABLE "")  # it says NOTFOUND, which is no program
endif()
target_compile_definitions(test_validate_allocator PRIVATE KVSIM_PROGRAM="$<TARGET_FILE:kvsim>"
                           KVSIM_PYTHON="${Python3_EXECUTABLE}")
add_dependencies(test_validate_allocator kvsim)
kvsim_test(published
  SOURCES validation/test_published_text.cpp validation/test_published_rows.cpp
          validation/test_published_accuracy.cpp
  LINK kvsim::validation)
