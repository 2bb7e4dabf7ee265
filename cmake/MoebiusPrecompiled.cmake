# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Headers of the standard library and of other projects that most sources include are parsed once for all targets
# of a kind, which takes a third off the time of a build. Sources still include what they use:
# tools/check_missing_includes.py finds those that do not. -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without.

set(moebius_precompiled <algorithm> <array> <atomic> <chrono> <cstring> <fmt/format.h> <functional> <map>
                        <memory> <mutex> <optional> <span> <string> <string_view> <thread> <vector>)

# moebius_add_precompiled(<kind> HEADERS <headers>... LIBS <libraries>... [LIKE_LIBRARY]): declares a kind of
# targets, whose sources have the same flags: those of the library with LIKE_LIBRARY, those of programs without.
function(moebius_add_precompiled kind)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LIKE_LIBRARY" "" "HEADERS;LIBS")
  set(target moebius_precompiled_${kind})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${source})
  if(arg_LIKE_LIBRARY)
    moebius_set_common(${target})
  else()
    set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
    target_link_libraries(${target} PRIVATE moebius_flags)
  endif()
  target_link_libraries(${target} PRIVATE ${arg_LIBS})
  target_precompile_headers(${target} PRIVATE ${moebius_precompiled} ${arg_HEADERS})
endfunction()

# moebius_use_precompiled(<target> <kind>): lets the sources of a target use the headers of its kind.
function(moebius_use_precompiled target kind)
  target_precompile_headers(${target} REUSE_FROM moebius_precompiled_${kind})
endfunction()

# moebius_use_unity(<target>): compiles the sources of a target a dozen at a time, as one (a unity file), but for those
# that have options of their own. It is for targets of many small sources that include JSON or much of the library. Names
# in their anonymous namespaces must differ. The test tools.missing_includes_of_unity compiles each source by itself.
function(moebius_use_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
endfunction()

moebius_add_precompiled(library LIBS fmt::fmt LIKE_LIBRARY)
# A third of the command's sources have JSON.
moebius_add_precompiled(program HEADERS <filesystem> <nlohmann/json.hpp> LIBS fmt::fmt nlohmann_json::nlohmann_json)
