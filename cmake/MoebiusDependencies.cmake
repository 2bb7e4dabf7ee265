# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Finds every package that the build uses. One message names all required packages that are missing. An
# optional package sets MOEBIUS_HAVE_<FEATURE> and adds a line to the summary.

set(moebius_missing "")  # required packages not found, by their name in apt
set(moebius_summary "")  # lines for moebius_print_summary()

# moebius_require(<found> <apt package>): notes the package as missing unless <found> is true.
macro(moebius_require found apt_package)
  if(NOT ${found})
    list(APPEND moebius_missing ${apt_package})
  endif()
endmacro()

# moebius_optional(<FEATURE> <title> <found> <apt package> <what happens without it>)
# Sets MOEBIUS_HAVE_<FEATURE> from the option MOEBIUS_<FEATURE> and from <found>.
macro(moebius_optional feature title found apt_package otherwise)
  set(MOEBIUS_HAVE_${feature} FALSE)
  if("${MOEBIUS_${feature}}" STREQUAL "OFF")
    list(APPEND moebius_summary "${title}: off, ${otherwise}")
  elseif(${found})
    set(MOEBIUS_HAVE_${feature} TRUE)
    list(APPEND moebius_summary "${title}: found")
  else()
    list(APPEND moebius_summary "${title}: not found, ${otherwise} (install ${apt_package})")
    if("${MOEBIUS_${feature}}" STREQUAL "ON")
      list(APPEND moebius_missing ${apt_package})
    endif()
  endif()
endmacro()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt 8 QUIET)
find_package(nlohmann_json 3.9 QUIET)
moebius_require(fmt_FOUND libfmt-dev)
moebius_require(nlohmann_json_FOUND nlohmann-json3-dev)

if(MOEBIUS_BUILD_APP)
  find_package(CLI11 2 QUIET)
  moebius_require(CLI11_FOUND libcli11-dev)
endif()
if(MOEBIUS_BUILD_TESTS)
  find_package(GTest 1.12 QUIET)
  moebius_require(GTest_FOUND libgtest-dev)
endif()

if(MOEBIUS_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface only: Open MPI 5 no longer has the C++ one
  find_package(MPI QUIET COMPONENTS CXX)
endif()
moebius_optional(MPI "MPI" MPI_CXX_FOUND libopenmpi-dev "no mpi group")

if(MOEBIUS_BUILD_BENCH)
  find_package(benchmark QUIET)
  set(MOEBIUS_BENCHMARK AUTO)
  moebius_optional(BENCHMARK "Google Benchmark" benchmark_FOUND libbenchmark-dev
                   "micro benchmarks are left out")
endif()

if(MOEBIUS_BUILD_APP)
  include(MoebiusPage)
endif()
include(MoebiusCuda)

if(moebius_missing)
  list(JOIN moebius_missing " " moebius_missing)
  message(
    FATAL_ERROR
      "Packages are missing. Run tools/install_deps.sh, or: apt-get install ${moebius_missing}")
endif()

function(moebius_print_summary)
  message(STATUS "")
  message(STATUS "moebius ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, "
                 "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  foreach(line IN LISTS moebius_summary)
    message(STATUS "  ${line}")
  endforeach()
  foreach(part TESTS BENCH APP EXAMPLES)
    string(TOLOWER ${part} name)
    message(STATUS "  ${name}: ${MOEBIUS_BUILD_${part}}")
  endforeach()
  message(STATUS "  sanitizers: ${MOEBIUS_SANITIZE}")
  message(STATUS "")
endfunction()
