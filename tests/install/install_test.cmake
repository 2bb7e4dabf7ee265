# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Run by CTest with cmake -P; see CMakeLists.txt beside this file for the variables.  The tree is moved after it
# was installed, since packages and wheels are not used where they were built.
file(REMOVE_RECURSE ${WORK_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/installed
                        COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
set(prefix ${WORK_DIR}/moved)
file(RENAME ${WORK_DIR}/installed ${prefix})
set(lib ${prefix}/${LIB_FOLDER}/libmoebius.so)

# run(<output> <command>...): a command that must succeed.
function(run output)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

# With CMake, by each compiler.
foreach(compiler IN LISTS CXX_COMPILERS)
  cmake_path(GET compiler FILENAME name)
  set(build ${WORK_DIR}/build-${name})
  run(ignored ${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${build} -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${compiler}
      -D CMAKE_BUILD_TYPE=${BUILD_TYPE} -D CMAKE_PREFIX_PATH=${prefix} -D MOEBIUS_VERSION=${VERSION})
  run(ignored ${CMAKE_COMMAND} --build ${build})
  run(ignored ${build}/consumer ${VERSION})
endforeach()

# A part that no build has is refused by name.
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${WORK_DIR}/build-refused -G ${GENERATOR} -D
          CMAKE_PREFIX_PATH=${prefix} -D MOEBIUS_VERSION=${VERSION} -D COMPONENTS=teleport
  RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE errors)
if(result EQUAL 0 OR NOT errors MATCHES "teleport")
  message(FATAL_ERROR "find_package(moebius COMPONENTS teleport): ${result}\n${errors}")
endif()

if(NOT EXISTS ${lib})
  return()  # what follows is of shared libraries
endif()

# With pkg-config.
if(PKG_CONFIG)
  run(flags ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${prefix}/${LIB_FOLDER}/pkgconfig ${PKG_CONFIG} --cflags --libs
      moebius)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  list(GET CXX_COMPILERS 0 compiler)
  run(ignored ${compiler} -std=c++20 ${CONSUMER_DIR}/main.cc -o ${WORK_DIR}/by_pkg_config ${flags}
      -Wl,-rpath,${prefix}/${LIB_FOLDER})
  run(ignored ${WORK_DIR}/by_pkg_config ${VERSION})
  run(ignored ${C_COMPILER} -std=c99 -Wall -Wextra -Wpedantic -Werror ${CONSUMER_DIR}/main.c -o ${WORK_DIR}/by_pkg_config_c
      ${flags} -Wl,-rpath,${prefix}/${LIB_FOLDER})
  run(ignored ${WORK_DIR}/by_pkg_config_c ${VERSION})
endif()

# The library shows nothing but its own names, and starts without MPI and CUDA.
run(symbols ${NM} --dynamic --defined-only --demangle --format=posix ${lib})
string(REGEX REPLACE "\n$" "" symbols "${symbols}")
string(REPLACE ";" "," symbols "${symbols}")
string(REPLACE "\n" ";" symbols "${symbols}")
list(LENGTH symbols num_symbols)
if(num_symbols LESS 100)
  message(FATAL_ERROR "${lib} has ${num_symbols} symbols, expected at least 100")
endif()
foreach(symbol IN LISTS symbols)
  if(NOT symbol MATCHES "^((typeinfo for |typeinfo name for |vtable for )?moebius::|moebius_)[A-Za-z0-9_]+"
     OR symbol MATCHES "moebius::(comm|quant|experts|layer|checkpoint|c_api|plan|app|router|problems)::")
    message(FATAL_ERROR "${lib} shows ${symbol}, expected only what public headers declare")
  endif()
endforeach()
run(needed ${READELF} --dynamic --wide ${lib})
if(needed MATCHES "NEEDED[^\n]*(mpi|cuda|nccl|onednn|dnnl|fabric)")
  message(FATAL_ERROR "${lib} needs ${CMAKE_MATCH_1} to start:\n${needed}")
endif()
message(STATUS "${num_symbols} symbols")

# The command finds its modules beside the library.
if(EXISTS ${prefix}/bin/moebius)
  run(ignored ${prefix}/bin/moebius info)
endif()
