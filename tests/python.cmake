# kvsim_python_test(NAME SCRIPT LABELS words…): a script of tests/python, with the program and a scratch folder before
# `words`.
function(kvsim_python_test NAME SCRIPT LABELS)
  string(REGEX REPLACE "[^a-z0-9]+" "_" folder "${NAME}")
  kvsim_script_test("python: ${NAME}" python/${SCRIPT} LABELS ${LABELS}
    ARGUMENTS $<TARGET_FILE:kvsim> ${CMAKE_CURRENT_BINARY_DIR}/scratch/python_${folder} ${ARGN})
endfunction()

# PyTorch and Transformers are large: ./kv test-full installs those that Debian has.
kvsim_python_test("the recorder of traces" test_record_hf.py "python;full" Recorded Refused Program Rotary Generated)
kvsim_python_test("the recorder of traces on transformers models" test_record_hf.py "python;full" Transformers)
if(KVSIM_WITH_PYTHON)
  kvsim_python_test("import kvsim" test_kvsim.py "python" ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/python
                    ${CMAKE_COMMAND})
else()
  kvsim_skipped_test("python: import kvsim" "${kvsim_no_python}" python)
endif()
