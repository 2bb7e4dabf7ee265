# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# moebius_add_mpi_test(<name> PROGRAM <target> RANKS <n>... [ARGS <arguments>...] LABELS <labels>...
#                      [TIMEOUT <seconds>])
# Runs a test program as a job of n processes, for each n, as a test <name>.np<n>. Does nothing in a build
# without MPI. Ranks are not bound to CPUs, since ctest runs several jobs at a time.
function(moebius_add_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PROGRAM;TIMEOUT" "RANKS;ARGS;LABELS")
  if(NOT MOEBIUS_HAVE_MPI)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    add_test(
      NAME ${name}.np${ranks}
      COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS}
              $<TARGET_FILE:${arg_PROGRAM}> ${MPIEXEC_POSTFLAGS} ${arg_ARGS}
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(
      ${name}.np${ranks}
      PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} PROCESSORS 2
                 ENVIRONMENT "${MOEBIUS_TEST_ENVIRONMENT};OMPI_MCA_hwloc_base_binding_policy=none")
  endforeach()
endfunction()
