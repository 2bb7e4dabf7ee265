# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# cmake -DNODE= -DNPM= -DOMIT= -DREQUIRED= -DSOURCE= -DOUTPUT= -P build_page.cmake: fetches the packages into the
# folder of OUTPUT where they are not there yet, and writes the page. Without the registry it writes an
# empty file, unless REQUIRED is ON. Where there is no NPM it comes from the registry, too, since the npm of a
# distribution brings hundreds of packages.

cmake_path(GET OUTPUT PARENT_PATH folder)
set(stamp ${folder}/installed.txt)
file(SHA256 ${SOURCE}/package-lock.json wanted)
string(APPEND wanted " ${OMIT}")
set(installed "")
if(EXISTS ${stamp})
  file(READ ${stamp} installed)
endif()

set(npm_version 10.9.4)
set(npm_sha512 3a7506f37e85c1ba1021baad79f0cd9724748131f321fc117c4dc3ba235ec01be7327584a41d15117c01945560aa9373220628fcc1e1dddd877a5fe9b336a900)

# Sets <result> to the command that runs npm.
function(find_npm result)
  if(NPM)
    set(${result} ${NPM} PARENT_SCOPE)
    return()
  endif()
  set(archive ${folder}/npm-${npm_version}.tgz)
  file(DOWNLOAD https://registry.npmjs.org/npm/-/npm-${npm_version}.tgz ${archive} TIMEOUT 60 STATUS status)
  file(SHA512 ${archive} sha512)
  if(sha512 STREQUAL npm_sha512)
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder}/npm)
  endif()  # else `npm ci` below fails
  set(${result} ${NODE} ${folder}/npm/package/bin/npm-cli.js PARENT_SCOPE)
endfunction()

if(NOT installed STREQUAL wanted)
  find_npm(npm)
  file(COPY ${SOURCE}/package.json ${SOURCE}/package-lock.json DESTINATION ${folder})
  # Why limits: where the registry does not answer the build shall go on.
  execute_process(
    COMMAND ${npm} ci ${OMIT} --ignore-scripts --prefer-offline --no-audit --no-fund --no-update-notifier
            --loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000
            --fetch-timeout=20000
    WORKING_DIRECTORY ${folder}
    TIMEOUT 240
    RESULT_VARIABLE result
    OUTPUT_QUIET
    ERROR_VARIABLE errors)
  if(NOT result EQUAL 0)
    file(REMOVE ${stamp})
    if(REQUIRED STREQUAL "ON")
      message(FATAL_ERROR "npm ci: ${result}\n${errors}")
    endif()
    string(REGEX MATCH "^[^\n]*\n[^\n]*" errors "${errors}")
    message(WARNING "npm ci: ${result}; moebius run --report will be refused. To try again, configure and "
                    "build.\n${errors}")
    file(WRITE ${OUTPUT} "")
    return()
  endif()
  file(WRITE ${stamp} "${wanted}")
endif()

execute_process(COMMAND ${NODE} ${SOURCE}/build.mjs ${folder}/node_modules ${OUTPUT}
                RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  file(REMOVE ${stamp})  # what npm left out, as an .npmrc may ask for, is fetched the next time
  message(FATAL_ERROR "the report page: ${result}")
endif()
