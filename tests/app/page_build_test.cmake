# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# cmake -D SOURCE= -D SCRIPT= -D WORK= -P page_build_test.cmake: where npm fails, a build that does not ask for
# the page goes on with an empty one, and says so; one that does ends.

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
foreach(required AUTO ON)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -DNODE=false -DNPM=${WORK}/no-npm -DOMIT= -DREQUIRED=${required} -DSOURCE=${SOURCE}
            -DOUTPUT=${WORK}/${required}.html -P ${SCRIPT}
    RESULT_VARIABLE result_${required}
    ERROR_VARIABLE message_${required})
endforeach()
if(NOT result_AUTO EQUAL 0 OR NOT EXISTS ${WORK}/AUTO.html)
  message(FATAL_ERROR "AUTO: ${result_AUTO}, ${message_AUTO}")
endif()
file(SIZE ${WORK}/AUTO.html size)
if(NOT size EQUAL 0 OR NOT message_AUTO MATCHES "will be refused")
  message(FATAL_ERROR "AUTO: a page of ${size} bytes, ${message_AUTO}")
endif()
if(result_ON EQUAL 0 OR EXISTS ${WORK}/ON.html)
  message(FATAL_ERROR "ON: ${result_ON}, ${message_ON}")
endif()
