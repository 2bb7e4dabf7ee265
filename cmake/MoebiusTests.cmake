# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Declares test executables and registers them with CTest, which has one test per GoogleTest case.

include(GoogleTest)

# The environment of every test process. Waiting threads sleep, since ctest runs tests at the same time. Open
# MPI starts more ranks than there are cores, and also for root, as in a container.
# MOEBIUS_FIXTURES is added when ctest starts, unless the environment already names a folder.
set(MOEBIUS_TEST_ENVIRONMENT
    MOEBIUS_SPIN_US=0 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
set(MOEBIUS_DEFAULT_FIXTURES ${PROJECT_SOURCE_DIR}/../shared/fixtures)

# Tests spend their time in the library, so optimising their own code would cost more than it gains.
set(MOEBIUS_TEST_OPTIONS $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)

moebius_add_precompiled(test HEADERS <gtest/gtest.h> LIBS fmt::fmt GTest::gtest)
target_compile_options(moebius_precompiled_test PRIVATE ${MOEBIUS_TEST_OPTIONS})

# moebius_add_test_part(<name> <kind> <files>...): declares sources that several tests share, which are compiled once.
# A test that names an OBJECT part in LIBS has all of it. Every test is linked with the STATIC part moebius_testing, of
# which it has what it uses.
function(moebius_add_test_part name kind)
  add_library(${name} ${kind} ${ARGN})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  moebius_use_precompiled(${name} test)
  target_compile_options(${name} PRIVATE ${MOEBIUS_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE moebius_internal_headers GTest::gtest)
endfunction()

# moebius_default(<variable> <value>): gives an argument that was left out its value.
macro(moebius_default variable value)
  if(NOT ${variable})
    set(${variable} ${value})
  endif()
endmacro()

# moebius_add_test(<name> SOURCES <files>... [CUDA_SOURCES <files>...] LABELS <labels>... [LIBS <libraries>...]
#                  [STAGES <stages>...] [TIMEOUT <seconds>] [PROCESSORS <n>] [NO_MAIN])
# Declares a GoogleTest executable <build>/tests/<name>, whose cases are registered as <name>:<Suite>.<Case>.
# LABELS: cpu, gpu, slow, browser, sanitize, fuzz, tsan, waits. STAGES: see moebius_add_program. TIMEOUT
# holds for one case. PROCESSORS is how many processors a case keeps busy; the rank threads of a case count as
# one, since they mostly wait for each other. NO_MAIN: the sources have their own main(). CUDA_SOURCES are *.cu
# and sources that call the CUDA runtime; a test that has any exists only in a build with CUDA.
# Cases are listed when ctest starts, not during the build. A skipped case is reported as skipped.
function(moebius_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN" "TIMEOUT;PROCESSORS" "SOURCES;CUDA_SOURCES;LABELS;LIBS;STAGES")
  if(arg_CUDA_SOURCES)
    if(NOT MOEBIUS_HAVE_CUDA)
      return()
    endif()
    list(APPEND arg_SOURCES ${arg_CUDA_SOURCES})
    list(APPEND arg_LIBS CUDA::cudart_static)
  endif()
  if(NOT arg_SOURCES OR NOT arg_LABELS OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "moebius_add_test(${name}): needs SOURCES and LABELS, and got "
                        "'${arg_UNPARSED_ARGUMENTS}' that it does not know")
  endif()
  moebius_default(arg_TIMEOUT 120)
  moebius_default(arg_PROCESSORS 1)
  moebius_add_program(${name} tests ${arg_SOURCES} STAGES ${arg_STAGES} HELPERS moebius_testing)
  moebius_use_precompiled(${name} test)
  moebius_link_private(linked ${name} ${arg_LIBS})
  target_compile_options(${name} PRIVATE ${MOEBIUS_TEST_OPTIONS})
  if(arg_NO_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gtest)
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  if(gpu IN_LIST arg_LABELS)
    add_dependencies(moebius_gpu_tests ${name})
    set_property(GLOBAL APPEND PROPERTY MOEBIUS_GPU_TESTS ${name})
  endif()
  foreach(label sanitize fuzz tsan)
    if(label IN_LIST arg_LABELS)
      add_dependencies(moebius_${label}_tests ${name})
    endif()
  endforeach()

  gtest_discover_tests(
    ${name}
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    TEST_PREFIX ${name}:
    TEST_LIST ${name}_cases
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Why not PROPERTIES above: it splits lists of labels or variables.
  configure_file(${PROJECT_SOURCE_DIR}/cmake/test_properties.cmake.in ${name}_properties.cmake @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES
                                         ${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake)
endfunction()

# These targets build only the tests that are worth running under sanitizers, those of them that read untrusted
# bytes or have ranks as threads, and those that need GPUs, whose names tools/gpu_tests.sh reads.
add_custom_target(moebius_sanitize_tests)
add_custom_target(moebius_fuzz_tests)
add_custom_target(moebius_tsan_tests)
add_custom_target(moebius_gpu_tests)
function(moebius_list_gpu_tests)
  get_property(names GLOBAL PROPERTY MOEBIUS_GPU_TESTS)
  if(MOEBIUS_HAVE_CUDA)
    list(JOIN names "\n" names)
    file(WRITE ${PROJECT_BINARY_DIR}/tests/gpu_tests.txt "${names}\n")
  endif()
endfunction()
