# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Enables CUDA where a compiler is found that can build our code, for which no GPU is needed. Sets
# MOEBIUS_HAVE_CUDA. The runtime is linked statically: a program built here starts on a machine
# without CUDA and finds no GPU there.

set(MOEBIUS_CUDA_ARCHITECTURES 90a-real
    CACHE STRING "GPUs to build for, in the words of CMAKE_CUDA_ARCHITECTURES")
set(MOEBIUS_MIN_CUDA 12.5)  # cudaGetDriverEntryPointByVersion; C++20, sm_90a

find_program(MOEBIUS_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(MOEBIUS_NVCC)

set(moebius_cuda_usable FALSE)
set(moebius_cuda_title "CUDA")
if(MOEBIUS_CUDA AND MOEBIUS_NVCC)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${MOEBIUS_NVCC})
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${MOEBIUS_CUDA_ARCHITECTURES})
  if(NOT CMAKE_CUDA_HOST_COMPILER)
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  endif()
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_version
                  ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" nvcc_version "${nvcc_version}")
  set(nvcc_version "${CMAKE_MATCH_1}")
  if(nvcc_version VERSION_LESS MOEBIUS_MIN_CUDA)
    set(moebius_cuda_title "CUDA ${nvcc_version} (older than ${MOEBIUS_MIN_CUDA})")
  else()
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      # CMake 3.25 sets a property of this target, for which CUDA 13 has no library.
      if(NOT TARGET CUDA::nvToolsExt)
        add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
      endif()
      find_package(CUDAToolkit ${MOEBIUS_MIN_CUDA} QUIET)
      set(moebius_cuda_usable ${CUDAToolkit_FOUND})
      set(moebius_cuda_title "CUDA ${CUDAToolkit_VERSION} for ${MOEBIUS_CUDA_ARCHITECTURES}")
    else()
      set(moebius_cuda_title "CUDA ${nvcc_version} (does not work with this host compiler)")
    endif()
  endif()
endif()
moebius_optional(CUDA "${moebius_cuda_title}" moebius_cuda_usable "CUDA >= ${MOEBIUS_MIN_CUDA}"
                 "CPU only")

# Only the headers of NCCL are needed here. The library is loaded when a group asks for it, so that programs
# built here start without it. It must be of the headers' version (src/comm/group/nccl/library.cc).
find_path(MOEBIUS_NCCL_INCLUDE_DIR nccl_device.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME
          PATH_SUFFIXES include)
mark_as_advanced(MOEBIUS_NCCL_INCLUDE_DIR)
set(moebius_nccl_usable FALSE)
set(MOEBIUS_NCCL_VERSION "")
if(MOEBIUS_HAVE_CUDA AND MOEBIUS_NCCL_INCLUDE_DIR)
  set(moebius_nccl_usable TRUE)
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${MOEBIUS_NCCL_INCLUDE_DIR}/nccl.h line REGEX "#define NCCL_${part} ")
    string(REGEX REPLACE ".* " "" number "${line}")
    list(APPEND MOEBIUS_NCCL_VERSION ${number})
  endforeach()
  list(JOIN MOEBIUS_NCCL_VERSION "." MOEBIUS_NCCL_VERSION)
endif()
if(MOEBIUS_HAVE_CUDA OR NOT MOEBIUS_NCCL STREQUAL "AUTO")
  moebius_optional(NCCL "NCCL ${MOEBIUS_NCCL_VERSION}" moebius_nccl_usable "NCCL >= 2.28 with its headers"
                   "no nccl group")
endif()

if(MOEBIUS_HAVE_CUDA AND MOEBIUS_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${MOEBIUS_CCACHE})
endif()
