# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# The functions with which folders declare their targets. Optional libraries (MPI, the CUDA runtime)
# may be named in LIBS whether they are found or not. Where they are, the target links them and sees
# MOEBIUS_HAVE_MPI or MOEBIUS_HAVE_CUDA defined as 1. The library itself is not linked with MPI.

set(MOEBIUS_OPTIONAL_LIBS MPI::MPI_CXX CUDA::cudart_static)
set(MOEBIUS_FEATURE_MPI::MPI_CXX MPI)
set(MOEBIUS_FEATURE_CUDA::cudart_static CUDA)
# Compiled into our objects, so nobody who links libmoebius needs them.
set(MOEBIUS_HEADER_ONLY_LIBS nlohmann_json::nlohmann_json CLI11::CLI11)

# moebius_link_private(<out> <target> <libs>...): links the libraries privately, without optional ones that are
# not in use. Sets <out> to those that were linked.
function(moebius_link_private out target)
  set(linked "")
  foreach(lib IN LISTS ARGN)
    if(lib IN_LIST MOEBIUS_OPTIONAL_LIBS)
      set(feature ${MOEBIUS_FEATURE_${lib}})
      if(NOT MOEBIUS_HAVE_${feature})
        continue()
      endif()
      target_compile_definitions(${target} PRIVATE MOEBIUS_HAVE_${feature}=1)
    endif()
    target_link_libraries(${target} PRIVATE ${lib})
    list(APPEND linked ${lib})
  endforeach()
  set(${out} ${linked} PARENT_SCOPE)
endfunction()

# moebius_set_common(<target>): sets the flags and include folders of code in src/. Symbols are hidden but for
# those that public headers mark with MOEBIUS_API.
function(moebius_set_common target)
  set_target_properties(
    ${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                         CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE moebius_flags)
endfunction()

# moebius_add_stage(<name> SOURCES <files>... [CUDA_SOURCES <files>...] [DEPENDS <stages>...]
#                   [LIBS <libraries>...])
# Declares the stage in src/<name> as the OBJECT library moebius_<name>, a part of libmoebius. CUDA_SOURCES
# (*.cu, and *.cc that call the CUDA runtime) are left out of a build without CUDA; with them the stage
# links the runtime and sees MOEBIUS_HAVE_CUDA=1.
function(moebius_add_stage name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;CUDA_SOURCES;DEPENDS;LIBS")
  set(target moebius_${name})
  if(arg_CUDA_SOURCES AND MOEBIUS_HAVE_CUDA)
    list(APPEND arg_SOURCES ${arg_CUDA_SOURCES})
    list(APPEND arg_LIBS CUDA::cudart_static)
  endif()
  add_library(${target} OBJECT ${arg_SOURCES})
  moebius_set_common(${target})
  moebius_use_precompiled(${target} library)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include)
  foreach(stage IN LISTS arg_DEPENDS)
    target_link_libraries(${target} PUBLIC moebius_${stage})
  endforeach()
  moebius_link_private(linked ${target} ${arg_LIBS})
  set_property(GLOBAL APPEND PROPERTY MOEBIUS_OBJECT_LIBS ${target})
  set_property(GLOBAL APPEND PROPERTY MOEBIUS_LINK_LIBS ${linked})
endfunction()

# moebius_isa_sources(<stage> <isa> <files>...)
# Adds files that need an instruction set to a stage, each with that set's flags, and defines
# MOEBIUS_HAVE_<ISA>=1 for the stage. <isa>: avx2, avx512, avx512_bf16, avx512_vnni, avx512_vbmi or amx.
# Adds nothing on other processors. Call it in the folder that calls moebius_add_stage.
function(moebius_isa_sources stage isa)
  if(NOT DEFINED MOEBIUS_ISA_FLAGS_${isa})
    message(FATAL_ERROR "moebius_isa_sources: no such instruction set: ${isa}")
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    return()
  endif()
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS ${MOEBIUS_ISA_FLAGS_${isa}})
  set_property(SOURCE ${ARGN} PROPERTY SKIP_PRECOMPILE_HEADERS ON)  # which were compiled without these flags
  target_sources(moebius_${stage} PRIVATE ${ARGN})
  string(TOUPPER ${isa} isa_upper)
  target_compile_definitions(moebius_${stage} PRIVATE MOEBIUS_HAVE_${isa_upper}=1)
endfunction()

# moebius_link_stages(<target> [WITHOUT <stages>...]): makes the library of the objects of all stages but those.
function(moebius_link_stages target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "WITHOUT")
  get_property(object_libs GLOBAL PROPERTY MOEBIUS_OBJECT_LIBS)
  if(arg_WITHOUT)
    list(TRANSFORM arg_WITHOUT PREPEND moebius_)
    list(REMOVE_ITEM object_libs ${arg_WITHOUT})
  endif()
  foreach(object_lib IN LISTS object_libs)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object_lib}>)
  endforeach()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(
    ${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:moebius_flags>)
  get_property(package_libs GLOBAL PROPERTY MOEBIUS_PACKAGE_LIBS)
  target_link_libraries(${target} PRIVATE ${package_libs})
  moebius_use_modules(${target})
endfunction()

# moebius_use_modules(<target>): builds what the library opens by itself before the target.
function(moebius_use_modules target)
  get_property(modules GLOBAL PROPERTY MOEBIUS_MODULES)
  if(modules)
    add_dependencies(${target} ${modules})
  endif()
endfunction()

# Declares the library moebius::moebius of all stages, and moebius_internal for tests, benchmarks and the
# command, which may also include internal headers and so link an archive. moebius_internal_headers has only
# these headers and what they need.
function(moebius_add_library)
  get_property(link_libs GLOBAL PROPERTY MOEBIUS_LINK_LIBS)
  list(REMOVE_DUPLICATES link_libs)
  set(package_libs ${link_libs})
  list(REMOVE_ITEM package_libs ${MOEBIUS_HEADER_ONLY_LIBS})
  set_property(GLOBAL PROPERTY MOEBIUS_PACKAGE_LIBS ${package_libs})

  add_library(moebius)
  add_library(moebius::moebius ALIAS moebius)
  moebius_link_stages(moebius)
  set_target_properties(
    moebius PROPERTIES VERSION ${PROJECT_VERSION} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
                       SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set(archive moebius)
  if(BUILD_SHARED_LIBS)
    # It finds libmoebius_mpi.so beside itself. Worker threads may be in our code when a program closes it. The
    # map hides what standard templates make of our types.
    set(map ${PROJECT_SOURCE_DIR}/cmake/libmoebius.map)
    set_target_properties(moebius PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN" LINK_DEPENDS ${map})
    target_link_options(moebius PRIVATE LINKER:-z,nodelete LINKER:--version-script=${map})
    set(archive moebius_archive)
    add_library(moebius_archive STATIC EXCLUDE_FROM_ALL)
    moebius_link_stages(moebius_archive WITHOUT c_api)  # whose users are outside
  endif()

  add_library(moebius_internal_headers INTERFACE)
  target_include_directories(
    moebius_internal_headers INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
                                       ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(moebius_internal_headers INTERFACE moebius_flags ${link_libs})
  foreach(feature MPI CUDA)
    if(MOEBIUS_HAVE_${feature})
      target_compile_definitions(moebius_internal_headers INTERFACE MOEBIUS_HAVE_${feature}=1)
    endif()
  endforeach()
  add_library(moebius_internal INTERFACE)
  target_link_libraries(moebius_internal INTERFACE ${archive} moebius_internal_headers)
endfunction()

# moebius_add_module(<name> SOURCES <files>... LIBS <libraries>...): declares <build>/lib/libmoebius_<name>.so,
# which libmoebius opens by itself, so that only it needs these libraries.
function(moebius_add_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  set(target moebius_${name})
  add_library(${target} SHARED ${arg_SOURCES})
  moebius_set_common(${target})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE ${arg_LIBS})
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  set_property(GLOBAL APPEND PROPERTY MOEBIUS_MODULES ${target})
endfunction()

# moebius_add_problems(SOURCES <files>... [CUDA_SOURCES <files>...]): declares the problem sizes and oracles that
# the command, tests and benchmarks share. It is a static library, so that a program links only what it uses.
function(moebius_add_problems)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;CUDA_SOURCES")
  if(MOEBIUS_HAVE_CUDA)
    list(APPEND arg_SOURCES ${arg_CUDA_SOURCES})
  endif()
  add_library(moebius_problems STATIC ${arg_SOURCES})
  set_target_properties(moebius_problems PROPERTIES CXX_EXTENSIONS OFF)
  moebius_use_precompiled(moebius_problems program)
  target_link_libraries(moebius_problems PRIVATE moebius_internal_headers)
endfunction()

# moebius_add_program(<target> <folder> <files>... [STAGES <stages>...] [HELPERS <libraries>...]): declares an
# executable in <build>/<folder> that may include internal headers. With STAGES it links only these stages, which may
# call no others, so that building it alone compiles no others. HELPERS are static libraries that call the stages.
function(moebius_add_program target folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "STAGES;HELPERS")
  add_executable(${target} ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(
    ${target} PROPERTIES CXX_EXTENSIONS OFF LINKER_LANGUAGE CXX BUILD_RPATH "$ORIGIN/../lib"
                         RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${folder})
  moebius_use_modules(${target})
  if(arg_STAGES)
    foreach(stage IN LISTS arg_STAGES)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:moebius_${stage}>)
    endforeach()
    target_link_libraries(${target} PRIVATE ${arg_HELPERS} moebius_problems moebius_internal_headers)
  else()
    target_link_libraries(${target} PRIVATE ${arg_HELPERS} moebius_problems moebius_internal)
  endif()
endfunction()

# moebius_add_app(SOURCES <files>... [LIBS <libraries>...]): declares the command, <build>/bin/moebius.
function(moebius_add_app)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;LIBS")
  moebius_add_program(moebius_app bin ${arg_SOURCES})
  moebius_use_precompiled(moebius_app program)
  moebius_use_unity(moebius_app)
  set_target_properties(moebius_app PROPERTIES OUTPUT_NAME moebius)
  moebius_link_private(linked moebius_app ${arg_LIBS})
endfunction()

# moebius_add_bench(<name> SOURCES <files>... [LIBS <libraries>...]): declares <build>/bench/<name>.
function(moebius_add_bench name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  moebius_add_program(${name} bench ${arg_SOURCES})
  moebius_use_precompiled(${name} program)
  moebius_link_private(linked ${name} ${arg_LIBS})
endfunction()

# moebius_add_example(<name> [ARGS <arguments>...]): builds examples/<name>.cc as <build>/examples/<name>, with the
# public headers only. A test runs it with ARGS.
function(moebius_add_example name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ARGS")
  add_executable(example_${name} ${name}.cc)
  set_target_properties(
    example_${name} PROPERTIES CXX_EXTENSIONS OFF OUTPUT_NAME ${name}
                               RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  target_link_libraries(example_${name} PRIVATE moebius::moebius moebius_flags)
  if(MOEBIUS_BUILD_TESTS)
    add_test(NAME example.${name} COMMAND example_${name} ${arg_ARGS}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(example.${name} PROPERTIES LABELS cpu TIMEOUT 120)
  endif()
endfunction()

# moebius_add_c_example(<name>): builds examples/c/<name>.c as <build>/examples/c/<name>, in C99 with the C header
# only. A test runs it.
function(moebius_add_c_example name)
  add_executable(example_c_${name} ${name}.c)
  set_target_properties(
    example_c_${name} PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF OUTPUT_NAME ${name}
                                 RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples/c)
  target_compile_definitions(example_c_${name} PRIVATE _XOPEN_SOURCE=700)
  target_compile_options(example_c_${name} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Werror)
  target_link_libraries(example_c_${name} PRIVATE moebius::moebius moebius_flags)
  if(MOEBIUS_BUILD_TESTS)
    add_test(NAME example.c.${name} COMMAND example_c_${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(example.c.${name} PROPERTIES LABELS cpu TIMEOUT 120)
  endif()
endfunction()
