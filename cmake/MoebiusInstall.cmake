# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Installs headers, library and package files: find_package(moebius) gives moebius::moebius.

include(CMakePackageConfigHelpers)
set(moebius_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/moebius)

# Programs that link a static libmoebius must link its private libraries, too; with a shared one they need
# not.
set(MOEBIUS_FIND_fmt::fmt "fmt")
set(MOEBIUS_FIND_Threads::Threads "Threads")
set(MOEBIUS_FIND_MPI::MPI_CXX "MPI COMPONENTS CXX")
set(MOEBIUS_FIND_CUDA::cudart_static "CUDAToolkit")
set(MOEBIUS_FIND_DEPENDENCIES "")
if(NOT BUILD_SHARED_LIBS)
  get_property(libs GLOBAL PROPERTY MOEBIUS_PACKAGE_LIBS)
  foreach(lib IN LISTS libs)
    if(NOT DEFINED MOEBIUS_FIND_${lib})
      message(FATAL_ERROR "cmake/MoebiusInstall.cmake does not know the package of ${lib}")
    endif()
    string(APPEND MOEBIUS_FIND_DEPENDENCIES "find_dependency(${MOEBIUS_FIND_${lib}})\n")
  endforeach()
endif()

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/moebiusConfig.cmake.in ${PROJECT_BINARY_DIR}/moebiusConfig.cmake
  INSTALL_DESTINATION ${moebius_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moebiusConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)

install(TARGETS moebius EXPORT moebiusTargets)
install(EXPORT moebiusTargets NAMESPACE moebius:: DESTINATION ${moebius_package_dir})
install(FILES ${PROJECT_BINARY_DIR}/moebiusConfig.cmake
              ${PROJECT_BINARY_DIR}/moebiusConfigVersion.cmake DESTINATION ${moebius_package_dir})
install(DIRECTORY include/moebius DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING
        PATTERN "*.h")
if(TARGET moebius_app)
  set_target_properties(moebius_app PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS moebius_app)
endif()
