# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# Finds what the page of `moebius run --report` is built with. Its packages come from the npm registry
# during the build (web/report), never while configuring.

set(MOEBIUS_MIN_NODE 18)  # needed by esbuild

find_program(MOEBIUS_NODE NAMES node nodejs)
find_program(MOEBIUS_NPM npm)
mark_as_advanced(MOEBIUS_NODE MOEBIUS_NPM)
set(moebius_page_usable FALSE)
if(MOEBIUS_NODE)
  execute_process(COMMAND ${MOEBIUS_NODE} --version OUTPUT_VARIABLE node_version
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(node_version MATCHES "^v([0-9.]+)$" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL MOEBIUS_MIN_NODE)
    set(moebius_page_usable TRUE)
  endif()
endif()
moebius_optional(PAGE "Node.js, for the report page" moebius_page_usable "nodejs (${MOEBIUS_MIN_NODE} or later)"
                 "moebius run --report is refused")

# The folder in which the page is built, once per build folder.
set(MOEBIUS_PAGE_FOLDER ${PROJECT_BINARY_DIR}/web/report)
file(READ ${PROJECT_SOURCE_DIR}/web/report/package.json moebius_page_package)
string(JSON MOEBIUS_ECHARTS_VERSION GET ${moebius_page_package} dependencies echarts)

# moebius_add_page(<source>): builds the page as one file, which <source> of this folder takes in by its name
# MOEBIUS_PAGE_FILE. The file is empty where Node.js or npm's registry is missing; MOEBIUS_PAGE=ON makes that an
# error.
function(moebius_add_page source)
  set(folder ${PROJECT_SOURCE_DIR}/web/report)
  set(page ${MOEBIUS_PAGE_FOLDER}/page.html)
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS MOEBIUS_PAGE_FILE="${page}")
  set_property(SOURCE ${source} APPEND PROPERTY OBJECT_DEPENDS ${page})
  if(NOT MOEBIUS_HAVE_PAGE)
    file(WRITE ${page} "")
    return()
  endif()
  if(EXISTS ${page})  # an empty one is tried again after each configuration
    file(SIZE ${page} size)
    if(size EQUAL 0)
      file(REMOVE ${page})
    endif()
  endif()
  set(omit "")
  if(NOT MOEBIUS_BUILD_TESTS)
    set(omit --omit=dev)
  endif()
  set(script ${PROJECT_SOURCE_DIR}/cmake/build_page.cmake)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.json ${folder}/*.mjs ${folder}/*.html ${folder}/*.css
       ${folder}/src/*.js)
  add_custom_command(
    OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -DNODE=${MOEBIUS_NODE} -DNPM=${MOEBIUS_NPM} -DOMIT=${omit}
            -DREQUIRED=${MOEBIUS_PAGE} -DSOURCE=${folder} -DOUTPUT=${page} -P ${script}
    DEPENDS ${sources} ${script}
    COMMENT "Building the report page"
    VERBATIM)
endfunction()
