# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Installs headers, libraries, package files (find_package(moebius) gives moebius::moebius, pkg-config knows
# moebius) and the licence.

include(CMakePackageConfigHelpers)
set(moebius_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moebius)

# Programs that link a static libmoebius must link its private libraries, too; with a shared one they need
# not.
set(MOEBIUS_FIND_fmt::fmt "fmt")
set(MOEBIUS_FIND_Threads::Threads "Threads")
set(MOEBIUS_FIND_CUDA::cudart_static "CUDAToolkit")
set(MOEBIUS_FIND_DEPENDENCIES "")
if(NOT BUILD_SHARED_LIBS)
  get_property(libs GLOBAL PROPERTY MOEBIUS_PACKAGE_LIBS)
  list(REMOVE_ITEM libs dl ${CMAKE_DL_LIBS})
  foreach(lib IN LISTS libs)
    if(NOT DEFINED MOEBIUS_FIND_${lib})
      message(FATAL_ERROR "cmake/MoebiusInstall.cmake does not know the package of ${lib}")
    endif()
    if(lib STREQUAL "CUDA::cudart_static")  # as in MoebiusCuda.cmake
      string(APPEND MOEBIUS_FIND_DEPENDENCIES "if(NOT TARGET CUDA::nvToolsExt)\n"
             "  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)\nendif()\n")
    endif()
    string(APPEND MOEBIUS_FIND_DEPENDENCIES "find_dependency(${MOEBIUS_FIND_${lib}})\n")
  endforeach()
endif()

set(MOEBIUS_COMPONENTS static)
if(BUILD_SHARED_LIBS)
  set(MOEBIUS_COMPONENTS shared)
endif()
foreach(feature CUDA NCCL MPI)
  if(MOEBIUS_HAVE_${feature})
    string(TOLOWER ${feature} component)
    list(APPEND MOEBIUS_COMPONENTS ${component})
  endif()
endforeach()
if(TARGET moebius_app)
  list(APPEND MOEBIUS_COMPONENTS command)
endif()

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/moebiusConfig.cmake.in ${PROJECT_BINARY_DIR}/moebiusConfig.cmake
  INSTALL_DESTINATION ${moebius_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moebiusConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)

get_property(modules GLOBAL PROPERTY MOEBIUS_MODULES)
install(TARGETS moebius EXPORT moebiusTargets)
if(modules)
  install(TARGETS ${modules})
endif()
install(EXPORT moebiusTargets NAMESPACE moebius:: DESTINATION ${moebius_package_dir})
install(FILES ${PROJECT_BINARY_DIR}/moebiusConfig.cmake
              ${PROJECT_BINARY_DIR}/moebiusConfigVersion.cmake DESTINATION ${moebius_package_dir})
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(BUILD_SHARED_LIBS)
  # The file says where the prefix is as seen from itself, so the tree may be moved.
  set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pc_folder}
             OUTPUT_VARIABLE MOEBIUS_PC_TO_PREFIX)
  configure_file(cmake/moebius.pc.in ${PROJECT_BINARY_DIR}/moebius.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/moebius.pc DESTINATION ${pc_folder})
endif()
if(TARGET moebius_app)
  set_target_properties(moebius_app PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS moebius_app)
endif()
