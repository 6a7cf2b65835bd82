# Script of KvsimExplorer.cmake: configures the explorer's core once, builds it, and compresses kvsim.wasm if it is
# newer than the compressed file.
if(NOT EXISTS ${BINARY}/CMakeCache.txt)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release
            -DCMAKE_TOOLCHAIN_FILE=${TOOLCHAIN} -DKVSIM_VERSION=${VERSION}
    COMMAND_ERROR_IS_FATAL ANY)
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} --target kvsim_wasm
                COMMAND_ERROR_IS_FATAL ANY)
set(module ${BINARY}/kvsim.wasm)
if(${module} IS_NEWER_THAN ${module}.gz)
  file(ARCHIVE_CREATE OUTPUT ${module}.gz PATHS ${module} FORMAT raw COMPRESSION GZip
       COMPRESSION_LEVEL 9 MTIME 0)
endif()
