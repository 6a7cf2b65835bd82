# Installs BUILD into SCRATCH, builds EXAMPLE against the installation and runs it on SAMPLE.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(status)
    message(FATAL_ERROR "${ARGV}:\n${out}${err}")
  endif()
endfunction()
file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
run(${CMAKE_COMMAND} -S ${EXAMPLE} -B ${SCRATCH}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
execute_process(COMMAND ${SCRATCH}/build/own_method ${SAMPLE} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${SCRATCH})
