# kvsim_python_test(NAME SCRIPT words…): a script of tests/python, given the program and a scratch folder before `words`.
# What it lacks it says after KVSIM-SKIPPED.
function(kvsim_python_test NAME SCRIPT)
  string(REGEX REPLACE "[^a-z0-9]+" "_" folder "${NAME}")
  if(KVSIM_PYTHON_EXECUTABLE)
    add_test(NAME "python: ${NAME}"
             COMMAND "${KVSIM_PYTHON_EXECUTABLE}" -B ${CMAKE_CURRENT_SOURCE_DIR}/python/${SCRIPT} $<TARGET_FILE:kvsim>
                     ${CMAKE_CURRENT_BINARY_DIR}/scratch/python_${folder} ${ARGN})
  else()
    add_test(NAME "python: ${NAME}" COMMAND ${CMAKE_COMMAND} -E echo "KVSIM-SKIPPED: no Python was found")
  endif()
  set_tests_properties("python: ${NAME}" PROPERTIES SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED" LABELS python TIMEOUT 300)
endfunction()

kvsim_python_test("the recorder of traces" test_record_hf.py Recorded Refused Program Rotary Generated)
kvsim_python_test("the recorder of traces on transformers models" test_record_hf.py Transformers)
if(KVSIM_WITH_PYTHON)
  kvsim_python_test("import kvsim" test_kvsim.py ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/python ${CMAKE_COMMAND})
else()
  add_test(NAME "python: import kvsim" COMMAND ${CMAKE_COMMAND} -E echo "KVSIM-SKIPPED: ${kvsim_no_python}")
  set_tests_properties("python: import kvsim" PROPERTIES SKIP_REGULAR_EXPRESSION "KVSIM-SKIPPED" LABELS python)
endif()
