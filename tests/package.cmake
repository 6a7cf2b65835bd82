# The Debian packages (program, libraries), built, unpacked elsewhere and used; and the contents of vcpkg.json and the
# Dockerfile.
if(DPKG_DEB_PROGRAM AND DPKG_SHLIBDEPS_PROGRAM)
  add_test(NAME "package: a Debian package works where it is unpacked"
           COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSCRATCH=${CMAKE_CURRENT_BINARY_DIR}/scratch/package
                   -DSOURCE=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
                   -DPYTHON=${KVSIM_PYTHON_EXECUTABLE} -DDPKG_DEB=${DPKG_DEB_PROGRAM}
                   -DEXAMPLE=${PROJECT_SOURCE_DIR}/examples/installed -DGENERATOR=${CMAKE_GENERATOR}
                   -DCXX=${CMAKE_CXX_COMPILER}
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/package/check.cmake)
else()
  kvsim_skipped_test("package: a Debian package works where it is unpacked"
                     "dpkg-deb or dpkg-shlibdeps is not installed")
endif()
set_tests_properties("package: a Debian package works where it is unpacked" PROPERTIES LABELS full TIMEOUT 900)
